"""The hosts of a config, its hostfile read from disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from engine.config.host_entry import HostEntry, HostFault
from engine.config.hosts import DEFAULT_PORT, find_hosts
from engine.config.overrides import override_faults
from engine.config.schema import Cluster
from engine.errors import ConfigError

# 100 000 long lines; what is larger is no hostfile.
MAX_BYTES = 16 * 2**20


def load_hosts(
    cluster: Cluster, start: Path, *, beside: Path | None = None, places: Mapping[str, str] | None = None
) -> tuple[HostEntry, ...]:
    """The hosts that the config names, and its overrides checked against them.

    Args:
        start: where trainui was started; a relative `cluster.hostfile` counts from there.
        beside: the config's folder, only for a hint.
        places: where a key of the config stands (`cluster.hosts[3]` -> `cfg.yml:12`), as far as known.

    Returns:
        Nothing where the config names no hosts.

    Raises:
        ConfigError: with every fault, one line each.
    """
    name, text = cluster.hostfile, None
    if name is not None:
        text, fault = read_hostfile(name, start, beside)
        if fault is not None:
            raise ConfigError([_line(fault, places or {})])
    entries, faults = find_hosts(cluster.hosts, text, name or "hostfile", cluster.ssh.port or DEFAULT_PORT)
    if not faults and entries:
        faults = tuple(override_faults(cluster, entries))
    if faults:
        raise ConfigError([_line(fault, places or {}) for fault in faults])
    return entries


def read_hostfile(name: str, start: Path, beside: Path | None = None) -> tuple[str, HostFault | None]:
    """The text of a hostfile, or what is wrong with it."""
    key = "cluster.hostfile"
    if "\0" in name or not name:
        return "", HostFault(key, "cannot be the name of a file", "name a file, or remove it")
    # Not Path.expanduser: a home that nobody has is an error there, and here just no such file.
    path = start / os.path.expanduser(name)  # noqa: PTH111
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        there = beside / name if beside is not None else None
        hint = f"it counts from {start}, where trainui was started"
        if there is not None and there.is_file():
            hint += f"; write {there}"
        return "", HostFault(key, f"{name} does not exist", hint)
    except OSError as err:
        return "", HostFault(key, f"{name} cannot be read: {(err.strerror or str(err)).lower()}")
    if len(data) > MAX_BYTES:
        return "", HostFault(key, f"{name} is larger than {MAX_BYTES >> 20} MiB, which no list of hosts is")
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError as err:
        line = data.count(b"\n", 0, err.start) + 1
        return "", HostFault(f"{name}:{line}", "is not UTF-8 text", "save the file as UTF-8")


def _line(fault: HostFault, places: Mapping[str, str]) -> str:
    """The fault as a line, with the config's file and line in front where they are known."""
    key = fault.where
    while key and key not in places:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return f"{places[key]}: {fault.line()}" if key else fault.line()
