"""The one screen: header, table, log, status, keys. Draws; decides nothing about the job."""

from __future__ import annotations

from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen

from engine.clock import Clock
from engine.job.snapshot import RankView, Snapshot
from tui.bridge import LastLines
from tui.present import header, keys
from tui.present.ranks import rank_rows
from tui.present.text import Glyphs, Spans, label, left_and_right
from tui.widgets.canvas import Bar
from tui.widgets.log_view import LogView
from tui.widgets.rank_table import RankTable

# From WIDE cells on, a table that does not fit above the log stands beside it; from WIDER on it always does:
# a log that is given half of a narrower screen loses the ends of its lines.
WIDE = 100
WIDER = 160
SMALLEST = (60, 15)
# Of the screen's height, what the table takes at most where it stands above the log.
TABLE_SHARE = 0.45


class MainScreen(Screen[None]):
    """What is shown of a run.

    Args:
        snapshot: to begin with.
        run_dir: where the logs are.
        glyphs: what the terminal can show.
        clock: for ages.
        read_only: the keys that change the job are not named.
    """

    def __init__(self, snapshot: Snapshot, run_dir: Path, glyphs: Glyphs, clock: Clock, *, read_only: bool) -> None:
        super().__init__()
        self.snapshot = snapshot
        self.zoomed = ""  # "", "table" or "log"
        self._run_dir = run_dir
        self._glyphs = glyphs
        self._clock = clock
        self._read_only = read_only
        self._lines = LastLines(run_dir)
        self._logs = {r.rank: r.log for r in snapshot.ranks}
        self._news: Spans = [("read-only: the job cannot be changed from here", "dim")] if read_only else []
        self._alarm: Spans = []
        self.header = Bar(id="header")
        self.table = RankTable(glyphs, self._last_line, id="table")
        self.log_title = Bar(id="log-title")
        self.verdict = Bar(id="verdict")
        self.log_view = LogView(glyphs, id="log")
        self.status = Bar(id="status")
        self.foot = Bar(id="foot")

    def compose(self) -> ComposeResult:
        """Everything is there from the start; classes decide what is visible."""
        yield self.header
        with Container(id="panes"):
            yield self.table
            with Container(id="log-pane"):
                yield self.log_title
                yield self.verdict
                yield self.log_view
        yield self.status
        yield self.foot

    def on_mount(self) -> None:
        """Begin with the first rank's log."""
        self.show(self.snapshot)
        (self.table if len(self.snapshot.ranks) > 1 else self.log_view).focus()

    def on_resize(self) -> None:
        """Choose the layout."""
        width, height = self.size
        small = width < SMALLEST[0] or height < SMALLEST[1]
        self.set_class(small, "small")
        tall = len(self.snapshot.ranks) + 1 > height * TABLE_SHARE
        self.set_class(width >= (WIDE if tall else WIDER) and not small, "wide")
        self.set_class(width >= WIDER and not small, "wider")
        self._size_table()
        if small:
            self.log_view.focus()
        self.draw()

    # What is shown

    def show(self, snapshot: Snapshot) -> None:
        """Show a newer snapshot."""
        self.snapshot = snapshot
        self._logs = {r.rank: r.log for r in snapshot.ranks}
        self.table.several_hosts = len(snapshot.nodes) > 1
        self._size_table()
        self.draw()
        self.follow_selection()

    def say(self, text: str, role: str = "") -> None:
        """The newest event, in the status line from the next drawing on."""
        self._news = [(label(text), role)]

    def alarm(self, text: str) -> None:
        """What is wrong with us, in the status line until it is over ("")."""
        self._alarm = [(label(text), "bad")] if text else []

    def draw(self) -> None:
        """Everything that follows from the snapshot and the time."""
        self.table.show(rank_rows(self.snapshot, self._clock.wall(), self._glyphs))
        self.draw_bars()

    def draw_bars(self) -> None:
        """Header, titles, status, keys."""
        now, width, snapshot = self._clock.wall(), self.size.width, self.snapshot
        second = header.second_row(snapshot, now, self._glyphs)
        self.header.set_class(bool(second), "two")
        self.header.show(header.title_row(snapshot, now, width, self._glyphs), second)
        cause = header.verdict_rows(snapshot, self.log_title.size.width or width, self._glyphs)
        self.verdict.set_class(bool(cause), "said")
        self.verdict.set_class(len(cause) > 1, "two")
        self.verdict.show(*cause)
        self.status.show(self._alarm or self._news)
        self.foot.show(keys.foot_row(width, snapshot, read_only=self._read_only))
        self.draw_log_title()

    def draw_log_title(self) -> None:
        """Which log, and where the view stands in it."""
        rank, log = self.selected, self.log_view
        if rank is None:
            self.log_title.show([("no rank", "dim")])
            return
        name = header.log_title(rank, several_hosts=len(self.snapshot.nodes) > 1)
        left: Spans = [(f" {name} ", "chosen" if log.has_focus else "strong")]
        right = header.log_state(following=log.following, living=not rank.state.final, unseen=log.unseen, wrap=log.wrap)
        place: Spans = [(f"{log.position}  ", "dim")] if log.position else []
        width = self.log_title.size.width or self.size.width
        both = left_and_right(left, [*place, *right, (" ", "")], width)
        self.log_title.show(both if len(both) > len(left) else left_and_right(left, [*right, (" ", "")], width))

    def tick_log(self) -> None:
        """Look for new lines."""
        self.log_view.tick()

    def tick_table(self, snapshot: Snapshot) -> None:
        """Look for new last lines, and show how time passes."""
        self._lines.next_round()
        self.show(snapshot)

    def on_descendant_focus(self) -> None:
        """The title shows where the keys go."""
        self.draw_log_title()

    def on_log_view_moved(self) -> None:
        """The title says where the view stands."""
        self.draw_log_title()

    # Which rank

    @property
    def selected(self) -> RankView | None:
        """The rank under the cursor."""
        rank = self.table.selected
        return next((r for r in self.snapshot.ranks if r.rank == rank), None)

    def select(self, rank: int) -> bool:
        """Put the cursor on a rank, and show its log; False where it is not in the table (yet)."""
        found = self.table.select(rank)
        self.follow_selection()
        return found

    def follow_selection(self) -> None:
        """Show the log of the rank under the cursor."""
        rank = self.selected
        if rank is not None:
            self.log_view.note = "never started" if rank.state == "never_started" else "nothing was written yet"
            if rank.state.final and rank.started_at is not None:
                self.log_view.note = "it wrote nothing"
            self.log_view.open(self._run_dir / rank.log)
        self.draw_log_title()

    def on_rank_table_selected(self) -> None:
        """The cursor moved."""
        self.follow_selection()

    def action_open_log(self) -> None:
        """Into the log, at once: the next key, which may be here already, is for it."""
        if self.zoomed:
            self.zoom("log")
        self.set_focus(self.log_view)

    def zoom(self, pane: str) -> None:
        """Give a pane ("table", "log") the screen; "" gives it back."""
        self.zoomed = pane
        self.set_class(pane == "table", "zoom-table")
        self.set_class(pane == "log", "zoom-log")
        self._size_table()
        if pane:
            self.set_focus(self.table if pane == "table" else self.log_view)

    def _last_line(self, rank: int) -> str:
        log = self._logs.get(rank)
        return "" if log is None else self._lines.text(log)

    def _size_table(self) -> None:
        """Stacked, the table is as high as it needs, up to its share; else the style sheet says it."""
        stacked = not self.has_class("wide") and self.zoomed != "table"
        most = max(2, int(self.size.height * TABLE_SHARE))
        self.table.styles.height = min(len(self.snapshot.ranks) + 1, most) if stacked else None
