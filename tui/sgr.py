"""A rank's line with its colours and nothing else, for a terminal that we do not own."""

from __future__ import annotations

from engine.parse.ansi import PLAIN, Color, Style, plain, styled
from engine.parse.lines import MAX_LINE_BYTES

RESET = "\x1b[0m"
_FLAGS = (("bold", "1"), ("dim", "2"), ("italic", "3"), ("underline", "4"), ("reverse", "7"))


def coloured(raw: bytes) -> str:
    """The text of `plain` with SGR sequences of our own making, each piece closed, so that nothing leaks out."""
    if b"\x1b" not in raw:
        return plain(raw)
    return "".join(
        text if style == PLAIN else f"{_codes(style)}{text}{RESET}" for text, style in styled(raw, MAX_LINE_BYTES)
    )


def _codes(style: Style) -> str:
    codes = [code for name, code in _FLAGS if getattr(style, name)]
    codes += _color(style.fg, 30, 38) + _color(style.bg, 40, 48)
    return f"\x1b[{';'.join(codes)}m"


def _color(color: Color | None, first: int, extended: int) -> list[str]:
    if color is None:
        return []
    if isinstance(color, tuple):
        return [str(extended), "2", *map(str, color)]
    if color < 8:
        return [str(first + color)]
    return [str(first + 60 + color - 8)] if color < 16 else [str(extended), "5", str(color)]
