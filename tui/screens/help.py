"""The list of keys."""

from __future__ import annotations

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import ModalScreen
from textual.strip import Strip

from tui.present.keys import help_rows
from tui.present.text import Glyphs, Spans, width_of
from tui.widgets.canvas import Canvas
from tui.widgets.paint import spans_strip

CLOSING = frozenset({"escape", "q", "question_mark", "f1", "enter", "ctrl+c"})
_FOOT: Spans = [("Up Down PgUp PgDn scroll, Esc closes", "dim")]


class HelpView(Canvas):
    """Rows that can be scrolled, and a last one that says how.

    Args:
        rows: what to show.
    """

    def __init__(self, rows: list[Spans]) -> None:
        super().__init__()
        self._rows = rows
        self._top = 0

    def fit_into(self, width: int, height: int) -> None:
        """Take what is needed of a screen of that size."""
        self.styles.width = min(max(map(width_of, [*self._rows, _FOOT])), max(1, width - 4))
        self.styles.height = min(len(self._rows) + 1, max(1, height - 2))
        self.scroll_rows(0)

    def scroll_rows(self, count: int) -> None:
        """Move by rows."""
        shown = max(1, self.size.height - 1)
        self._top = max(0, min(self._top + count, len(self._rows) - shown))
        self.refresh()

    def row(self, y: int, width: int, base: Style) -> Strip:
        """See `Canvas`."""
        if y == self.size.height - 1:
            return spans_strip(_FOOT, width, base)
        index = self._top + y
        return spans_strip(self._rows[index] if index < len(self._rows) else [], width, base)

    def on_mouse_scroll_up(self) -> None:
        """The wheel."""
        self.scroll_rows(-3)

    def on_mouse_scroll_down(self) -> None:
        """The wheel."""
        self.scroll_rows(3)


class Help(ModalScreen[None]):
    """All keys that work.

    Args:
        glyphs: what the terminal can show.
        read_only: without those that change the job.
    """

    def __init__(self, glyphs: Glyphs, *, read_only: bool) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._view = HelpView(help_rows(read_only=read_only))

    def compose(self) -> ComposeResult:
        """One box in the middle."""
        with Container(classes="box" if self._glyphs.unicode else "box ascii"):
            yield self._view

    def on_mount(self) -> None:
        """As large as needed."""
        self._view.fit_into(*self.size)

    def on_resize(self, event: events.Resize) -> None:
        """As large as needed."""
        self._view.fit_into(*event.size)

    def on_key(self, event: events.Key) -> None:
        """Scroll or close; nothing else happens while this is open."""
        event.stop()
        event.prevent_default()
        page = max(1, self._view.size.height - 2)
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page, "space": page}
        moves |= {"home": -10_000, "g": -10_000, "end": 10_000, "G": 10_000}
        if event.key in moves:
            self._view.scroll_rows(moves[event.key])
        elif event.key in CLOSING and self.is_current:
            self.dismiss(None)
