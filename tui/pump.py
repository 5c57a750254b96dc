"""The logs of all ranks, read as they grow, handed on line by line."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.clock import Clock
from engine.job.snapshot import Snapshot
from engine.logs.tail import LogTail
from engine.parse.lines import Line, LineAssembler
from engine.rundir import os_error_text

# A progress bar is printed at most this often (seconds).
BAR_EVERY_S = 1.0


@dataclass(slots=True, eq=False)
class Feed:
    """One rank's log of one attempt, as far as it was read."""

    rank: int
    host: str
    attempt: int
    tail: LogTail
    lines: LineAssembler = field(default_factory=LineAssembler)
    bar_text: str = ""  # the state of the unfinished line that was printed last
    bar_at: float = -math.inf  # when, on the monotonic clock


class LogPump:
    """Reads what is new in all logs and gives the lines to `sink`.

    Args:
        run_dir: what the snapshot's paths are relative to.
        sink: gets every line once, those of one look together.
        clock: for the rate of progress bars.
        bars: True to hand on the state of unfinished `\\r` lines too, as partial lines.
        wanted: which ranks; None is all.
        complain: gets a sentence where a log cannot be read.
    """

    def __init__(
        self,
        run_dir: Path,
        sink: Callable[[Feed, Sequence[Line]], None],
        clock: Clock,
        *,
        bars: bool,
        wanted: frozenset[int] | None = None,
        complain: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._sink = sink
        self._clock = clock
        self._bars = bars
        self._wanted = wanted
        self._complain = complain
        self._seen: set[tuple[int, int]] = set()
        self._feeds: list[Feed] = []
        self._attempt = 0

    def see(self, snapshot: Snapshot) -> None:
        """Follow the logs of the snapshot's attempt too; those of an earlier one are read to their end."""
        self._attempt = snapshot.attempt
        for rank in snapshot.ranks:
            key = (snapshot.attempt, rank.rank)
            if key in self._seen or (self._wanted is not None and rank.rank not in self._wanted):
                continue
            self._seen.add(key)
            self.add(Feed(rank.rank, rank.host, snapshot.attempt, LogTail(self._run_dir / rank.log)))

    def add(self, feed: Feed) -> None:
        """Follow one more log."""
        self._feeds.append(feed)

    async def step(self, room: Callable[[], Awaitable[bool]]) -> bool:
        """Look into every log once.

        Args:
            room: awaited after each log with news, so that a slow reader slows nothing but us; False ends the round.

        Returns:
            True where there was something new.
        """
        got_some = False
        for feed in tuple(self._feeds):
            data = self._read(feed)
            if data:
                got_some = True
                self._hand_on(feed, feed.lines.feed(data))
                if not await room():
                    return got_some
            elif feed.attempt < self._attempt:
                self._end(feed)
            if self._bars and feed.lines.redrawn:
                self._show_bar(feed)
        return got_some

    def finish(self) -> None:
        """Nobody writes any more and all is read: hand on the last lines without an end, close the files."""
        for feed in tuple(self._feeds):
            self._end(feed)

    def _read(self, feed: Feed) -> bytes:
        try:
            return feed.tail.poll()
        except OSError as err:
            self._complain(f"{feed.tail.path}: {os_error_text(err)}; rank {feed.rank}'s lines are not shown any more")
            self._end(feed)
            return b""

    def _end(self, feed: Feed) -> None:
        if feed not in self._feeds:
            return
        self._feeds.remove(feed)
        feed.tail.close()
        last = feed.lines.flush()
        if last is not None:
            self._hand_on(feed, (last,))

    def _hand_on(self, feed: Feed, lines: Sequence[Line]) -> None:
        if feed.bar_text and lines:
            # What was printed as the bar's state is not printed again as its last.
            printed, feed.bar_text = feed.bar_text, ""
            if lines[0].text == printed:
                lines = lines[1:]
        if lines:
            self._sink(feed, lines)

    def _show_bar(self, feed: Feed) -> None:
        now = self._clock.monotonic()
        pending = feed.lines.pending
        if pending is None or now - feed.bar_at < BAR_EVERY_S:
            return
        text = pending.text
        if text and text != feed.bar_text:
            feed.bar_at, feed.bar_text = now, text
            self._sink(feed, (pending,))
