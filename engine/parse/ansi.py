"""Text from strangers -> text that is safe to draw. Pure.

A log line may hold anything: colours, cursor movements, title changes, clipboard writes, invalid UTF-8. Of all that
only the text and its colours survive. Every place that draws foreign text goes through one of the three functions
here: `plain` (text), `styled` (text with colours), `clean_label` (titles, cells, messages).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace

TAB_CELLS = 8
# What a line shows at most, in terminal cells; nobody reads further, and a 1 MB line costs 100 ms.
MAX_CELLS = 4096
# A cell is at most one character of 4 bytes and what combines with it; escapes come on top.
_BYTES_PER_CELL = 16
# How far back a redrawn line is searched for something visible, and for a colour that was left on.
_MAX_REDRAWS = 256
_CARRY_BYTES = 16 * 1024

# Bidi controls and line separators move text about on some terminals.
_UNWANTED = "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
# ECMA-48: control strings end at ST (or BEL, for OSC) and are cut short by CAN, SUB and ESC. Whatever is unfinished
# is swallowed as far as it goes. The last alternatives take every ESC and control that is left, so none can pass.
_ESCAPES = (
    r"(?:\x1b\]|\x9d)[^\x07\x18\x1a\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC: titles, links, the clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x18\x1a\x1b\x9c]*(?:\x1b\\|\x9c)?"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)(?P<sgr>[0-9;:]*)m"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS = rf"[\x00-\x08\x0a-\x1f\x7f-\x9f{_UNWANTED}]"
_FOREIGN = re.compile(f"{_ESCAPES}|{_CONTROLS}")
_SGR = re.compile(r"(?:\x1b\[|\x9b)([0-9;:]*)m")
# Terminals and width tables disagree about these, which would shift the rest of the row: an emoji stays one without.
_WIDTH_TROUBLE = re.compile("[\ufe0f\U0001f3fb-\U0001f3ff]")
_SPECIAL_BYTES = re.compile(rb"[^\x20-\x7e]")

# 0-15: the terminal's own 16 colours; 16-255: the xterm palette; a triple: red, green, blue.
Color = int | tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Style:
    """How a piece of text looks. None: the terminal's default colour."""

    fg: Color | None = None
    bg: Color | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    reverse: bool = False


PLAIN = Style()
DIM = Style(dim=True)


def plain(raw: bytes) -> str:
    """What a terminal would show of one line: no escapes, the last state of a `\\r` bar, tabs as spaces."""
    if not _SPECIAL_BYTES.search(raw):
        return raw.decode("ascii")
    start, end = visible_part(raw)
    text = _FOREIGN.sub("", raw[start:end].decode("utf-8", "replace"))
    return expand_tabs(text) if "\t" in text else text


def styled(raw: bytes, max_cells: int = MAX_CELLS) -> list[tuple[str, Style]]:
    """The same as `plain`, in pieces with their colours; cut behind `max_cells`, with a dim note of what is missing.

    Emoji modifiers are dropped too: this is text for a grid.
    """
    start, end = visible_part(raw)
    looked_at = min(end, start + max_cells * _BYTES_PER_CELL)
    text = raw[start:looked_at].decode("utf-8", "replace")
    style = _style_before(raw, start) if start else PLAIN
    pieces: list[tuple[str, Style]] = []
    column = done = 0
    for match in _FOREIGN.finditer(text):
        column = _put(pieces, text[done : match.start()], style, column)
        done = match.end()
        if match["sgr"] is not None:
            style = apply_sgr(style, match["sgr"])
        if column > max_cells:
            break
    else:
        column = _put(pieces, text[done:], style, column)
    if column <= max_cells and looked_at == end:
        return pieces
    kept = _first_cells(pieces, max_cells)
    hidden = end - start - sum(len(piece.encode()) for piece, _ in kept)
    return [*kept, (f" ... {max(hidden, 1):,} bytes more", DIM)]


def clean_label(text: str) -> str:
    """Foreign text for a title, a cell or a message: one line, no escapes, nothing that shifts its row."""
    spaced = re.sub(r"[\t\n\v\f\r]+", " ", text)
    safe = _FOREIGN.sub("", spaced).encode("utf-8", "replace").decode("utf-8")
    return _WIDTH_TROUBLE.sub("", safe)


def visible_start(raw: bytes) -> int:
    """Where the last segment between `\\r` begins that shows anything (an offset in bytes)."""
    return visible_part(raw)[0]


def visible_part(raw: bytes) -> tuple[int, int]:
    """Where the last segment between `\\r` that shows anything begins and ends (offsets in bytes)."""
    if b"\r" not in raw:
        return 0, len(raw)
    stop = len(raw.rstrip(b"\r \t\n"))
    for _ in range(_MAX_REDRAWS):
        start = raw.rfind(b"\r", 0, stop) + 1
        segment = raw[start : min(stop, start + MAX_CELLS * _BYTES_PER_CELL)]
        if _FOREIGN.sub("", segment.decode("utf-8", "replace")).strip() or start == 0:
            break
        stop = start - 1
    else:
        return stop, stop
    end = raw.find(b"\r", start)
    return start, len(raw) if end < 0 else end


def expand_tabs(text: str, column: int = 0) -> str:
    """Tabs become spaces up to the next multiple of 8 cells; `column`: where the text begins, in cells."""
    parts: list[str] = []
    for index, part in enumerate(text.split("\t")):
        if index:
            gap = TAB_CELLS - column % TAB_CELLS
            parts.append(" " * gap)
            column += gap
        parts.append(part)
        column += cell_count(part)
    return "".join(parts)


def cell_count(text: str) -> int:
    """How many terminal cells `text` takes: 2 for wide characters, 0 for what combines with others."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _put(pieces: list[tuple[str, Style]], text: str, style: Style, column: int) -> int:
    """Append a piece; returns the column behind it."""
    text = _WIDTH_TROUBLE.sub("", text)
    if not text:
        return column
    if "\t" in text:
        text = expand_tabs(text, column)
    if pieces and pieces[-1][1] == style:
        pieces[-1] = (pieces[-1][0] + text, style)
    else:
        pieces.append((text, style))
    return column + cell_count(text)


def _first_cells(pieces: list[tuple[str, Style]], room: int) -> list[tuple[str, Style]]:
    """The pieces as far as they fit into `room` cells."""
    kept: list[tuple[str, Style]] = []
    for text, style in pieces:
        head = first_cells(text, room)
        if head:
            kept.append((head, style))
        if len(head) < len(text):
            break
        room -= cell_count(head)
    return kept


def first_cells(text: str, cells: int) -> str:
    """The longest beginning of `text` that fits into `cells`."""
    if text.isascii():
        return text[:cells]
    used = 0
    for index, char in enumerate(text):
        used += _cells(char)
        if used > cells:
            return text[:index]
    return text


def _style_before(raw: bytes, start: int) -> Style:
    """The style that the segments before `start` left on: a bar sets its colour once and redraws."""
    style = PLAIN
    earlier = raw[max(0, start - _CARRY_BYTES) : start]
    if b"\x1b[" in earlier:
        for codes in _SGR.findall(earlier.decode("utf-8", "replace")):
            style = apply_sgr(style, codes)
    return style


def apply_sgr(style: Style, codes: str) -> Style:
    """`style` after SGR with these parameters ("1;31", "38;2;1;2;3", "38:5:9"); what it does not know is ignored."""
    numbers = [[_number(part) for part in group.split(":")] for group in codes.split(";")]
    index = 0
    while index < len(numbers):
        group = numbers[index]
        index += 1
        code = group[0]
        if code in (38, 48, 58):
            if len(group) > 1:
                color = _color(group[1:2] + (group[-3:] if group[1] == 2 else group[2:3]))
            else:
                rest = [g[0] for g in numbers[index : index + 4]]
                color = _color(rest)
                index += {5: 2, 2: 4}.get(rest[0] if rest else -1, 0)
            if color is not None and code != 58:
                style = replace(style, fg=color) if code == 38 else replace(style, bg=color)
        elif code == 4 and len(group) > 1:
            style = replace(style, underline=group[1] != 0)
        else:
            style = _simple(style, code)
    return style


def _number(text: str) -> int:
    return 0 if not text else int(text) if len(text) <= 4 else -1


def _color(parts: list[int]) -> Color | None:
    """`5, n` or `2, r, g, b` as a colour; None where it is neither."""
    if len(parts) >= 2 and parts[0] == 5 and 0 <= parts[1] <= 255:
        return parts[1]
    if len(parts) >= 4 and parts[0] == 2 and all(0 <= value <= 255 for value in parts[1:4]):
        return (parts[1], parts[2], parts[3])
    return None


def _simple(style: Style, code: int) -> Style:
    """The SGR codes of one number."""
    match code:
        case 0:
            return PLAIN
        case 1:
            return replace(style, bold=True)
        case 2:
            return replace(style, dim=True)
        case 3:
            return replace(style, italic=True)
        case 4 | 21:
            return replace(style, underline=True)
        case 7:
            return replace(style, reverse=True)
        case 22:
            return replace(style, bold=False, dim=False)
        case 23:
            return replace(style, italic=False)
        case 24:
            return replace(style, underline=False)
        case 27:
            return replace(style, reverse=False)
        case 39:
            return replace(style, fg=None)
        case 49:
            return replace(style, bg=None)
        case _:
            return _palette(style, code)


def _palette(style: Style, code: int) -> Style:
    """The 16 colours: 30-37, 90-97 as text, 40-47, 100-107 behind it."""
    for first, base, text in ((30, 0, True), (90, 8, True), (40, 0, False), (100, 8, False)):
        if first <= code <= first + 7:
            color = code - first + base
            return replace(style, fg=color) if text else replace(style, bg=color)
    return style
