"""Reading a log that is still being written, from its file. Nothing here changes the file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

READ_BYTES = 256 * 1024
# How long to sleep between two looks: short while there is something, longer when there is not (seconds).
SHORTEST_S = 0.01
LONGEST_S = 0.1


class Pace:
    """How long to wait before the next look, in seconds: 0.01 after data, doubling to 0.1."""

    def __init__(self) -> None:
        self._delay = SHORTEST_S

    def next(self, got_some: bool) -> float:
        """The delay after a look that found something, or nothing."""
        self._delay = SHORTEST_S if got_some else min(LONGEST_S, self._delay * 2)
        return self._delay


class LogTail:
    """Reads on in a file where it left off. The file may not be there yet.

    Args:
        path: the log.
        offset: where to begin, in bytes.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.truncated = 0  # how often the file became shorter than what we had read
        self._fd: int | None = None

    def poll(self, size: int = READ_BYTES) -> bytes:
        """At most `size` bytes that are new; b"" where there are none now.

        A file that became shorter was emptied by somebody (ranks append): it is read anew from its start.

        Raises:
            OSError: the file is there and cannot be read.
        """
        if self._fd is None and not self._open():
            return b""
        assert self._fd is not None
        data = os.pread(self._fd, size, self.offset)
        if not data and os.fstat(self._fd).st_size < self.offset:
            self.truncated += 1
            self.offset = 0
            data = os.pread(self._fd, size, 0)
        self.offset += len(data)
        return data

    def close(self) -> None:
        """Let go of the file; `poll` would open it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> bool:
        try:
            # O_NONBLOCK: a fifo in the log's place must not hang us.
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        return True


async def follow(tail: LogTail, finished: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The bytes of a log as they come, until its writers are done and all is read.

    Args:
        tail: where to read.
        finished: True once nobody writes any more. The end of the file is never the end of the log.
    """
    pace = Pace()
    while True:
        last_look = finished()  # asked before reading: what is written after it would be missed
        data = tail.poll()
        if data:
            yield data
        elif last_look:
            return
        await asyncio.sleep(pace.next(bool(data)))


def start_of_last_lines(path: Path, count: int) -> tuple[int, int]:
    """Where the last `count` lines of a file begin, and where it ended when we looked (offsets in bytes).

    A last line without "\\n" counts. Reads backwards, so it costs what is shown, not what is there.

    Raises:
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # as above: it may be a fifo
    try:
        size = os.fstat(fd).st_size
        if count <= 0:
            return size, size
        # The "\n" at the very end closes the last line, it does not begin another.
        position, wanted = size, count
        if size and os.pread(fd, 1, size - 1) == b"\n":
            position -= 1
        while position > 0:
            start = max(0, position - READ_BYTES)
            block = os.pread(fd, position - start, start)
            end = len(block)
            while (found := block.rfind(b"\n", 0, end)) >= 0:
                wanted -= 1
                if wanted == 0:
                    return start + found + 1, size
                end = found
            position = start
        return 0, size
    finally:
        os.close(fd)
