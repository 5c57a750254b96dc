"""The located tree -> the dataclasses of `schema.py`, with a fault for everything that does not fit."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from engine.config.schema import Config
from engine.config.shape import choices, is_section, keys_of, optional, suggest_key, takes_list
from engine.config.tree import (
    Entry,
    Faults,
    Map,
    Mark,
    Node,
    Path,
    Scalar,
    Seq,
    as_bool,
    as_float,
    as_int,
    describe,
    dotted,
    plain_value,
)


def build(root: Map, faults: Faults) -> Config:
    """Make a Config of a resolved tree.

    What does not fit is reported and left at its default, so that the rest is still checked.
    """
    return _section(Config, root, (), faults)


def _section(cls: type, node: Map, path: Path, faults: Faults) -> Any:
    keys = keys_of(cls)
    given: dict[str, Any] = {}
    for key, entry in node.entries.items():
        if key not in keys:
            _unknown(key, entry.mark, path, keys, faults)
            continue
        ok, value = _value(keys[key], entry, (*path, key), faults)
        if ok:
            given[key] = value
    return cls(**given)


def _unknown(key: str, mark: Mark, path: Path, keys: dict[str, Any], faults: Faults) -> None:
    meant = suggest_key(key, keys)
    if meant is None:
        hint = "known here: " + ", ".join(keys)
    elif "." in meant or meant in keys:
        hint = f'did you mean "{meant}"?'
        # What it was meant to give is not missing as well.
        faults.touched.add(dotted((*path, meant)) if meant in keys else meant)
    else:
        hint = f'did you mean "{meant}", at the top of the file?'
    faults.add(mark, dotted((*path, key)), "unknown key", hint)


_NOTHING = (False, None)


def _value(hint: Any, entry: Entry, path: Path, faults: Faults) -> tuple[bool, Any]:
    """Type one value. False where it does not fit (reported) or says nothing (an empty section)."""
    node = entry.node
    if isinstance(node, Map):
        return _mapping(hint, node, path, faults)
    if isinstance(node, Seq):
        return _list(hint, node, path, faults)
    if hint is Any:
        return True, _untyped(node)
    if node.null and optional(hint):
        return True, None
    return _scalar(hint, node, path, faults)


def _mapping(hint: Any, node: Map, path: Path, faults: Faults) -> tuple[bool, Any]:
    for choice in choices(hint):
        if is_section(choice):
            return True, _section(choice, node, path, faults)
        if get_origin(choice) is dict:
            below = get_args(choice)[1]
            typed = {key: _value(below, entry, (*path, key), faults) for key, entry in node.entries.items()}
            return True, {key: value for key, (ok, value) in typed.items() if ok}
        if choice is Any:
            return True, _untyped(node)
    advice = "quote it to pass it on as text" if hint is str else ""
    faults.add(node.mark, dotted(path), f"expected {expected(hint, path)}, got a mapping", advice)
    return _NOTHING


def _list(hint: Any, node: Seq, path: Path, faults: Faults) -> tuple[bool, Any]:
    for choice in choices(hint):
        if get_origin(choice) is list:
            below = get_args(choice)[0]
            typed = [_value(below, Entry(i, i.mark), (*path, n), faults) for n, i in enumerate(node.items)]
            return True, [value for ok, value in typed if ok]
        if choice is Any:
            return True, _untyped(node)
    advice = "quote it to pass it on as text" if hint is str else ""
    faults.add(node.mark, dotted(path), f"expected {expected(hint, path)}, got a list", advice)
    return _NOTHING


def _scalar(hint: Any, node: Scalar, path: Path, faults: Faults) -> tuple[bool, Any]:
    members = choices(hint)
    if bool in members and (truth := as_bool(node.text)) is not None:
        return True, truth
    if int in members and (whole := as_int(node.text)) is not None:
        return True, whole
    if float in members and (number := as_float(node.text)) is not None:
        return True, number
    if str in members:
        if not missing(node, path, faults):
            return True, node.text
        return _NOTHING
    if node.null and not {bool, int, float} & set(members):
        return _NOTHING  # an empty section or list: its default
    if not missing(node, path, faults):
        advice = f"write [{node.text}]" if takes_list(hint) and node.text else ""
        faults.add(node.mark, dotted(path), f"expected {expected(hint, path)}, got {describe(node)}", advice)
    return _NOTHING


def as_written(path: Path) -> bool:
    """True where the text goes to a process as it stands, whatever it is."""
    return path[:1] in (("env",), ("env_expand",), ("hooks",)) or path[:2] in (("task", "command"), ("task", "script"))


def missing(node: Scalar, path: Path, faults: Faults) -> bool:
    """OmegaConf's `???`: a value that must be given. Elsewhere than in `env` and commands, that is."""
    if node.text != "???" or node.quoted or as_written(path):
        return False
    name = dotted(path)
    faults.add(node.mark, name, "has no value (???)", f"give it here, or as {name}=... on the command line")
    return True


def _untyped(node: Node) -> Any:
    """Where the schema leaves the type open: what YAML makes of it."""
    if isinstance(node, Map):
        return {key: _untyped(entry.node) for key, entry in node.entries.items()}
    if isinstance(node, Seq):
        return [_untyped(item) for item in node.items]
    if node.null:
        return None
    return node.text if node.quoted else plain_value(node.text)


def expected(hint: Any, path: Path) -> str:
    """What would be right, in words."""
    members = choices(hint)
    name = str(path[-1]) if path else ""
    words = [
        ("a mapping", any(is_section(m) or get_origin(m) is dict for m in members)),
        ("a list", any(get_origin(m) is list for m in members)),
        ("true or false", bool in members),
        ("a port number", int in members and name.endswith("port")),
        ("a whole number", int in members and not name.endswith("port")),
        ("a number of seconds", float in members),
        ("text", str in members),
    ]
    return " or ".join(word for word, applies in words if applies)
