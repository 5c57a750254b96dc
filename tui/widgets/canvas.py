"""Widgets that draw whole rows by themselves.

Textual's own way from a widget to the screen costs three times as much and lays the screen out anew when content
grows; here a row is a strip, and nothing else is computed.
"""

from __future__ import annotations

from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui.present.text import Spans
from tui.widgets.paint import spans_strip


class Canvas(Widget):
    """A widget of rows. Subclasses override `row`."""

    ALLOW_SELECT = False
    DEFAULT_CSS = "Canvas { width: 1fr; height: 1fr; }"

    def row(self, y: int, width: int, base: Style) -> Strip:
        """The row `y` (from 0), `width` cells wide, on the widget's own style."""
        raise NotImplementedError

    def render_line(self, y: int) -> Strip:
        """One row; Textual asks for it where it looks for what the mouse points at."""
        return self.render_lines(Region(0, y, self.size.width, 1))[0]

    def render_lines(self, crop: Region) -> list[Strip]:
        """All rows in `crop`, exactly as wide; the way around Textual's per-widget cache."""
        width, height = self.size
        base = self.rich_style
        filters = self.get_line_filters()
        background = self.background_colors[1]
        strips: list[Strip] = []
        for y in range(crop.y, crop.bottom):
            strip = self.row(y, width, base) if y < height else Strip.blank(width, base)
            strip = strip.adjust_cell_length(width, base)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            strips.append(strip.crop_extend(crop.x, crop.right, base))
        return strips


class Bar(Canvas):
    """One or more rows of spans; draws only when they change."""

    DEFAULT_CSS = "Bar { height: 1; }"

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name
        super().__init__(id=id)
        self._rows: list[Spans] = [[]]

    def show(self, *rows: Spans) -> None:
        """Show these rows from now on."""
        wanted = list(rows)
        if wanted != self._rows:
            self._rows = wanted
            self.refresh()

    @property
    def text(self) -> str:
        """What it says, without styles; rows end in "\\n"."""
        return "\n".join("".join(text for text, _ in row) for row in self._rows)

    def row(self, y: int, width: int, base: Style) -> Strip:
        """See `Canvas`."""
        return spans_strip(self._rows[y] if y < len(self._rows) else [], width, base)
