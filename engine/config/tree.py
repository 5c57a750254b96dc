"""A config as it was written: text with its place, before anything is typed or resolved.

Scalars keep the text that stands in the file, so that `LR: 1e-3` reaches a rank as `1e-3`
and not as what YAML makes of it. Every key and value knows where it stands, so that a fault
can name file and line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

Path = tuple[str | int, ...]

# The words that YAML 1.1 reads as booleans; "y" and "n" alone are text, as in PyYAML.
TRUE_WORDS = frozenset({"true", "yes", "on"})
FALSE_WORDS = frozenset({"false", "no", "off"})
NULL_WORDS = frozenset({"", "~", "null", "Null", "NULL"})

_INT = re.compile(r"[-+]?[0-9](?:_?[0-9])*")
_FLOAT = re.compile(r"[-+]?(?:[0-9](?:_?[0-9])*\.?(?:[0-9](?:_?[0-9])*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_SHOWN = 60  # characters of a user's value that a fault repeats


@dataclass(frozen=True, slots=True)
class Mark:
    """A place: `cfg.yml:12`, or `override cluster.x=3`; `order` sorts faults as they are read."""

    where: str
    order: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value. `null` is true for a plain `null`, `~` or nothing at all."""

    text: str
    mark: Mark
    null: bool = False
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Seq:
    """A list."""

    items: tuple[Node, ...]
    mark: Mark


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its value; `mark` is the key's."""

    node: Node
    mark: Mark


@dataclass(frozen=True, slots=True)
class Map:
    """A mapping, in the order of the file."""

    entries: dict[str, Entry]
    mark: Mark


Node = Scalar | Seq | Map


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, at one place."""

    mark: Mark
    path: str
    text: str
    hint: str = ""

    def line(self) -> str:
        """`cfg.yml:12: cluster.nnodes: what is wrong; what would be right`, always one line."""
        said = self.text + (f"; {self.hint}" if self.hint else "")
        parts = (self.mark.where, self.path, said)
        return printable(": ".join(part for part in parts if part))


@dataclass(slots=True)
class Faults:
    """Everything found so far. `touched` are key paths about which enough was said."""

    found: list[Fault] = field(default_factory=list[Fault])
    touched: set[str] = field(default_factory=set[str])

    def add(self, mark: Mark, path: str, text: str, hint: str = "") -> None:
        self.found.append(Fault(mark, path, text, hint))
        self.touched.add(path)

    def covers(self, path: str) -> bool:
        """True when `path`, something in it, or something around it was faulted already."""
        return any(within(path, known) or within(known, path) for known in self.touched)

    def lines(self) -> list[str]:
        """One line each, without repetition, in the order in which the files are read."""
        ordered = sorted(self.found, key=lambda fault: fault.mark.order)
        return list(dict.fromkeys(fault.line() for fault in ordered))


def within(path: str, outer: str) -> bool:
    """True when `path` is `outer` or lies in it. The empty path (a whole file) holds nothing."""
    return path == outer or (outer != "" and path.startswith((outer + ".", outer + "[")))


def printable(text: str) -> str:
    """`text` on one line, with what a terminal would obey, or cannot show, written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def dotted(path: Path) -> str:
    """`("task", "command", 0)` -> `task.command[0]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def quote(text: str) -> str:
    """A user's text as a fault shows it: quoted, and cut where it is long."""
    return json.dumps(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…", ensure_ascii=False)


def describe(node: Node) -> str:
    """What was found, for `expected ..., got ...`."""
    if isinstance(node, Seq):
        return "a list"
    if isinstance(node, Map):
        return "a mapping"
    if node.null:
        return "nothing"
    plain = not node.quoted and not isinstance(plain_value(node.text), str)
    return node.text if plain else quote(node.text)


def plain_value(text: str) -> bool | int | float | str | None:
    """What an unquoted word means where the schema does not say (options of torchrun)."""
    if text in NULL_WORDS:
        return None
    if (truth := as_bool(text)) is not None:
        return truth
    if (whole := as_int(text)) is not None:
        return whole
    number = as_float(text)
    return text if number is None else number


def as_bool(text: str) -> bool | None:
    """The truth value of a YAML word; None for any other text."""
    word = text.lower()
    if word in TRUE_WORDS:
        return True
    return False if word in FALSE_WORDS else None


def as_int(text: str) -> int | None:
    """A decimal number (at most 18 digits); None for any other text."""
    return int(text) if len(text) <= 18 and _INT.fullmatch(text) else None


def as_float(text: str) -> float | None:
    """A number, `.inf` and `.nan` included; None for any other text."""
    if _INFINITE.fullmatch(text):
        return float(text.replace(".", "").lower())
    return float(text) if _FLOAT.fullmatch(text) else None


def walk(node: Node, path: Path = ()) -> Iterator[tuple[Path, Scalar]]:
    """Every scalar with its path, in order."""
    if isinstance(node, Scalar):
        yield path, node
    elif isinstance(node, Seq):
        for number, item in enumerate(node.items):
            yield from walk(item, (*path, number))
    else:
        for key, entry in node.entries.items():
            yield from walk(entry.node, (*path, key))


def marks(node: Node, path: Path = ()) -> Iterator[tuple[str, Mark]]:
    """The place of every key and list item, by dotted path: where `check`'s problems stand."""
    if isinstance(node, Seq):
        for number, item in enumerate(node.items):
            yield dotted((*path, number)), item.mark
            yield from marks(item, (*path, number))
    elif isinstance(node, Map):
        for key, entry in node.entries.items():
            yield dotted((*path, key)), entry.mark
            yield from marks(entry.node, (*path, key))
