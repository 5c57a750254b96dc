"""Where a config's text comes from: the file or stdin, the files it extends, the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO, get_origin

from engine.config.locate import Unparsable, parse
from engine.config.mask import MASK, is_secret_name
from engine.config.shape import all_keys, choices, expected_at, merge, nearest, suggest_key, takes_list, takes_mapping
from engine.config.tree import (
    NULL_WORDS,
    Entry,
    Faults,
    Map,
    Mark,
    Node,
    Scalar,
    Seq,
    describe,
    dotted,
    quote,
)

# Far above any config, far below what would make reading it a wait.
MAX_BYTES = 512 * 1024
_OVERRIDES = 1_000_000  # sorts after every file
START = "`trainui init` writes a config to start from"


class Unreadable(Exception):
    """A file that cannot be read: what is wrong with it, and what to do (`otherwise`: for want of better)."""

    def __init__(self, text: str, hint: str = "", otherwise: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint
        self.otherwise = otherwise


class Files:
    """Reads a config and what it extends, each file once."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.seen: dict[str, Map] = {}
        self.open: list[str] = []  # the chain of files being read, for cycles
        self.number = 0

    def main(self, source: str, stdin: TextIO | None) -> Map | None:
        """The whole tree of `source` (`-`: stdin), bases merged in; None where there is none."""
        label = "stdin" if source == "-" else source or '""'
        start = Mark(label, (0, 0))
        try:
            text = read_stream(stdin) if source == "-" else read_file(source)
        except Unreadable as e:
            self.faults.add(start, "", e.text, e.hint or e.otherwise)
            return None
        folder = Path() if source == "-" else Path(source).parent
        return self.tree(text, label, folder, os.path.realpath(source) if source != "-" else "-")

    def tree(self, text: str, label: str, folder: Path, identity: str) -> Map | None:
        """One file's tree on top of its bases."""
        number = self.number
        self.number += 1
        try:
            root = parse(text, lambda line: Mark(f"{label}:{line + 1}", (number, line + 1)), self.faults)
        except Unparsable as e:
            self.faults.found.append(e.fault)
            return None
        if root is None or (isinstance(root, Scalar) and root.null):
            self.faults.add(Mark(label, (number, 0)), "", "empty", START)
            return None
        if not isinstance(root, Map):
            hint = "a config looks like `task: {command: [python, train.py]}`"
            self.faults.add(root.mark, "", f"expected keys and values, got {describe(root)}", hint)
            return None
        self.open.append(identity)
        own = Map({k: e for k, e in root.entries.items() if k != "extends"}, root.mark)
        for base in reversed(self.bases(root.entries.get("extends"), folder)):
            own = _on_top(own, base)
        self.open.pop()
        self.seen[identity] = own
        return own

    def bases(self, entry: Entry | None, folder: Path) -> list[Map]:
        """The trees of `extends`, in the order given."""
        if entry is None or (isinstance(entry.node, Scalar) and entry.node.null):
            return []
        items = entry.node.items if isinstance(entry.node, Seq) else (entry.node,)
        found: list[Map] = []
        for item in items:
            if not isinstance(item, Scalar) or not item.text:
                self.faults.add(item.mark, "extends", f"expected a file, or a list of files, got {describe(item)}")
            elif base := self.base(item.text, item.mark, folder):
                found.append(base)
        return found

    def base(self, name: str, mark: Mark, folder: Path) -> Map | None:
        # Not Path.expanduser: a home that nobody has is an error there, and here just no such file.
        path = os.path.normpath(folder / os.path.expanduser(name))  # noqa: PTH111
        identity = os.path.realpath(path)
        if identity in self.open:
            self.faults.add(mark, "extends", f"{quote(name)} extends this file again", "break the circle")
            return None
        if identity in self.seen:
            return self.seen[identity]
        try:
            text = read_file(path)
        except Unreadable as e:
            self.faults.add(mark, "extends", f"{path}: {e.text}", e.hint)
            return None
        return self.tree(text, path, Path(path).parent, identity)


def _on_top(over: Map, base: Map) -> Map:
    merged = merge(base, over)
    assert isinstance(merged, Map)  # of two mappings
    return merged


def read_file(source: str) -> str:
    """The text of a file.

    Raises:
        Unreadable: it is missing, a directory, not readable, too large, or no text.
    """
    if not source or "\0" in source:
        raise Unreadable("no such file")
    path = Path(source)
    try:
        if path.is_dir():
            raise Unreadable("a directory, not a config file", _choice(path))
        with path.open("rb") as file:
            return decode(file.read(MAX_BYTES + 1))
    except FileNotFoundError:
        raise Unreadable("no such file", _similar(path), START) from None
    except OSError as e:
        raise Unreadable(f"cannot be read: {e.strerror or e}") from None


def read_stream(stdin: TextIO | None) -> str:
    """The text on stdin, read as bytes where there are some, so that its encoding is checked."""
    stream: Any = stdin if stdin is not None else sys.stdin
    if stream is None:  # the process was started without one
        raise Unreadable("closed", "give a file")
    try:
        raw = getattr(stream, "buffer", None)
        data = raw.read(MAX_BYTES + 1) if raw is not None else stream.read(MAX_BYTES + 1)
    except UnicodeDecodeError:
        raise Unreadable("not UTF-8 text") from None
    except (OSError, ValueError) as e:  # ValueError: the stream is closed
        raise Unreadable(f"cannot be read: {e}") from None
    return decode(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)


def decode(data: bytes) -> str:
    """UTF-8, with or without a byte order mark."""
    if len(data) > MAX_BYTES:
        hint = "keep data in files of their own"
        raise Unreadable(f"larger than {MAX_BYTES // 1024} KiB, the most a config may have", hint)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise Unreadable(f"not UTF-8 text (line {line})", "save it as UTF-8") from None


def _configs_in(folder: Path) -> list[str]:
    try:
        return sorted(p.name for p in folder.iterdir() if p.suffix in (".yml", ".yaml"))
    except OSError:
        return []


def _choice(folder: Path) -> str:
    names = _configs_in(folder)
    return f'did you mean "{folder / names[0]}"?' if names else "give a YAML file in it"


def _similar(path: Path) -> str:
    names = _configs_in(path.parent)
    by_stem = {Path(name).stem: name for name in names}
    if not (name := by_stem.get(path.stem)):
        close = nearest(path.name, names) or nearest(path.stem, by_stem)
        name = by_stem.get(close, close) if close else None
    return f'did you mean "{path.parent / name}"?' if name else ""


def override_tree(words: Sequence[str], faults: Faults) -> Map:
    """`KEY=VALUE` words as one tree; later words win."""
    tree = Map({}, Mark("override", (_OVERRIDES, 0)))
    for number, word in enumerate(words, start=1):
        if (one := _override(word, number, faults)) is not None:
            tree = _on_top(one, tree)
    return tree


def _override(word: str, number: int, faults: Faults) -> Map | None:
    key, equals, value = word.partition("=")
    order = (_OVERRIDES, number)
    if not equals:
        hint = f'did you mean "{near}=..."?' if (near := _known(word)) else "write KEY=VALUE, such as stop.grace_s=5"
        faults.add(Mark(f"override {quote(word)}", order), "", "not an override", hint)
        return None
    keys = split_key(key)
    hidden = value != "" and any(is_secret_name(k) for k in keys or ())
    shown = MASK if hidden else value if len(value) <= 60 else value[:59] + "…"
    mark = Mark(f"override {key}={shown}", order)
    if not keys or not all(keys):
        faults.add(mark, "", "not an override", "write KEY=VALUE, such as stop.grace_s=5")
        return None
    if keys[0] == "extends":
        faults.add(mark, "extends", "cannot be overridden", "write it into the file")
        return None
    for depth in range(1, len(keys)):
        above = expected_at(keys[:depth])
        if above is None:
            break  # an unknown key; reported with everything else that is unknown
        if takes_list(above) and keys[depth].isdigit():
            whole = dotted(keys[:depth])
            faults.add(mark, whole, "a list is overridden as a whole", f"write {whole}=[...]")
            return None
    node = _override_value(keys, value, mark, faults)
    if node is None:
        return None
    for part in reversed(keys):
        node = Map({part: Entry(node, mark)}, mark)
    assert isinstance(node, Map)  # there is at least one key
    return node


def _known(word: str) -> str | None:
    """The key that a word without `=` was meant to set."""
    if word in all_keys():
        return word
    return suggest_key(word, all_keys()) if word.replace("_", "").replace(".", "").isalnum() else None


def split_key(key: str) -> tuple[str, ...] | None:
    """`cluster.node_overrides[gpu01.lab].cwd` -> its parts; None where the brackets do not match."""
    parts: list[str] = []
    rest = key.strip()
    while rest:
        if rest.startswith("["):
            inner, closed, rest = rest[1:].partition("]")
            if not closed or rest[:1] not in ("", ".", "["):
                return None
            parts.append(inner)
        else:
            cut = min((i for i in (rest.find("."), rest.find("[")) if i >= 0), default=len(rest))
            parts.append(rest[:cut])
            rest = rest[cut:]
        if rest.startswith("."):
            rest = rest[1:]
            if not rest:
                return None
    return tuple(parts)


def _override_value(keys: tuple[str, ...], value: str, mark: Mark, faults: Faults) -> Node | None:
    """What stands after `=`: YAML where a list or mapping is wanted, else the text as it stands."""
    hint = expected_at(keys)
    structured = hint is not None and (takes_list(hint) or takes_mapping(hint)) and value[:1] in ("[", "{")
    quoted = hint is not None and hint is not str and value[:1] in ('"', "'")
    if not (structured or quoted):
        text = hint is str and get_origin(hint) is None
        return Scalar(value, mark, null=value in NULL_WORDS and not text, quoted=text)
    try:
        node = parse(value, lambda _line: mark, faults)
    except Unparsable as e:
        if quoted and str in choices(hint):
            return Scalar(value, mark, quoted=True)  # a quote that belongs to the text
        faults.add(mark, dotted(keys), e.fault.text, e.fault.hint)
        return None
    if quoted and isinstance(node, Scalar) and not node.quoted:
        return Scalar(value, mark, quoted=True)
    return node
