"""YAML text -> a tree in which everything knows its line (`tree.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.config.tree import NULL_WORDS, Entry, Fault, Faults, Map, Mark, Node, Scalar, Seq, plain_value

MAX_DEPTH = 24  # the schema itself is 4 deep
MAX_NODES = 100_000  # aliases of aliases grow without bound; no real config comes near this
_CORE = "tag:yaml.org,2002:"
_SCALAR_TAGS = frozenset(_CORE + t for t in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge"))

Placed = Callable[[int], Mark]  # a line, counted from 0 -> its mark


class Unparsable(Exception):
    """The text is no YAML that a config can be made of; carries the one fault to show."""

    def __init__(self, mark: Mark, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.fault = Fault(mark, "", text, hint)


def parse(text: str, placed: Placed, faults: Faults) -> Node | None:
    """Compose one YAML document.

    Args:
        text: the whole file.
        placed: makes a mark of a line.
        faults: duplicate keys and the like are appended here; the rest is still read.

    Returns:
        The tree, or None for a file without content.

    Raises:
        Unparsable: the syntax is broken, or the document is nested or repeated beyond reason.
    """
    import yaml
    from yaml.reader import Reader, ReaderError

    if odd := Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, odd.start())
        code = f"U+{ord(odd.group()):04X}"
        raise Unparsable(placed(line), f"not valid YAML: the character {code} is not allowed", 'write it as "\\x.."')
    try:
        compose: Any = yaml.compose  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        root = compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as e:
        raise _syntax_fault(text, e, placed) from None
    except (ReaderError, yaml.YAMLError) as e:
        raise Unparsable(placed(0), f"not valid YAML: {str(e).splitlines()[0]}") from None
    except RecursionError:
        raise Unparsable(placed(0), "nested too deeply") from None
    except ValueError as e:  # PyYAML turns "\Uffffffff" into chr() without looking
        raise Unparsable(placed(0), f"not valid YAML: {e}") from None
    if root is None:
        return None
    return _Reader(placed, faults).node(root, "")


def _syntax_fault(text: str, error: Any, placed: Placed) -> Unparsable:
    """One line for PyYAML's three: the problem, its place, and what usually cures it."""
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    problem = (error.problem or error.context or "cannot be read").strip()
    if "'\\t'" in problem:
        return Unparsable(placed(line), "not valid YAML: a tab where only spaces may stand", "indent with spaces")
    if "expected a single document" in (error.context or ""):
        return Unparsable(placed(line), "more than one YAML document", "remove the `---` line")
    hint = ""
    if "mapping values are not allowed" in problem:
        hint = "check the indentation, and quote a value that contains `: `"
    elif "could not find expected ':'" in problem or "expected <block end>" in problem:
        hint = "check the indentation and the quotes on this line and the one before it"
    elif "but got '{'" in problem:
        hint = 'inside [ ] or { } a value with "${" needs quotes'
    elif "cannot start any token" in problem or "expected alphabetic or numeric" in problem:
        hint = "quote a value that starts with @, `, %, & or *"
    elif "unexpected end of stream" in problem:
        hint = "a quote or bracket is not closed"
    if error.context and error.context_mark and error.context_mark.line != line:
        problem += f" {error.context} that began at line {error.context_mark.line + 1}"
    return Unparsable(placed(line), f"not valid YAML: {problem}", hint)


class _Reader:
    """Turns PyYAML's nodes into ours; aliases are followed, merge keys (`<<`) applied."""

    def __init__(self, placed: Placed, faults: Faults) -> None:
        self.placed = placed
        self.faults = faults
        self.count = 0
        self.open: set[int] = set()  # nodes being read: one that turns up again holds itself

    def node(self, raw: Any, path: str) -> Node:
        import yaml

        mark = self.placed(raw.start_mark.line)
        self.count += 1
        if self.count > MAX_NODES:
            raise Unparsable(mark, f"more than {MAX_NODES} values", "its aliases repeat each other")
        if id(raw) in self.open:
            raise Unparsable(mark, "an alias refers to a value that contains it")
        if isinstance(raw, yaml.ScalarNode):
            return self.scalar(raw, path, mark)
        if len(self.open) >= MAX_DEPTH:
            raise Unparsable(mark, f"nested more than {MAX_DEPTH} levels deep")
        self.open.add(id(raw))
        if isinstance(raw, yaml.SequenceNode):
            self.known_tag(raw, path, mark, frozenset({_CORE + "seq"}))
            items: list[Any] = raw.value
            node: Node = Seq(tuple(self.node(item, f"{path}[{i}]") for i, item in enumerate(items)), mark)
        else:
            self.known_tag(raw, path, mark, frozenset({_CORE + "map"}))
            node = self.mapping(raw, path, mark)
        self.open.discard(id(raw))
        return node

    def scalar(self, raw: Any, path: str, mark: Mark) -> Scalar:
        self.known_tag(raw, path, mark, _SCALAR_TAGS)
        text: str = raw.value
        # A tag written out (`!!str 5`) counts as quotes; plain text has the same tag by itself.
        quoted = raw.style is not None or (raw.tag == _CORE + "str" and not isinstance(plain_value(text), str))
        return Scalar(text, mark, null=raw.tag == _CORE + "null" and text in NULL_WORDS, quoted=quoted)

    def known_tag(self, raw: Any, path: str, mark: Mark, known: frozenset[str]) -> None:
        if raw.tag not in known:
            shown = "!!" + raw.tag.removeprefix(_CORE) if raw.tag.startswith(_CORE) else raw.tag
            self.faults.add(mark, path, f"the YAML tag {shown} means nothing here", "remove it")

    def mapping(self, raw: Any, path: str, mark: Mark) -> Map:
        entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for raw_key, raw_value in raw.value:
            key_mark = self.placed(raw_key.start_mark.line)
            if not isinstance(raw_key.value, str):
                self.faults.add(key_mark, path, "a key must be a word, not a list or mapping")
                continue
            key = raw_key.value
            if raw_key.tag == _CORE + "merge":
                for name, entry in self.merged(raw_value, path, key_mark).items():
                    merged.setdefault(name, entry)
                continue
            below = f"{path}.{key}" if path else key
            if key in entries:
                first = entries[key].mark.order[1]
                self.faults.add(key_mark, below, f"given twice (first at line {first})", "remove one")
            node = self.node(raw_value, below)
            entries[key] = Entry(node, key_mark)
        return Map({**merged, **entries}, mark)

    def merged(self, raw: Any, path: str, mark: Mark) -> dict[str, Entry]:
        """What a merge key brings in; of several mappings the first one wins."""
        node = self.node(raw, path)
        found: dict[str, Entry] = {}
        for part in node.items if isinstance(node, Seq) else (node,):
            if not isinstance(part, Map):
                self.faults.add(mark, path, "`<<` takes a mapping, or a list of them")
                continue
            for key, entry in part.entries.items():
                found.setdefault(key, entry)
        return found
