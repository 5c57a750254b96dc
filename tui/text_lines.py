"""Headless for people: prefixed log lines and the summary on stdout, life-cycle lines on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.clock import Clock
from engine.job.snapshot import Snapshot
from engine.logs.tail import LogTail, start_of_last_lines
from engine.parse.lines import Line, LineAssembler
from tui.event_text import Event, Level, notes
from tui.outlet import Outlet
from tui.pump import Feed
from tui.render_text import Prefixes, clean, paint, summary
from tui.sgr import coloured

# How much of the log of the rank that failed first stands in the summary.
LAST_LINES = 10
_LEVEL_COLOURS = {Level.WARNING: "\x1b[33m", Level.ERROR: "\x1b[31m"}


class Narrator:
    """Our own sentences on stderr, each on a line that begins with `trainui:`."""

    def __init__(self, err: Outlet, least: Level, color: bool) -> None:
        self._err = err
        self._least = least
        self._color = color

    def say(self, text: str, level: Level = Level.WARNING) -> None:
        """Say it, unless `--log-level` asked for more important things only."""
        if level >= self._least:
            for line in text.split("\n"):
                self._err.put(f"trainui: {paint(clean(line), _LEVEL_COLOURS.get(level, ''), self._color)}\n")


class TextPrinter:
    """Lines for people.

    Args:
        out: stdout.
        narrator: stderr.
        clock: for what has not ended in the summary.
        first: the snapshot we begin with; what happened in earlier attempts is not told.
        color: True where stdout is a terminal that wants colours.
        quiet: no log lines.
    """

    def __init__(
        self, out: Outlet, narrator: Narrator, clock: Clock, first: Snapshot, *, color: bool, quiet: bool = False
    ) -> None:
        self.logs = not quiet
        self.bars = True
        self._out = out
        self._narrator = narrator
        self._clock = clock
        self._color = color
        self._prefixes = Prefixes.of([(r.host, r.rank) for r in first.ranks], color)
        self._first_attempt = first.attempt
        self._telling = False
        self._faults: set[tuple[object, ...]] = set()

    def lines(self, feed: Feed, lines: Sequence[Line]) -> None:
        """`host:rank | text`."""
        prefix = self._prefixes.text(feed.host, feed.rank)
        texts = (coloured(line.raw) if self._color else line.text for line in lines)
        self._out.put("".join(f"{prefix}{text}\n" for text in texts))

    def events(self, batch: Sequence[Event], snapshot: Snapshot) -> None:
        """Tell what happened, from the beginning of the attempt that we came in."""
        told: list[Event] = []
        for event in batch:
            if event.get("event") == "attempt_started" and event.get("attempt", 0) >= self._first_attempt:
                self._telling = True
            if self._telling:
                told.append(self._fault_once(event))
        for note in notes(told, [node.host for node in snapshot.nodes]):
            self._narrator.say(note.text, note.level)

    def _fault_once(self, event: Event) -> Event:
        """A node repeats its fault with every phase up to its end: what it says the second time is the phase."""
        if event.get("event") != "node_phase" or not event.get("error"):
            return event
        fault = (event.get("node_rank"), event.get("attempt"), event["error"])
        if fault in self._faults:
            return {**event, "error": None}
        self._faults.add(fault)
        return event

    def say(self, text: str, level: Level = Level.WARNING) -> None:
        """A sentence of our own."""
        self._narrator.say(text, level)

    def summary(self, snapshot: Snapshot) -> None:
        """The table, the verdict with the last lines of its rank, the run directory."""
        self._out.put(summary(snapshot, self._clock.wall(), self._color, last_words(snapshot)))

    def left(self, snapshot: Snapshot) -> None:
        """Nothing: the sentence on stderr says it all."""


def last_words(snapshot: Snapshot) -> list[str]:
    """The last lines of the log of the rank that failed first, as text; [] where there are none."""
    cause = snapshot.root_cause
    rank = next((r for r in snapshot.ranks if cause is not None and r.rank == cause.rank), None)
    if rank is None:
        return []
    path = Path(snapshot.run_dir) / rank.log
    try:
        start, end = start_of_last_lines(path, LAST_LINES)
        tail = LogTail(path, start)
        data = tail.poll(min(end - start, 64 * 1024))
        tail.close()
    except OSError:
        return []  # the summary must come even where the disk is gone
    lines = LineAssembler()
    found = lines.feed(data)
    last = lines.flush()
    return [line.text for line in [*found, *([last] if last else [])] if line.text.strip()]
