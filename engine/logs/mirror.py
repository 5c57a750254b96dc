"""Byte-exact copies of a node's logs and exit records, for a node that does not share the run directory's disk.

Only files here: who asks the agent for what, and when, is `engine/logs/copier.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from engine.clock import rfc3339
from engine.errors import RunDirError
from engine.rundir import os_error_hint, os_error_text, rank_log, write_atomically

# How much of a copy's end the agent compares before it goes on there. Not the whole: that would mean to send it.
TAIL_BYTES = 4096
# Descriptors kept for a node; beyond these the one that was not used for longest is closed.
MAX_OPEN = 16

Key = tuple[int, int]  # (attempt, rank)


class Taken(Enum):
    """What became of a piece of a log."""

    OK = "ok"  # written, or known already
    GAP = "gap"  # something before it is missing: ask anew
    STUCK = "stuck"  # it cannot be written now; `error` says why


class Mirror:
    """The copies of one node's logs. What cannot be written is not kept in memory: the node has it."""

    def __init__(self, run_dir: Path, folder: str) -> None:
        """
        Args:
            folder: of the node, below `nodes` in `run_dir`.
        """
        self.error: str | None = None  # the sentence about the last write that failed; who retries clears it
        self.written = 0  # bytes, in all
        self._run_dir = run_dir
        self._folder = folder
        self._sizes: dict[Key, int] = {}
        self._fds: dict[Key, int] = {}  # the one that was used last is the last one
        self._records: dict[Key, str] = {}  # exits that could not be written yet
        self._token: Path | None = None

    # -- logs --

    def size(self, attempt: int, rank: int) -> int:
        """How many bytes of a log are here."""
        key = (attempt, rank)
        if key not in self._sizes:
            try:
                self._sizes[key] = self._path(key).stat().st_size
            except OSError:
                return 0
        return self._sizes[key]

    def subscription(self, attempt: int, rank: int) -> dict[str, Any]:
        """The request for all that is not here yet. It lets the agent see whether the copy is of that log at all."""
        self._sizes.pop((attempt, rank), None)  # somebody may have shortened or removed the copy
        size = self.size(attempt, rank)
        head: dict[str, Any] = {"t": "subscribe", "attempt": attempt, "rank": rank, "offset": size}
        if not size:
            return head
        try:
            with self._path((attempt, rank)).open("rb") as file:
                file.seek(max(0, size - TAIL_BYTES))
                tail = file.read(TAIL_BYTES)
        except OSError:
            return head
        return {**head, "tail": {"n": len(tail), "sha256": hashlib.sha256(tail).hexdigest()}}

    def take(self, head: Mapping[str, Any], payload: bytes) -> Taken:
        """Write what a `log` frame brings. The same piece twice, or pieces that overlap, do no harm.

        Raises:
            KeyError, TypeError: it is not a frame of our agent.
        """
        attempt: int = head["attempt"]
        rank: int = head["rank"]
        offset: int = head["offset"]
        key = (attempt, rank)
        size = self.size(attempt, rank)
        if offset > size:
            return Taken.GAP
        try:
            if head.get("truncated"):
                os.ftruncate(self._open(key), offset)
                self._sizes[key] = size = offset
            if offset + len(payload) > size:
                self._write(key, size, memoryview(payload)[size - offset :])
        except OSError as err:
            self._fails(self._path(key), err)
            return Taken.STUCK
        return Taken.OK

    def end(self, attempt: int, rank: int) -> None:
        """Nobody writes to that log any more."""
        key = (attempt, rank)
        try:
            self._open(key)  # a rank that printed nothing has an empty log, not none
        except OSError as err:
            self._fails(self._path(key), err)
        self._close(key)

    def close(self) -> None:
        """Let go of all files."""
        for key in list(self._fds):
            self._close(key)

    def _write(self, key: Key, at: int, data: memoryview) -> None:
        fd = self._open(key)
        while data:
            count = os.pwrite(fd, data, at)
            at += count
            data = data[count:]
            # After each piece: a disk that fills up in the middle keeps what went in.
            self._sizes[key] = at
            self.written += count

    def _open(self, key: Key) -> int:
        fd = self._fds.pop(key, None)
        if fd is None:
            while len(self._fds) >= MAX_OPEN:
                self._close(next(iter(self._fds)))
            path = self._path(key)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            try:
                fd = os.open(path, flags, 0o600)
            except FileNotFoundError:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                fd = os.open(path, flags, 0o600)
        self._fds[key] = fd
        return fd

    def _close(self, key: Key) -> None:
        fd = self._fds.pop(key, None)
        if fd is not None:
            os.close(fd)

    def _path(self, key: Key) -> Path:
        return self._run_dir / rank_log(self._folder, *key)

    def _fails(self, path: Path, err: OSError) -> None:
        hint = os_error_hint(err).partition(",")[0]  # another run root is no choice for a run that has begun
        self.error = f"{path} cannot be written: {os_error_text(err)}; the node has the log, it is copied later" + (
            f" ({hint})" if hint.startswith("free") else ""
        )

    # -- exit records --

    def record_exit(self, attempt: int, rank: Mapping[str, Any], ended_at: float | None) -> None:
        """Write a rank's `.exit` as its agent does.

        Args:
            rank: an `exit` frame, or a rank of a `state` frame.
            ended_at: Unix seconds by the node's clock.
        """
        record: dict[str, Any] = {name: rank[name] for name in ("code", "signal") if rank.get(name) is not None}
        if rank.get("lost"):
            record["lost"] = True
        record["started_at"] = rfc3339(rank.get("started_at"))
        record["ended_at"] = rfc3339(ended_at)
        record["by_us"] = bool(rank.get("by_us"))
        record["error"] = rank.get("error")
        self._records[(attempt, rank["rank"])] = json.dumps(record) + "\n"
        self.write_records()

    @property
    def waiting_records(self) -> bool:
        """True while an exit is still to be written."""
        return bool(self._records)

    def write_records(self) -> None:
        """Write the exits that could not be written before."""
        for key, text in list(self._records.items()):
            path = self._path(key).with_suffix(".exit")
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(path, text)
            except OSError as err:
                self._fails(path, err)
            except RunDirError as err:
                self.error = f"{err}; it is kept in memory meanwhile"
            else:
                del self._records[key]

    # -- whether the node shares this disk --

    def place_token(self) -> dict[str, str] | None:
        """Put a file into the node's folder that only this disk has: what the spec's `token` says of it, or None.

        A new name each time: a network file system may remember that there was no such file.
        """
        self.remove_token()
        path = self._run_dir / "nodes" / self._folder / f".token-{secrets.token_hex(4)}"
        value = secrets.token_hex(16)
        self._token = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, value + "\n")
        except (OSError, RunDirError):
            self._token = None
            return None
        return {"name": path.name, "value": value}

    def remove_token(self) -> None:
        """The agent has looked."""
        if self._token is not None:
            try:
                self._token.unlink(missing_ok=True)
            except OSError:
                return  # the next try
            self._token = None
