"""Roles, ANSI styles and spans as what Textual draws."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from rich.cells import cell_len, get_character_cell_size
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from engine.parse import ansi
from tui.present.text import Span

# The terminal's own 16 colours: Textual maps them onto its theme where one is used.
ROLES = {
    "": Style(),
    "dim": Style(dim=True),
    "strong": Style(bold=True),
    "good": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red", bold=True),
    "accent": Style(color="cyan"),
    "key": Style(color="cyan", bold=True),
    "phase-good": Style(color="green", bold=True, reverse=True),
    "phase-warn": Style(color="yellow", bold=True, reverse=True),
    "phase-bad": Style(color="red", bold=True, reverse=True),
    "chosen": Style(bold=True, reverse=True),
    "danger": Style(color="red", bold=True, reverse=True),
}


@lru_cache(maxsize=1024)
def ansi_style(style: ansi.Style) -> Style:
    """A rank's own colours."""
    return Style(
        color=_color(style.fg),
        bgcolor=_color(style.bg),
        bold=style.bold or None,
        dim=style.dim or None,
        italic=style.italic or None,
        underline=style.underline or None,
        reverse=style.reverse or None,
    )


def _color(color: ansi.Color | None) -> Color | None:
    if color is None:
        return None
    return Color.from_ansi(color) if isinstance(color, int) else Color.from_rgb(*color)


def spans_strip(spans: Iterable[Span], width: int, base: Style) -> Strip:
    """Spans as a strip of exactly `width` cells on the style `base`."""
    segments = [Segment(text, base + ROLES[role]) for text, role in spans if text]
    return Strip(segments).adjust_cell_length(width, base)


def over_all(strip: Strip, style: Style) -> Strip:
    """The strip with `style` on top of what each piece has."""
    return Strip([Segment(text, (own or Style()) + style) for text, own, _ in strip], strip.cell_length)


def line_strip(raw: bytes, max_cells: int, base: Style) -> Strip:
    """A log line as a strip as long as it is."""
    return Strip([Segment(text, base + ansi_style(style)) for text, style in ansi.styled(raw, max_cells)])


def wrap_points(text: str, width: int) -> list[int]:
    """Where the rows of a wrapped line begin, in cells; no wide character is cut in half. [0] at least."""
    width = max(1, width)
    total = cell_len(text)
    if total <= width:
        return [0]
    if total == len(text):
        return list(range(0, total, width))
    points, row, column = [0], 0, 0
    for char in text:
        size = get_character_cell_size(char)
        if row + size > width and row > 0:
            points.append(column)
            row = 0
        row += size
        column += size
    return points
