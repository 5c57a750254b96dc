"""The last words of a log, read from its end."""

from __future__ import annotations

import os
from pathlib import Path

from engine.logs.index import LogIndex
from engine.parse.ansi import plain, visible_part

# A longer last line is shown from where this many bytes before the end are.
LAST_BYTES = 8 * 1024
# Up to this size lines are counted for their numbers: 64 MiB take 30 ms.
COUNT_BYTES = 64 * 1024 * 1024


def last_line(path: Path) -> bytes:
    """The last line of a log that shows anything, as it looks now (one state of a bar); b"" where there is none.

    Reads at most 8 KiB.

    Raises:
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, LAST_BYTES, max(0, size - LAST_BYTES))
    finally:
        os.close(fd)
    for line in reversed(data.split(b"\n")):
        if line and plain(line).strip():
            start, end = visible_part(line)
            return line[start:end]
    return b""


def last_lines(path: Path, count: int) -> list[tuple[int | None, bytes]]:
    """The last `count` lines with their numbers (from 1; None in a log too big to count), the oldest first.

    Raises:
        OSError: the file cannot be read.
    """
    path.stat()
    log = LogIndex(path)
    try:
        log.refresh(COUNT_BYTES)
        found: list[tuple[int | None, bytes]] = []
        start = log.last_start()
        while start is not None and len(found) < count:
            number = log.number_at(start) if log.complete else None
            found.append((number, log.line(start)))
            start = log.line_before(start)
        return found[::-1]
    finally:
        log.close()
