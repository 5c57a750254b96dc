"""A host that may take part, and how sentences speak of hosts. Pure, and quick to import: plans are made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One host.

    Attributes:
        host: a name, an address without brackets, or a Host of ~/.ssh/config.
        user, port: None: as cluster.ssh or ~/.ssh/config say.
        slots: how many processes it may run; None: as many as there are devices.
        type: the kind of machine, for `cluster.type_overrides`.
        line: its line in the hostfile, from 1; None: it stands in `cluster.hosts`.
        where: its place in words, for messages: `hosts.txt:12` or `cluster.hosts[3]`.
    """

    host: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    type: str | None = None
    line: int | None = None
    where: str = field(default="", compare=False)

    @property
    def host_port(self) -> str:
        """`host`, or `host:port` where a port was written; an IPv6 address with a port in brackets."""
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HostFault:
    """What is wrong with the hosts. `where`: `hosts.txt:12`, or a key of the config such as `cluster.hosts[3]`."""

    where: str
    text: str
    hint: str = ""

    def line(self) -> str:
        """`hosts.txt:12: what is wrong; what would be right`, always one line."""
        from engine.config.tree import printable

        return printable(f"{self.where}: {self.text}" + (f"; {self.hint}" if self.hint else ""))


def source_of(entries: Sequence[HostEntry]) -> str:
    """What names these hosts, in words: the hostfile, or `cluster.hosts`."""
    first = entries[0] if entries else None
    return "cluster.hosts" if first is None or first.line is None else first.where.rpartition(":")[0]


def labels(entries: Sequence[HostEntry]) -> tuple[str, ...]:
    """What each host is called on the screen: its name, with the port where two have the same name."""
    count = Counter(entry.host.lower() for entry in entries)
    return tuple(entry.host_port if count[entry.host.lower()] > 1 else entry.host for entry in entries)


def some(names: Sequence[str], most: int = 3) -> str:
    """`a, b and c`, or `a, b, c and 13 more`."""
    # "and 1 more" would be longer than the name.
    shown = list(names if len(names) <= most + 1 else names[:most])
    last = shown.pop() if len(shown) == len(names) else f"{len(names) - most} more"
    return f"{', '.join(shown)} and {last}" if shown else last
