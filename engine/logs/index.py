"""A log file of any size as lines: where they begin, which number they have. Reads what is asked for, no more.

Places are byte offsets, because those never move while a rank appends: a view that is anchored to one stands still.
Line numbers are a service on top: they are known as far as `refresh` has counted.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from pathlib import Path

BLOCK = 64 * 1024
# A line longer than this is cut where the file passes a multiple of it, or a bar that is redrawn for days would be
# read whole each time. Lines are shorter than twice this.
LONGEST = 1024 * 1024
# What one call of `refresh` counts at most, in bytes: about 2 ms.
BUDGET = 4 * 1024 * 1024
_MEMORY = 8192  # how many places are remembered


class LogIndex:
    """The lines of one log, which may grow, shrink, or not be there yet.

    Args:
        path: the log.

    Attributes:
        size: of the file at the last `refresh`, in bytes.
        lines: how many "\\n" were counted so far.
        generation: grows whenever the file was emptied or replaced; offsets from before are void then.
        error: why it cannot be read, in the system's words, or None.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.lines = 0
        self.generation = 0
        self.error: str | None = None
        self._fd: int | None = None
        self._identity: tuple[int, int] | None = None
        self._counted = 0
        self._sums = array("Q")  # how many "\n" there are up to the end of each whole block
        self._next: dict[int, tuple[int, int]] = {}
        self._before: dict[int, int] = {}

    @property
    def complete(self) -> bool:
        """True when every line is counted."""
        return self._counted >= self.size

    def refresh(self, budget: int = BUDGET) -> bool:
        """Look at the file anew and count on, at most `budget` bytes. True where its size or identity changed."""
        before = (self.size, self.generation, self.error)
        self._look()
        end = min(self.size, self._counted + budget)
        while self._counted < end:
            stop = min(end, (self._counted // BLOCK + 1) * BLOCK)
            data = self.read(self._counted, stop)
            if not data:
                break
            self._counted += len(data)
            self.lines += data.count(b"\n")
            if self._counted % BLOCK == 0:
                self._sums.append(self.lines)
        return before != (self.size, self.generation, self.error)

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`, fewer where the file ends; b"" where it cannot be read."""
        if self._fd is None or end <= start:
            return b""
        try:
            return os.pread(self._fd, end - start, start)
        except OSError as err:
            self.error = err.strerror or str(err)
            return b""

    def line_start(self, place: int) -> int:
        """Where the line begins that holds the byte at `place` (0 <= place <= size)."""
        return 0 if place <= 0 else self._start_before(place)

    def line_before(self, start: int) -> int | None:
        """Where the line before the one at `start` begins; None for the first."""
        if start <= 0:
            return None
        if start not in self._before:
            self._remember()
            self._before[start] = self.line_start(start - 1)
        return self._before[start]

    def line_end(self, start: int) -> tuple[int, int]:
        """Where the line at `start` ends (without its "\\n") and where the next one begins."""
        known = self._next.get(start)
        if known is not None:
            return known
        found = self._find_end(start)
        if found is None:  # still being written
            return self.size, self.size
        self._remember()
        self._next[start] = found
        return found

    def last_start(self) -> int | None:
        """Where the last line begins, finished or not; None for an empty file."""
        return None if self.size == 0 else self.line_start(self.size - 1)

    def line(self, start: int) -> bytes:
        """The bytes of the line at `start`, without its "\\n"."""
        return self.read(start, self.line_end(start)[0])

    def number_at(self, place: int) -> int | None:
        """The number (from 1) of the line that holds the byte at `place`; None where it is not counted yet."""
        if place > self._counted:
            return None
        block = place // BLOCK
        base = self._sums[block - 1] if block else 0
        return base + self.read(block * BLOCK, place).count(b"\n") + 1

    def start_of(self, number: int) -> int | None:
        """Where the line with this number (from 1) begins; None where there is none, or it is not counted yet."""
        if number <= 1:
            return 0 if number == 1 else None
        newline = number - 1  # it begins behind that many "\n"
        if newline > self.lines:
            return None
        block = bisect_left(self._sums, newline)
        data = self.read(block * BLOCK, min((block + 1) * BLOCK, self._counted))
        place = -1
        for _ in range(newline - (self._sums[block - 1] if block else 0)):
            place = data.find(b"\n", place + 1)
        return block * BLOCK + place + 1

    def window(self, first_line: int, count: int) -> list[bytes]:
        """`count` lines from number `first_line` (from 1) on, without "\\n"; fewer at the end of what is counted.

        A line that is longer than LONGEST comes with its beginning only.
        """
        start = self.start_of(first_line)
        found: list[bytes] = []
        while start is not None and start < self.size and len(found) < count:
            end, after = self.line_end(start)
            found.append(self.read(start, end))
            while after == end and after < self.size:  # a forced cut: the same line goes on
                end, after = self.line_end(after)
            start = after
        return found

    def close(self) -> None:
        """Let go of the file; `refresh` opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _look(self) -> None:
        """Open, stat, and notice a file that was replaced or emptied."""
        try:
            status = self.path.stat()
            if self._fd is None or self._identity != (status.st_dev, status.st_ino):
                self.close()
                # O_NONBLOCK: a fifo in the log's place must not hang us.
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                if self._identity is not None:
                    self._forget()
                self._identity = (status.st_dev, status.st_ino)
            size = os.fstat(self._fd).st_size
            self.error = None
        except FileNotFoundError:
            self.error = None if self._fd is None else self.error
            return  # not written yet; or removed, and what we hold is still readable
        except OSError as err:
            self.error = err.strerror or str(err)
            return
        if size < self.size:
            self._forget()
        self.size = size

    def _forget(self) -> None:
        self.generation += 1
        self.size = self.lines = self._counted = 0
        self._sums = array("Q")
        self._next.clear()
        self._before.clear()

    def _remember(self) -> None:
        if len(self._next) + len(self._before) > _MEMORY:
            self._next.clear()
            self._before.clear()

    def _start_before(self, place: int) -> int:
        """The last line start at or before `place` > 0: behind a "\\n", or at a forced cut."""
        cut = place // LONGEST * LONGEST
        stop = place
        while stop > cut:  # in blocks from behind: lines are short
            start = max(cut, (stop - 1) // BLOCK * BLOCK)
            found = self.read(start, stop).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            stop = start
        if cut == 0:
            return 0
        found = self.read(cut - LONGEST, cut).rfind(b"\n")
        return cut if found < 0 else cut - LONGEST + found + 1

    def _find_end(self, start: int) -> tuple[int, int] | None:
        """The end of the line at `start` and the next start; None where it is not finished."""
        cut = (start // LONGEST + 1) * LONGEST
        # The first multiple behind `start` cuts only where the whole stretch before it is one line.
        last = cut if start % LONGEST == 0 else cut + LONGEST
        position = start
        while position < min(last, self.size):
            stop = min((position // BLOCK + 1) * BLOCK, last, self.size)
            found = self.read(position, stop).find(b"\n")
            if found >= 0:
                return position + found, position + found + 1
            position = stop
        return (last, last) if self.size > last else None
