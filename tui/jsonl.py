"""Headless for programs: stdout is JSON Lines only (docs/schema), sentences for people go to stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.clock import Clock, rfc3339
from engine.job.snapshot import Snapshot
from engine.parse.lines import Line
from tui.event_text import Event, Level
from tui.outlet import Outlet
from tui.pump import Feed
from tui.text_lines import Narrator

# Made once: `json.dumps` with arguments makes one for each call, which shows with a million lines.
_encode = json.JSONEncoder(separators=(",", ":")).encode


class JsonPrinter:
    """`event` and `log` objects as they come, one `summary` last.

    Progress bars come once, in their last state: an object for a program is never half a line, unless the log ends so.
    """

    def __init__(self, out: Outlet, narrator: Narrator, clock: Clock, *, quiet: bool = False) -> None:
        self.logs = not quiet
        self.bars = False
        self._out = out
        self._narrator = narrator
        self._clock = clock

    def lines(self, feed: Feed, lines: Sequence[Line]) -> None:
        """Lines of a log; `ts` is when we read them."""
        same = {
            "type": "log",
            "ts": rfc3339(self._clock.wall()),
            "host": feed.host,
            "rank": feed.rank,
            "attempt": feed.attempt,
        }
        partial = {"partial": True}
        self._write(
            *(
                {**same, "line_no": line.number, "text": line.text, **(partial if line.partial else {})}
                for line in lines
            )
        )

    def events(self, batch: Sequence[Event], snapshot: Snapshot) -> None:
        """Life-cycle events as they stand in events.jsonl."""
        for event in batch:
            self._write({"type": "event", **event})

    def say(self, text: str, level: Level = Level.WARNING) -> None:
        """A sentence for people: stderr."""
        self._narrator.say(text, level)

    def summary(self, snapshot: Snapshot) -> None:
        """The last line."""
        self._write({"type": "summary", **snapshot.to_json(self._clock.wall())})

    def left(self, snapshot: Snapshot) -> None:
        """The last line is a summary also where the job runs on; its phase says so."""
        self.summary(snapshot)

    def _write(self, *records: Mapping[str, Any]) -> None:
        self._out.put("".join(f"{_encode(record)}\n" for record in records))
