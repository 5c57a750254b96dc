"""The log of one rank: opens at its end, follows, stands still while paused, of any size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip

from engine.logs.index import LogIndex
from engine.parse.ansi import MAX_CELLS
from tui.present.text import UNICODE, Glyphs
from tui.widgets.canvas import Canvas
from tui.widgets.paint import ROLES, line_strip, over_all, wrap_points
from tui.widgets.viewport import Row, Viewport

WHEEL_ROWS = 3
SIDE_CELLS = 8
_CACHED_LINES = 512


class _Line(NamedTuple):
    strip: Strip
    points: list[int]  # where its rows begin, in cells


class LogView(Canvas, can_focus=True):
    """A window onto a log file.

    Args:
        glyphs: what the terminal can show.
        id: Textual's id.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_rows(-1)", show=False),
        Binding("down,j", "scroll_rows(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "first", show=False),
        Binding("left,h", "side(-1)", show=False),
        Binding("right,l", "side(1)", show=False),
        Binding("circumflex_accent", "column_0", show=False),
    ]

    class Moved(Message):
        """Following began or ended, or the view moved."""

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:  # noqa: A002  Textual's name
        super().__init__(id=id)
        self.glyphs = glyphs
        self.wrap = False
        self.left = 0
        self.note = ""  # shown instead of an empty log
        self.log_index: LogIndex | None = None
        self._view: Viewport | None = None
        self._rows: list[Row] = []
        self._lines: OrderedDict[tuple[int, int, int, int], _Line] = OrderedDict()
        self._base = Style()
        self._stale = True

    # What the console says

    @property
    def following(self) -> bool:
        """True while the end of the log stays visible."""
        return self._view is None or self._view.following

    @property
    def path(self) -> Path | None:
        """Which log is shown."""
        return None if self.log_index is None else self.log_index.path

    @property
    def unseen(self) -> str:
        """What came since the view was paused, as `12` lines or `3.4 MB`; "" for nothing."""
        if self._view is None or self._view.following or self._view.new_bytes == 0:
            return ""
        lines = self._view.new_lines
        return _size_text(self._view.new_bytes) if lines is None else f"{lines:,}" if lines else ""

    @property
    def position(self) -> str:
        """`line 12/340`; a percentage while the log is not counted yet."""
        log, view = self.log_index, self._view
        if log is None or view is None or not self._rows or log.size == 0:
            return ""
        last = self._rows[-1].start
        number = log.number_at(last) if log.complete else None
        if number is None:
            return f"{100 * last // log.size}%"
        total = log.number_at(log.last_start() or 0) or 0
        return f"{number:,}/{total:,}"

    def open(self, path: Path) -> None:
        """Show another log, at its end. The same path again changes nothing."""
        if self.path == path:
            return
        self.close()
        self.log_index = LogIndex(path)
        self.log_index.refresh()
        self._view = Viewport(self.log_index, self._parts)
        self.left = 0
        self._relayout()

    def close(self) -> None:
        """Let go of the file."""
        if self.log_index is not None:
            self.log_index.close()
        self.log_index = self._view = None
        self._lines.clear()
        self._rows = []

    def on_unmount(self) -> None:
        """Let go of the file."""
        self.close()

    def tick(self) -> None:
        """Look whether the log grew; draw only what is visible, and only if it changed."""
        if self.log_index is None:
            return
        counting = not self.log_index.complete
        changed = self.log_index.refresh()
        if changed:
            self._relayout()
        elif counting:
            self.post_message(self.Moved())

    def set_follow(self) -> None:
        """To the end, and stay there."""
        self._move(lambda view: view.end())

    def toggle_wrap(self) -> None:
        """Wrap long lines, or cut them at the edge."""
        self.wrap = not self.wrap
        self.left = 0
        self._lines.clear()
        self._move(lambda view: view.rewrapped())

    # Actions of the keys

    def action_scroll_rows(self, count: int) -> None:
        """Move by rows."""
        self._move(lambda view: view.scroll(count))

    def action_page(self, direction: int) -> None:
        """Move by a page, keeping one row of the old one."""
        self._move(lambda view: view.scroll(direction * max(1, self.size.height - 1)))

    def action_first(self) -> None:
        """To the very first line."""
        self._move(lambda view: view.home())

    def action_side(self, direction: int) -> None:
        """Move to the side."""
        if not self.wrap:
            longest = max((self._line(row.start).strip.cell_length for row in self._rows), default=0)
            most = max(self.left, longest - self.size.width + 1)
            self.left = max(0, min(self.left + direction * SIDE_CELLS, most))
            self._relayout()

    def action_column_0(self) -> None:
        """Back to column 0."""
        self.left = 0
        self._relayout()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel."""
        event.stop()
        self._move(lambda view: view.scroll(-WHEEL_ROWS))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel."""
        event.stop()
        self._move(lambda view: view.scroll(WHEEL_ROWS))

    def on_resize(self) -> None:
        """Other rows fit now."""
        self._lines.clear()
        self._relayout()

    # Selecting: what is selected are rows of the screen, so only while they stand still.

    @property
    def allow_select(self) -> bool:
        """Text that moves on cannot be selected."""
        return not self.following

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, of the visible rows only."""
        if self.following:
            return None
        text = "\n".join(self._row_strip(row, self.size.width - 1, self._base).text.rstrip() for row in self._rows)
        return selection.extract(text), "\n"

    # Drawing

    def row(self, y: int, width: int, base: Style) -> Strip:
        """See `Canvas`."""
        if self._base != base:
            self._base = base
            self._lines.clear()
        text_width = width - 1
        if y < len(self._rows):
            strip = self._row_strip(self._rows[y], text_width, base).adjust_cell_length(text_width, base)
            if not self.following:
                strip = self._selectable(strip, y)
        elif y == 0 and not self._rows:
            strip = Strip([Segment(self._empty_text(), base + ROLES["dim"])]).adjust_cell_length(text_width, base)
        else:
            strip = Strip.blank(text_width, base)
        return Strip([*strip, self._scrollbar(y, base)])

    def _selectable(self, strip: Strip, y: int) -> Strip:
        selection = self.text_selection
        span = None if selection is None else selection.get_span(y)
        if span is not None:
            text = strip.text  # a span counts characters, a strip counts cells
            start = cell_len(text[: span[0]])
            end = strip.cell_length if span[1] == -1 else cell_len(text[: span[1]])
            marked = over_all(strip.crop(start, end), Style(reverse=True))
            strip = Strip.join([strip.crop(0, start), marked, strip.crop(end, strip.cell_length)])
        return strip.apply_offsets(0, y)

    def _row_strip(self, row: Row, width: int, base: Style) -> Strip:
        line = self._line(row.start, base)
        if not self.wrap:
            return line.strip.crop(self.left, self.left + width)
        first = line.points[row.part] if row.part < len(line.points) else line.strip.cell_length
        return line.strip.crop(first, line.points[row.part + 1] if row.part + 1 < len(line.points) else None)

    def _scrollbar(self, y: int, base: Style) -> Segment:
        log, height = self.log_index, self.size.height
        if log is None or log.size == 0 or not self._rows or height < 2:
            return Segment(" ", base)
        first, last = self._rows[0].start, self._rows[-1].start
        top = min(height - 1, first * height // log.size)
        bottom = height - 1 if self.following else min(height - 1, max(top, last * height // log.size))
        if first == 0 and bottom == height - 1:
            return Segment(" ", base)
        inside = top <= y <= bottom
        return Segment(self.glyphs.thumb if inside else self.glyphs.bar, base + ROLES["accent" if inside else "dim"])

    def _empty_text(self) -> str:
        error = None if self.log_index is None else self.log_index.error
        return f"the log cannot be read: {error}" if error else self.note

    def _line(self, start: int, base: Style | None = None) -> _Line:
        assert self.log_index is not None
        end = self.log_index.line_end(start)[0]
        width = max(1, self.size.width - 1)
        cells = MAX_CELLS
        while cells < self.left + width:  # far to the side of a very long line
            cells *= 2
        key = (start, end, cells, width if self.wrap else 0)
        line = self._lines.get(key)
        if line is None:
            strip = line_strip(self.log_index.read(start, end), cells, self._base if base is None else base)
            line = _Line(strip, wrap_points(strip.text, width) if self.wrap else [0])
            self._lines[key] = line
            if len(self._lines) > _CACHED_LINES:
                self._lines.popitem(last=False)
        else:
            self._lines.move_to_end(key)
        return line

    def _parts(self, start: int) -> int:
        return len(self._line(start).points) if self.wrap else 1

    def _move(self, how: Callable[[Viewport], object]) -> None:
        if self._view is not None:
            how(self._view)
            if self.text_selection is not None:
                self.screen.clear_selection()
            self._relayout()

    def _relayout(self) -> None:
        if self._view is not None:
            if self._view.log.generation and self._lines:
                self._lines.clear()  # offsets may mean other lines now
            self._view.height = max(1, self.size.height)
            self._rows = self._view.rows()
        self.refresh()
        self.post_message(self.Moved())


def _size_text(size: int) -> str:
    """`12 kB`, `3.4 MB`."""
    return f"{max(1, size // 1000)} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"
