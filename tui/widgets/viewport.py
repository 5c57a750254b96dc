"""Which rows of a log are visible. No drawing, no Textual.

The view stands on a place in the file, not on a number of rows from its start or end: whatever a rank appends, a
paused view does not move, and nothing is counted or laid out for what is not visible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine.logs.index import LogIndex


class Row(NamedTuple):
    """One visible row: the line that begins at `start`, and which of its wrapped rows."""

    start: int
    part: int = 0


class Viewport:
    """The visible part of a log.

    Args:
        log: the file.
        parts: how many rows the line at a place takes (1 without wrapping).

    Attributes:
        following: the last row stays visible while the log grows.
        height: rows.
    """

    def __init__(self, log: LogIndex, parts: Callable[[int], int]) -> None:
        self.log = log
        self.following = True
        self.height = 1
        self._parts = parts
        self._top = Row(0)
        self._generation = log.generation
        self._paused_size = 0
        self._paused_lines: int | None = None

    @property
    def top(self) -> Row:
        """The first visible row."""
        if self._generation != self.log.generation:
            self._generation = self.log.generation
            self.following = True
        return self._last_top() if self.following else self._top

    @property
    def new_lines(self) -> int | None:
        """How many lines came since the view was paused; None where the log was not counted yet."""
        if self._paused_lines is None or not self.log.complete:
            return None
        return self.log.lines - self._paused_lines

    @property
    def new_bytes(self) -> int:
        """How many bytes came since the view was paused."""
        return max(0, self.log.size - self._paused_size)

    def rows(self) -> list[Row]:
        """The visible rows, at most `height`."""
        if self.log.size == 0:
            return []
        found = [self.top]
        while len(found) < self.height:
            after = self._after(found[-1])
            if after is None:
                break
            found.append(after)
        return found

    def scroll(self, count: int) -> bool:
        """Move by `count` rows, up where negative. Up pauses; down to the end follows again. True where it moved."""
        if self.log.size == 0:
            return False
        before, was = self.top, self.following
        here = before
        if count < 0:
            for _ in range(-count):
                above = self._before(here)
                if above is None:
                    break
                here = above
            if here != before:
                self._stand(here)
        else:
            end = self._last_top()
            for _ in range(count):
                if here >= end:
                    break
                here = self._after(here) or end
            if here >= end:
                self.following = True
            else:
                self._stand(here)
        return here != before or was != self.following

    def home(self) -> None:
        """To byte 0."""
        if self._last_top() > Row(0):
            self._stand(Row(0))

    def end(self) -> None:
        """To the end, and follow."""
        self.following = True

    def go_to(self, start: int) -> None:
        """Put the line at `start` a third down from the top, and pause."""
        here = Row(start)
        for _ in range(self.height // 3):
            here = self._before(here) or here
        if here < self._last_top():
            self._stand(here)
        else:
            self.following = True

    def rewrapped(self) -> None:
        """Lines take other numbers of rows now: stay at the line."""
        self._top = Row(self._top.start)

    def _stand(self, top: Row) -> None:
        if self.following:
            self._paused_size = self.log.size
            self._paused_lines = self.log.lines if self.log.complete else None
        self.following = False
        self._top = top

    def _last_top(self) -> Row:
        """The top row with which the last row is at the bottom."""
        start = self.log.last_start()
        if start is None:
            return Row(0)
        here = Row(start, self._parts(start) - 1)
        for _ in range(self.height - 1):
            above = self._before(here)
            if above is None:
                break
            here = above
        return here

    def _after(self, row: Row) -> Row | None:
        if row.part + 1 < self._parts(row.start):
            return Row(row.start, row.part + 1)
        start = self.log.line_end(row.start)[1]
        return Row(start) if start < self.log.size else None

    def _before(self, row: Row) -> Row | None:
        if row.part > 0:
            return Row(row.start, row.part - 1)
        start = self.log.line_before(row.start)
        return None if start is None else Row(start, self._parts(start) - 1)
