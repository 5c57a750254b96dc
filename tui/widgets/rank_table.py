"""The table of ranks: only visible rows are drawn, and only those that changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from tui.present.ranks import Row, choose_columns, head_text, row_spans
from tui.present.text import UNICODE, Glyphs
from tui.widgets.canvas import Canvas
from tui.widgets.paint import over_all, spans_strip

WHEEL_ROWS = 3


class RankTable(Canvas, can_focus=True):
    """Rows of ranks under a head row, with a cursor.

    Args:
        glyphs: what the terminal can show.
        last_line: the last line of a rank's log, asked for visible rows only.
        id: Textual's id.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "first", show=False),
        Binding("end,G", "last", show=False),
        Binding("enter,l", "screen.open_log", show=False),
    ]

    class Selected(Message):
        """Another rank is under the cursor."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    def __init__(
        self,
        glyphs: Glyphs = UNICODE,
        last_line: Callable[[int], str] = lambda _: "",
        *,
        id: str | None = None,  # noqa: A002  Textual's name
    ) -> None:
        super().__init__(id=id)
        self.glyphs = glyphs
        self.several_hosts = False
        self._last_line = last_line
        self._rows: Sequence[Row] = ()
        self._drawn: dict[int, tuple[object, ...]] = {}  # what each visible row shows, by its y
        self._cursor = 0
        self._top = 0

    @property
    def selected(self) -> int | None:
        """The rank under the cursor."""
        return self._rows[self._cursor].rank if self._cursor < len(self._rows) else None

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows; the cursor stays on its rank."""
        rank = self.selected
        self._rows = rows
        self._cursor = next((i for i, row in enumerate(rows) if row.rank == rank), 0)
        self._scroll_to_cursor()
        self._refresh_changed()

    def select(self, rank: int) -> bool:
        """Put the cursor on a rank; False where there is none of that number."""
        for index, row in enumerate(self._rows):
            if row.rank == rank:
                self._go(index)
                return True
        return False

    def action_move(self, count: int) -> None:
        """Move the cursor by rows."""
        self._go(self._cursor + count)

    def action_page(self, direction: int) -> None:
        """Move the cursor by a page."""
        self._go(self._cursor + direction * max(1, self.size.height - 2))

    def action_first(self) -> None:
        """To the first rank."""
        self._go(0)

    def action_last(self) -> None:
        """To the last rank."""
        self._go(len(self._rows) - 1)

    async def on_click(self, event: events.Click) -> None:
        """A click selects, two open."""
        index = self._top + event.y - 1
        if event.y >= 1 and index < len(self._rows):
            self._go(index)
            if event.chain == 2:
                await self.run_action("screen.open_log")

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel."""
        event.stop()
        self._go(self._cursor - WHEEL_ROWS)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel."""
        event.stop()
        self._go(self._cursor + WHEEL_ROWS)

    def on_resize(self) -> None:
        """Other rows fit now."""
        self._scroll_to_cursor()
        self._drawn.clear()
        self.refresh()

    def on_focus(self) -> None:
        """The cursor looks different."""
        self._drawn.clear()

    def on_blur(self) -> None:
        """The cursor looks different."""
        self._drawn.clear()

    def row(self, y: int, width: int, base: Style) -> Strip:
        """See `Canvas`."""
        columns, last = choose_columns(width, several_hosts=self.several_hosts)
        if y == 0:
            return spans_strip([(head_text(columns, last, self.glyphs), "dim")], width, base)
        index = self._top + y - 1
        if index >= len(self._rows):
            return Strip.blank(width, base)
        row = self._rows[index]
        here = index == self._cursor
        words = self._last_line(row.rank) if last else ""
        spans = row_spans(row, columns, last, words, self.glyphs, cursor=here)
        if here and self.has_focus:  # on one bar; the signs say what the colours said
            bar = spans_strip(
                [(text, "strong" if role in ("strong", "bad") else "") for text, role in spans], width, base
            )
            return over_all(bar, Style(reverse=True))
        return spans_strip(spans, width, base)

    def _shown(self, y: int) -> tuple[object, ...]:
        index = self._top + y - 1
        if index >= len(self._rows):
            return ()
        row = self._rows[index]
        return (row, index == self._cursor, self._last_line(row.rank))

    def _refresh_changed(self) -> None:
        """Draw the rows that changed; all of them where most did: one big update is cheaper than many."""
        height = max(0, self.size.height - 1)
        shown = {y: self._shown(y) for y in range(1, height + 1)}
        changed = [y for y, what in shown.items() if self._drawn.get(y) != what]
        self._drawn = shown
        if len(changed) * 3 > height:
            self.refresh()
        elif changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def _go(self, index: int) -> None:
        index = max(0, min(index, len(self._rows) - 1))
        if self._rows and index != self._cursor:
            self._cursor = index
            self._scroll_to_cursor()
            self._refresh_changed()
            self.post_message(self.Selected(self._rows[index].rank))

    def _scroll_to_cursor(self) -> None:
        height = max(1, self.size.height - 1)
        self._top = max(0, min(self._top, max(0, len(self._rows) - height)))
        if self._cursor < self._top:
            self._top = self._cursor
        elif self._cursor >= self._top + height:
            self._top = self._cursor - height + 1
