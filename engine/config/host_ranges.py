"""`node[01-16]` -> the names it stands for, by ClusterShell's NodeSet. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from engine.config.tree import quote

# More than any job has: what is beyond is a slip of the finger, and would fill the memory.
MAX_NAMES = 10_000

_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([0-9]{1,9}))?)?")


class RangeFault(Exception):
    """A range that cannot be. `text` and `hint` are the halves of a sentence for the user."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint


def expand_ranges(pattern: str) -> list[str]:
    """The names, in the order in which they are written; a pattern without brackets stands for itself.

    `node[1-3]`, `node[3,1]`, `node[01-16/5]` and several brackets (`rack[1-2]n[1-4]`) are known.

    Raises:
        RangeFault: a bracket is not closed, or holds something else than numbers.
    """
    if "[" not in pattern and "]" not in pattern:
        return [pattern]
    pieces = re.split(r"\[([^\[\]]*)\]", pattern)
    # Every second piece is what stood in brackets.
    if any("[" in piece or "]" in piece for piece in pieces[::2]):
        raise RangeFault(f"{quote(pattern)}: a bracket has no partner", "write it as in node[01-16]")
    brackets = [inside.split(",") for inside in pieces[1::2]]
    count = 1
    for parts in brackets:
        count *= sum(_count(part, pattern) for part in parts)
    if count > MAX_NAMES:
        raise RangeFault(f"{quote(pattern)} stands for {count} hosts", f"at most {MAX_NAMES} can be named in one entry")
    names: list[str] = []
    # Part by part: NodeSet itself sorts, and a user's order is the order of the ranks.
    for chosen in itertools.product(*brackets):
        words = [pieces[0]]
        for part, after in zip(chosen, pieces[2::2], strict=True):
            words += [f"[{part}]", after]
        names += _expand("".join(words), chosen, pattern)
    return names


def _count(part: str, pattern: str) -> int:
    """How many numbers one part of a bracket stands for."""
    found = _PART.fullmatch(part)
    if found is None:
        what = quote(part) if part else "nothing"
        raise RangeFault(f"{quote(pattern)}: expected numbers in brackets, got {what}", "write it as in node[01-16,20]")
    first, last, step = (None if text is None else int(text) for text in found.groups())
    assert first is not None
    if last is None:
        return 1
    if last < first:
        raise RangeFault(f"{quote(pattern)}: the range {part} ends before it begins", f"write {last}-{first}")
    if step == 0:
        raise RangeFault(f"{quote(pattern)}: the range {part} has a step of 0", "remove it, or write 1 or more")
    return (last - first) // (step or 1) + 1


def _expand(simple: str, parts: Sequence[str], pattern: str) -> list[str]:
    # It costs 0.1 s, and most configs have no range. Groups (`@all`) would run commands of a file in /etc: never.
    from ClusterShell.NodeSet import (  # pyright: ignore[reportMissingTypeStubs]
        RESOLVER_NOGROUP,  # pyright: ignore[reportUnknownVariableType]
        NodeSet,
        NodeSetException,
    )

    if not re.fullmatch(r"[\w.\[\]/-]+", simple):
        raise RangeFault(
            f"{quote(pattern)} cannot be a host's name",
            "names are made of letters, digits, dots, dashes and underscores",
        )
    try:
        return [str(name) for name in NodeSet(simple, resolver=RESOLVER_NOGROUP)]  # pyright: ignore
    except NodeSetException as err:
        for part in parts:
            if hint := _other_padding(part):
                raise RangeFault(f"{quote(pattern)}: the ends of {part} are padded differently", hint) from err
        raise RangeFault(f"{quote(pattern)} is no range of hosts ({err})", "write it as in node[01-16]") from err


def _other_padding(part: str) -> str:
    """What to write instead of `01-100`, which may be meant in two ways; "" where both ends have as many digits."""
    first, dash, last = part.partition("/")[0].partition("-")
    if not dash or len(first) == len(last):
        return ""
    if len(first) > len(last):
        return f"write {first}-{last.zfill(len(first))}, or {first.lstrip('0') or '0'}-{last}"
    return f"write {first.zfill(len(last))}-{last}, or {first}-{'9' * len(first)},1{'0' * len(first)}-{last}"
