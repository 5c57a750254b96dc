"""What is different on one host, or on all hosts of one type: `cluster.node_overrides`, `cluster.type_overrides`. Pure.

The host's own wins over its type's, which wins over what holds for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.config.host_entry import HostEntry, HostFault, some, source_of
from engine.config.schema import Cluster, Config, Override


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds on one host.

    Attributes:
        args: words behind the command: the type's, then the host's, so that the host's win where a program
            takes an option's last value.
        cwd: `task.cwd` or what replaces it; `cwd_key` is the key it stands under.
        python: the word that replaces the command's interpreter; None: it stays.
        args_key, python_key: the keys they stand under, for messages; "" where there are none.
    """

    env: Mapping[str, str]
    env_expand: Mapping[str, str]
    args: tuple[str, ...]
    cwd: str | None
    python: str | None
    cwd_key: str = "task.cwd"
    args_key: str = ""
    python_key: str = ""


def settings_for(cfg: Config, entry: HostEntry) -> Settings:
    """The config as it holds on `entry`."""
    env, env_expand = dict(cfg.env), dict(cfg.env_expand)
    args: list[str] = []
    cwd, cwd_key, args_key = cfg.task.cwd, "task.cwd", ""
    python: str | None = None
    python_key = ""
    for key, override in _overrides_of(cfg.cluster, entry):
        for name, value in override.env.items():
            env[name] = value
            # It is exported after env, and would win over what is more particular.
            env_expand.pop(name, None)
        args += override.args
        args_key = f"{key}.args" if override.args else args_key
        if override.cwd is not None:
            cwd, cwd_key = override.cwd, f"{key}.cwd"
        if override.python is not None:
            python, python_key = override.python, f"{key}.python"
    return Settings(env, env_expand, tuple(args), cwd, python, cwd_key, args_key, python_key)


def override_faults(cluster: Cluster, entries: Sequence[HostEntry]) -> Iterator[HostFault]:
    """Overrides for hosts or types that are not there, and hosts of which it is not said which type they are.

    Args:
        entries: all hosts, also those that `cluster.nnodes` leaves out.
    """
    source = source_of(entries)
    hosts = list(dict.fromkeys(name for entry in entries for name in (entry.host, entry.host_port)))
    for host in cluster.node_overrides:
        if host not in hosts:
            yield HostFault(f"cluster.node_overrides.{host}", f"{source} names no such host", _near(host, hosts))
    types = list(dict.fromkeys(entry.type for entry in entries if entry.type is not None))
    for kind in cluster.type_overrides:
        if kind not in types:
            hint = _near(kind, types) if types else "write type=... behind the hosts"
            yield HostFault(f"cluster.type_overrides.{kind}", f"no host in {source} has this type", hint)
    if cluster.type_overrides and types:
        # One fault for each place: a range is one entry of many hosts.
        untyped: dict[str, list[str]] = {}
        for entry in entries:
            if entry.type is None:
                untyped.setdefault(entry.where, []).append(entry.host)
        for where, names in untyped.items():
            verb = "has" if len(names) == 1 else "have"
            text = f"{some(names)} {verb} no type, but others have, and cluster.type_overrides goes by it"
            yield HostFault(where, text, f"write type=... behind it ({some(types)})")


def _overrides_of(cluster: Cluster, entry: HostEntry) -> Iterator[tuple[str, Override]]:
    """What applies to a host, the most particular last; with its key."""
    if entry.type is not None and entry.type in cluster.type_overrides:
        yield f"cluster.type_overrides.{entry.type}", cluster.type_overrides[entry.type]
    for name in dict.fromkeys((entry.host, entry.host_port)):
        if name in cluster.node_overrides:
            yield f"cluster.node_overrides.{name}", cluster.node_overrides[name]


def _near(word: str, known: Sequence[str]) -> str:
    # Only for a fault: plans, which every command reads, are made with this module.
    from engine.config.shape import nearest
    from engine.config.tree import quote

    near = nearest(word, known)
    return f"did you mean {quote(near)}?" if near else f"there are {some(known)}"
