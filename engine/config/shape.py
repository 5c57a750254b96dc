"""What the schema expects at a path, read off the dataclasses of `schema.py`."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from engine.config.schema import Config
from engine.config.tree import Map, Node, Path, Scalar

# What other launchers call the same thing.
SYNONYMS = {
    "args": "task.command",
    "cmd": "task.command",
    "entrypoint": "task.command",
    "program": "task.command",
    "dir": "task.cwd",
    "workdir": "task.cwd",
    "working_dir": "task.cwd",
    "environment": "env",
    "envs": "env",
    "env_vars": "env",
    "gpus": "cluster.nproc_per_node",
    "ngpus": "cluster.nproc_per_node",
    "num_gpus": "cluster.nproc_per_node",
    "gpus_per_node": "cluster.nproc_per_node",
    "nproc": "cluster.nproc_per_node",
    "nprocs": "cluster.nproc_per_node",
    "num_nodes": "cluster.nnodes",
    "nodes": "cluster.hosts",
    "backend": "cluster.launcher",
    "max_restarts": "restart.max",
    "setup": "hooks.before_start",
}


@cache
def keys_of(cls: type) -> dict[str, Any]:
    """The keys of a section and the type of each."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def choices(hint: Any) -> tuple[Any, ...]:
    """The members of a union; a type alone is its own only member."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def optional(hint: Any) -> bool:
    """True where `null` is a value of its own."""
    return type(None) in choices(hint) or hint is Any


def is_section(hint: Any) -> bool:
    """True for a mapping with fixed keys."""
    return isinstance(hint, type) and is_dataclass(hint)


def takes_mapping(hint: Any) -> bool:
    """True where a mapping may stand."""
    return any(is_section(c) or get_origin(c) is dict or c is Any for c in choices(hint))


def takes_list(hint: Any) -> bool:
    """True where a list may stand."""
    return any(get_origin(c) is list or c is Any for c in choices(hint))


def child(hint: Any, key: str | int) -> Any:
    """The type expected one step further down; None where the schema knows no such key."""
    for choice in choices(hint):
        if is_section(choice):
            return keys_of(choice).get(str(key))
        if get_origin(choice) is dict and isinstance(key, str):
            return get_args(choice)[1]
        if get_origin(choice) is list and isinstance(key, int):
            return get_args(choice)[0]
        if choice is Any:
            return Any
    return None


def expected_at(path: Path) -> Any:
    """The type expected at `path`; None where the schema knows no such key."""
    hint: Any = Config
    for part in path:
        hint = child(hint, part)
        if hint is None:
            return None
    return hint


def verbatim(path: Path) -> bool:
    """True where the text is bash and goes through as it stands: `${...}` there belongs to bash."""
    return path[:1] in (("hooks",), ("env_expand",)) or path[:2] == ("task", "script")


@cache
def all_keys() -> tuple[str, ...]:
    """Every key of the schema with fixed place, dotted, sections included."""

    def below(cls: type, prefix: str) -> Iterable[str]:
        for name, hint in keys_of(cls).items():
            yield prefix + name
            if is_section(hint):
                yield from below(hint, f"{prefix}{name}.")

    return tuple(below(Config, ""))


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that `word` was probably meant to be."""
    by_lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def suggest_key(key: str, siblings: Iterable[str]) -> str | None:
    """What an unknown key was meant to be: a key beside it, or (with its whole path) elsewhere."""
    siblings = list(siblings)
    wanted = key.lower().replace("-", "_")
    if wanted in siblings:
        return wanted
    elsewhere = {path.rpartition(".")[2]: path for path in reversed(all_keys())}
    if wanted in elsewhere:
        return elsewhere[wanted]
    if wanted in SYNONYMS:
        return SYNONYMS[wanted]
    if close := nearest(wanted, siblings):
        return close
    far = nearest(wanted, elsewhere, cutoff=0.8)
    return elsewhere[far] if far else None


def merge(base: Node, over: Node, hint: Any = Config) -> Node:
    """`over` on top of `base`: mappings merge, everything else is replaced.

    An empty section (`cluster:` with all its lines commented out) says nothing, so what `base`
    has there stays; where `null` is a value of its own (`torchrun: null`), it replaces.
    """
    if isinstance(base, Map) and isinstance(over, Scalar) and over.null and not optional(hint):
        return base
    if not (isinstance(base, Map) and isinstance(over, Map)):
        return over
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        under = entries.get(key)
        if under is None:
            entries[key] = entry
        else:
            merged = merge(under.node, entry.node, child(hint, key))
            entries[key] = entry if merged is entry.node else type(entry)(merged, entry.mark)
    return Map(entries, over.mark)
