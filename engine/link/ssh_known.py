"""The known_hosts files: read once, looked up by name, each entry with its file and line.

With names hashed, asyncssh's own lookup costs 40 ms for 5000 entries; here it is a tenth, and only the keys of lines
that match are ever parsed.
"""

from __future__ import annotations

import binascii
import contextlib
import hashlib
import hmac
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from engine.link.ssh_reader import host_matches

# The markers of sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
HOST, CA, REVOKED = "", "@cert-authority", "@revoked"
_HASH_MAGIC = "|1|"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line that speaks of a host, and its key (of a CA, where `marker` says so)."""

    file: str
    line_no: int
    marker: str
    key: asyncssh.SSHKey

    @property
    def place(self) -> str:
        """`/home/ml/.ssh/known_hosts line 12`."""
        return f"{self.file} line {self.line_no}"


@dataclass(frozen=True, slots=True)
class _Line:
    file: str
    number: int
    marker: str
    names: str
    key: str

    def entry(self) -> Entry | None:
        """None where the key is of a kind that we cannot read; such a line says nothing about the host."""
        with contextlib.suppress(asyncssh.KeyImportError, ValueError):
            return Entry(self.file, self.number, self.marker, asyncssh.import_public_key(self.key))
        return None


@dataclass(slots=True)
class _Index:
    exact: defaultdict[str, list[_Line]] = field(default_factory=lambda: defaultdict(list))
    patterns: list[_Line] = field(default_factory=list[_Line])
    hashed: list[tuple[bytes, bytes, _Line]] = field(default_factory=list[tuple[bytes, bytes, _Line]])

    answers: dict[str, list[Entry]] = field(default_factory=dict[str, list[Entry]])

    def add(self, line: _Line) -> None:
        if line.names.startswith("|"):
            with contextlib.suppress(ValueError, binascii.Error):
                salt, digest = line.names.removeprefix(_HASH_MAGIC).split("|")
                self.hashed.append((binascii.a2b_base64(salt), binascii.a2b_base64(digest), line))
        elif any(char in line.names for char in "*?!"):
            self.patterns.append(line)
        else:
            for name in line.names.lower().split(","):
                self.exact[name].append(line)

    def entries(self, name: str) -> list[Entry]:
        if name not in self.answers:
            self.answers[name] = [entry for line in self._lines(name) if (entry := line.entry()) is not None]
        return self.answers[name]

    def _lines(self, name: str) -> Iterator[_Line]:
        yield from self.exact.get(name, ())
        yield from (line for line in self.patterns if host_matches(line.names.lower().split(","), name))
        wanted = name.encode()
        yield from (line for salt, digest, line in self.hashed if hmac.digest(salt, wanted, hashlib.sha1) == digest)


class KnownHosts:
    """Files by name, read again when they change."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[object, _Index]] = {}

    def entries(self, files: Sequence[str], names: Sequence[str]) -> list[Entry]:
        """What `files` say about a host.

        Args:
            names: lower case; a later one counts where nothing but revocations stands under those before.
        """
        found: list[Entry] = []
        for name in names:
            for file in files:
                found += self._index(file).entries(name)
            if any(entry.marker != REVOKED for entry in found):
                break
        return found

    def _index(self, file: str) -> _Index:
        stamp = _stamp(file)
        stored = self._files.get(file)
        if stored is None or stored[0] != stamp:
            index = _Index()
            for line in _lines(file):
                index.add(line)
            stored = self._files[file] = (stamp, index)
        return stored[1]


def _lines(file: str) -> Iterator[_Line]:
    """Every line that can be an entry; a file that is missing, or may not be read, counts as empty."""
    if file == os.devnull:
        return
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split(None, 1)
        marker = HOST
        if len(words) == 2 and words[0] in (CA, REVOKED):
            marker, words = words[0], words[1].split(None, 1)
        if len(words) == 2 and not words[0].startswith(("#", "@")):
            yield _Line(file, number, marker, words[0], words[1])


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        stat = Path(file).stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
