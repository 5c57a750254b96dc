"""Small words of the console: spans, durations, fitting into cells. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.parse.ansi import cell_count, clean_label, first_cells

# A piece of text and its role; what a role looks like is decided where it is drawn.
Span = tuple[str, str]
Spans = list[Span]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Signs that this terminal can show. Shape says all; colour only repeats it."""

    running: str
    pending: str
    done: str
    failed: str
    stopped: str
    lost: str
    never: str
    cursor: str
    ellipsis: str
    dot: str
    rule: str
    bar: str
    thumb: str
    unicode: bool


UNICODE = Glyphs("●", "○", "✓", "✗", "■", "?", "–", "›", "…", "·", "─", "│", "█", unicode=True)
ASCII = Glyphs("*", "-", "=", "X", "#", "?", "_", ">", "~", "-", "-", "|", "#", unicode=False)


def plain_terminal(environ: Mapping[str, str]) -> bool:
    """True where the terminal's own colours shall be used: NO_COLOR, or a terminal that knows no others."""
    return bool(environ.get("NO_COLOR")) or environ.get("TERM", "") in ("", "dumb", "linux", "vt100", "vt220")


def glyphs_for(environ: Mapping[str, str]) -> Glyphs:
    """The signs for a terminal with this environment; ASCII where others might not be shown."""
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    utf8 = "utf-8" in locale.lower() or "utf8" in locale.lower()
    return UNICODE if utf8 and not plain_terminal(environ) else ASCII


def fit(text: str, cells: int, glyphs: Glyphs) -> str:
    """`text` in at most `cells` cells; where it is cut, an ellipsis says so."""
    if cells <= 0:
        return ""
    if cell_count(text) <= cells:
        return text
    return first_cells(text, cells - 1) + glyphs.ellipsis


def pad(text: str, cells: int, glyphs: Glyphs, *, right: bool = False) -> str:
    """`text` in exactly `cells` cells; `right`: aligned to the right."""
    text = fit(text, cells, glyphs)
    gap = " " * (cells - cell_count(text))
    return gap + text if right else text + gap


def width_of(spans: Iterable[Span]) -> int:
    """The cells that spans take."""
    return sum(cell_count(text) for text, _ in spans)


def clock_text(seconds: float | None) -> str:
    """`0:42:17`, `1d02h`; `-` for None."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    if days:
        return f"{days}d{rest // 3600:02d}h"
    return f"{rest // 3600}:{rest % 3600 // 60:02d}:{rest % 60:02d}"


def age_text(seconds: float | None) -> str:
    """`3s`, `12m`, `5h`, `2d`: never wider than 4 cells; `-` for None."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    if whole < 100:
        return f"{whole}s"
    if whole < 6000:
        return f"{whole // 60}m"
    if whole < 100 * 3600:
        return f"{whole // 3600}h"
    return f"{min(999, whole // 86400)}d"


def count_text(count: int, one: str) -> str:
    """`1 rank`, `4 ranks`."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def left_and_right(left: Spans, right: Spans, width: int) -> Spans:
    """Both on one row of `width` cells; the right part gives way where there is no room."""
    gap = width - width_of(left) - width_of(right)
    if gap < 1:
        return left
    return [*left, (" " * gap, ""), *right]


def label(text: str) -> str:
    """Foreign text for a cell: see `clean_label`."""
    return clean_label(text)
