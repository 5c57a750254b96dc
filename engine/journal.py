"""events.jsonl: every life-cycle event, appended; replaying it gives the run's state again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.job.events import Event, event_from_json
from engine.job.reduce import step
from engine.job.state import JobState


class Journal:
    """The open events.jsonl of a run.

    A disk that refuses loses nothing: lines are kept and written when it can be done.
    """

    def __init__(self, path: Path) -> None:
        """
        Raises:
            OSError: the file cannot be opened.
        """
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._pending = b""
        self.error: OSError | None = None
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            # The last engine died in the middle of a line.
            self._pending = b"\n"

    def append(self, line: dict[str, Any]) -> None:
        """Write one line; `error` says whether the disk refused."""
        self._pending += json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Try again to write what the disk refused."""
        try:
            while self._pending:
                written = os.write(self._fd, self._pending)
                self._pending = self._pending[written:]
            self.error = None
        except OSError as err:
            self.error = err

    def close(self) -> None:
        """Write what is left and close."""
        self.flush()
        os.close(self._fd)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of an events.jsonl; torn or foreign lines are passed over.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        for raw in file:
            try:
                line: Any = json.loads(raw)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict):
                yield line  # pyright: ignore[reportUnknownVariableType]


def replay(state: JobState, lines: Iterator[dict[str, Any]]) -> JobState:
    """The state after all events in `lines`. Lines of a newer version than ours are passed over."""
    for line in lines:
        try:
            event, at = event_from_json(line)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        state = _quiet_step(state, event, at)
    return state


def _quiet_step(state: JobState, event: Event, at: float) -> JobState:
    try:
        return step(state, event, at)[0]
    except KeyError:
        # A node or rank that the plan does not know: not a line of this run.
        return state
