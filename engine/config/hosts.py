"""`cluster.hosts` and a hostfile's text -> the hosts of a job, in the order of their node ranks. Pure.

An entry is `[user@]host[:port] [slots=N] [type=T]`; the host may hold ranges (`node[01-16]`), an IPv6 address stands in
brackets. Names end up in command lines (ProxyCommand's `%h`), so only what a host's name is made of is let through.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from engine.config.host_entry import HostEntry, HostFault, some, source_of
from engine.config.host_ranges import RangeFault, expand_ranges
from engine.config.shape import nearest
from engine.config.tree import quote
from engine.errors import ConfigError, PlanError

DEFAULT_PORT = 22
# More processes than any node has hardware threads: beyond that it is a slip of the finger.
MAX_SLOTS = 4096
# The longest name DNS can hold (RFC 1035).
MAX_HOST = 253

_KEYS = ("slots", "type")
# What other launchers, or people, call the same thing.
_SYNONYMS = {
    **dict.fromkeys(("gpus", "gpu", "ngpus", "num_gpus", "nproc", "nproc_per_node", "cpu", "cpus", "n"), "slots"),
    **dict.fromkeys(("gpu_type", "device", "device_type", "kind"), "type"),
}
_NAME = re.compile(r"[\w.-]+")
# Active Directory logins hold a backslash or an @.
_USER = re.compile(r"[\w.+@\\-]+")
_NUMBER = re.compile(r"[0-9]{1,9}")
_BRACKETED = re.compile(r"\[([^\[\]]*:[^\[\]]*)\](.*)", re.DOTALL)
# An interface may stand behind a link-local address: fe80::1%eth0.
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(?:%[\w.-]+)?")


def parse_hosts(
    hosts: Sequence[str], text: str | None = None, file: str = "hostfile", default_port: int = DEFAULT_PORT
) -> tuple[HostEntry, ...]:
    """The hosts of a config, in order.

    Args:
        hosts: the entries of `cluster.hosts`.
        text: what the hostfile holds; None: there is none.
        file: the hostfile's name, for messages.
        default_port: where an entry without a port is reached (only to see that two entries are the same).

    Raises:
        ConfigError: with every fault, one line each.
    """
    entries, faults = find_hosts(hosts, text, file, default_port)
    if faults:
        raise ConfigError([fault.line() for fault in faults])
    return entries


def find_hosts(
    hosts: Sequence[str], text: str | None = None, file: str = "hostfile", default_port: int = DEFAULT_PORT
) -> tuple[tuple[HostEntry, ...], tuple[HostFault, ...]]:
    """`parse_hosts` that returns what it could read, and the faults."""
    if hosts and text is not None:
        hint = "keep one of the two (hostfile: null takes away that of a base)"
        return (), (HostFault("cluster.hosts", "there is a cluster.hostfile already", hint),)
    entries: list[HostEntry] = []
    faults: list[HostFault] = []
    for number, written in enumerate(hosts):
        _read_entry(written, f"cluster.hosts[{number}]", None, entries, faults)
    # Never splitlines(): it would also part at characters that are no line's end in an editor.
    for number, row in enumerate((text or "").removeprefix("\ufeff").split("\n"), start=1):
        words = row.removesuffix("\r").partition("#")[0].strip(" \t")
        if words:
            _read_entry(words, f"{file}:{number}", number, entries, faults)
    if text is not None and not entries and not faults:
        faults.append(HostFault(file, "names no host", "write one on each line, such as: node1 slots=8"))
    return tuple(entries), (*faults, *_twice(entries, default_port))


def select(entries: Sequence[HostEntry], nnodes: int | None) -> tuple[HostEntry, ...]:
    """The first `nnodes` hosts; None: all.

    Raises:
        PlanError: there are not that many.
    """
    if nnodes is None or nnodes <= len(entries):
        return tuple(entries[:nnodes])
    count = f"{len(entries)} host{'s' * (len(entries) != 1)}"
    raise PlanError(
        f"cluster.nnodes is {nnodes}, but {source_of(entries)} names {count}", "add hosts, or lower cluster.nnodes"
    )


def _read_entry(written: str, where: str, line: int | None, entries: list[HostEntry], faults: list[HostFault]) -> None:
    """Add the hosts of one entry, or all that is wrong with it."""
    before = len(faults)
    first, *rest = re.split(r"[ \t]+", written.strip(" \t"))
    values = _read_values(rest, where, faults)
    found: list[HostEntry] = []
    if not first:
        faults.append(HostFault(where, "is empty", "remove it, or name a host"))
    for part in re.split(r",(?![^\[\]]*\])", first) if first else ():
        fault = _read_address(part, where, found)
        if fault is not None:
            faults.append(fault)
    if len(faults) == before:
        slots = None if "slots" not in values else int(values["slots"])
        entries += [HostEntry(e.host, e.user, e.port, slots, values.get("type"), line, where) for e in found]


def _read_address(part: str, where: str, found: list[HostEntry]) -> HostFault | None:
    """Add the hosts that `[user@]host[:port]` stands for, or say what is wrong with it."""
    fault = _foreign(part)
    if fault is not None:
        return HostFault(where, *fault)
    user, at, rest = part.rpartition("@")
    if at and (not _USER.fullmatch(user) or user.startswith("-") or user.endswith("\\")):
        return HostFault(where, f"{quote(user)} cannot be the name of a user", "write user@host")
    address = _BRACKETED.fullmatch(rest)
    if address is not None:
        name, tail = address.groups()
        names = [] if (ipv6 := _ipv6(name)) is None else [ipv6]
        if not names or tail[:1] not in ("", ":"):
            return HostFault(where, f"{quote(rest)} holds no IPv6 address", "write it as in [fd00::1], or [fd00::1]:22")
        port = tail[1:] if tail else None
    else:
        host, colon, tail = rest.partition(":")
        port = tail if colon else None
        try:
            names = expand_ranges(host)
        except RangeFault as err:
            return HostFault(where, err.text, err.hint)
        fault = next((fault for name in names if (fault := _no_host(name)) is not None), None)
        if fault is not None:
            return HostFault(where, *fault)
    if port is not None and not (_NUMBER.fullmatch(port) and 1 <= int(port) <= 65535):
        return HostFault(where, f"{quote(port)} is no port", "ports go from 1 to 65535, as in node1:2222")
    found += [HostEntry(name, user if at else None, None if port is None else int(port)) for name in names]
    return None


def _foreign(part: str) -> tuple[str, str] | None:
    """Why this is another notation than ours, where it is one that can be told."""
    if "://" in part:
        return f"{quote(part)} is a URL", "write [user@]host[:port]"
    if "=" in part and not part.startswith("-"):
        return f"begins with {quote(part)} instead of a host", "write the host first, as in node1 slots=8"
    bare = part.rpartition("@")[2]
    if "[" not in part and bare.count(":") > 1:
        if _ipv6(bare) is None:
            return f"{quote(part)} has more than one colon", "write [user@]host[:port]"
        return f"{quote(part)}: an IPv6 address needs brackets", f"write [{bare}], or [{bare}]:22 with a port"
    return None


def _ipv6(text: str) -> str | None:
    """The address in its shortest form; None where it is none."""
    try:
        return str(IPv6Address(text)) if _IPV6.fullmatch(text) else None
    except AddressValueError:
        return None


def _no_host(name: str) -> tuple[str, str] | None:
    """Why this cannot be a host's name; None where it can."""
    if not name:
        return "there is no host's name", "write [user@]host[:port]"
    if name.startswith("-"):
        return f"{quote(name)} begins with a dash: ssh would take it for an option", "write the host's name"
    if not _NAME.fullmatch(name) or not any(c.isalnum() for c in name):
        hint = "names are made of letters, digits, dots, dashes and underscores"
        return f"{quote(name)} cannot be a host's name", hint
    if len(name) > MAX_HOST:
        return f"{quote(name)} is longer than {MAX_HOST} characters", "is a line's end missing?"
    if re.fullmatch(r"[0-9.]+", name):
        try:
            IPv4Address(name)
        except AddressValueError:
            return (
                f"{quote(name)} is no IPv4 address, and names have letters",
                "write a name, or four numbers up to 255",
            )
    return None


def _read_values(words: Sequence[str], where: str, faults: list[HostFault]) -> dict[str, str]:
    """The `key=value` words behind a host; what is wrong with them goes to `faults`."""
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        fault: tuple[str, str] | None = None
        if not equals:
            fault = f"{quote(word)} is no key=value", _meant(word)
        elif key not in _KEYS:
            fault = f"unknown key {quote(key)}", _meant_key(key)
        elif key in values:
            fault = f"{key} is given twice", "keep one of them"
        elif key == "slots" and not (_NUMBER.fullmatch(value) and 1 <= int(value) <= MAX_SLOTS):
            fault = _bad_slots(value)
        elif key == "type" and not (value and value.isprintable()):
            fault = f"{quote(value)} cannot be a type", "write it as in type=A100"
        if fault is not None:
            faults.append(HostFault(where, *fault))
        else:
            values[key] = value
    return values


def _meant(word: str) -> str:
    if _NUMBER.fullmatch(word):
        return f"did you mean slots={int(word)}?"
    return "one host on each line, then slots=N and type=T"


def _meant_key(key: str) -> str:
    plain = key.lower().replace("-", "_")
    if plain in ("max_slots", "maxslots"):
        return "remove it: slots says how many processes may run"
    near = _SYNONYMS.get(plain) or nearest(plain, _KEYS)
    return f"did you mean {near}?" if near else "the keys are slots and type"


def _bad_slots(value: str) -> tuple[str, str]:
    hint = "leave it out for one process for each GPU"
    if not re.fullmatch(r"-?[0-9]+", value):
        return f"slots: expected a number of processes, got {quote(value)}", hint
    if value.startswith("-") or not value.strip("0"):
        return f"slots={value}: a host with no process has nothing to do", "write 1 or more, or remove the host"
    return f"slots={value[:20]} is more than a host can run", f"write at most {MAX_SLOTS}"


def _twice(entries: Sequence[HostEntry], default_port: int) -> list[HostFault]:
    """A fault for each pair of places that name the same hosts."""
    first: dict[tuple[str, int], HostEntry] = {}
    pairs: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        # Names of DNS know no case, and a dot behind one changes nothing.
        key = entry.host.lower().rstrip("."), entry.port or default_port
        known = first.setdefault(key, entry)
        if known is not entry:
            pairs.setdefault((known.where, entry.where), []).append(entry.host_port)
    hint = "keep one of them; slots=N gives a host several processes"
    faults: list[HostFault] = []
    for (earlier, here), names in pairs.items():
        place = "in the same entry" if earlier == here else f"first in {earlier}"
        verb = "stands" if len(names) == 1 else "stand"
        faults.append(HostFault(here, f"{some(names)} {verb} there twice, {place}", hint))
    return faults
