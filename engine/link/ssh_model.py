"""What the modules of the SSH link tell each other: who is meant, the way there, what a failure is called.

Free of asyncssh, so that whoever only handles faults or an offered host key does not pay for its import.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine.errors import LinkError

DEFAULT_PORT = 22
# With this many keepalives unanswered the link is dead: interval x (count + 1) seconds after the last word.
KEEPALIVE_COUNT = 3
# How much of what the other side printed goes into a sentence (characters).
MAX_FOREIGN_TEXT = 300


class Kind(StrEnum):
    """`LinkError.kind` of everything that can go wrong on the way to an agent over SSH."""

    REFUSED = "refused"  # nothing listens
    NO_ANSWER = "no_answer"  # packets vanish
    NO_ROUTE = "no_route"
    NAME = "name"  # the name does not resolve
    SILENT = "silent"  # a port that is open and says nothing
    DROPPED = "dropped"  # closed before login: throttled, or not SSH
    LOGIN_TIMEOUT = "login_timeout"  # it speaks SSH, and the login does not end
    AUTH = "auth"
    TOO_MANY_KEYS = "too_many_keys"
    PASSPHRASE = "passphrase"  # noqa: S105 - a word for a fault
    CONFIG = "config"
    HOST_KEY_UNKNOWN = "host_key_unknown"
    HOST_KEY_CHANGED = "host_key_changed"
    HOST_KEY_REVOKED = "host_key_revoked"
    ALGORITHMS = "algorithms"
    BASTION = "bastion"  # the bastion is there, what lies behind it is not
    PROXY = "proxy"  # ProxyCommand ended
    SESSIONS = "sessions"  # MaxSessions
    ACCOUNT = "account"  # it runs no commands
    SHELL = "shell"  # the login shell hangs
    PYTHON = "python"  # none on the non-login PATH, or one that fails
    LOST = "lost"  # a connection that was up is gone
    OTHER = "other"


# Trying these again by itself can only do harm, or nothing until a person has changed something.
NEVER_RETRIED = frozenset(
    {
        Kind.AUTH,
        Kind.TOO_MANY_KEYS,
        Kind.PASSPHRASE,
        Kind.CONFIG,
        Kind.HOST_KEY_UNKNOWN,
        Kind.HOST_KEY_CHANGED,
        Kind.HOST_KEY_REVOKED,
        Kind.ALGORITHMS,
    }
)


def fault(kind: Kind, message: str, hint: str = "") -> LinkError:
    """The error for `kind`, with the retry rule that belongs to it."""
    return LinkError(message, hint, kind=kind.value, retry=kind not in NEVER_RETRIED)


@dataclass(frozen=True, slots=True)
class Target:
    """A node as the user names it.

    Args:
        host: a Host of ~/.ssh/config, a name or an address without brackets.
        user: None: cluster.ssh.user, else the config's User, else the local user.
        port: None: cluster.ssh.port, else the config's Port, else 22.
    """

    host: str
    user: str | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Hop:
    """One SSH server on the way to a node (the last one is the node), with all that the config says about it.

    Args:
        name: as the user wrote it.
        address: HostName, to which TCP goes (from this machine, or from the hop before).
        identities: private key files that exist, in order of trial.
        identities_only: the agent's keys are offered only where they are among `identities`.
        known_hosts: files in which its key may stand; a new key is written to the first.
        parsed: asyncssh's parsed config of this host; opaque here.
    """

    name: str
    address: str
    port: int
    user: str
    identities: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str = ""
    known_hosts: tuple[str, ...] = ()
    key_alias: str | None = None
    proxy_command: str | None = None
    connect_timeout_s: float = 15.0
    keepalive_s: float = 15.0
    bastion: bool = False
    parsed: Any = field(default=None, compare=False, repr=False)

    @property
    def where(self) -> str:
        """`10.0.0.3:22`; an IPv6 address in brackets."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def label(self) -> str:
        """How a sentence about it begins."""
        return f"bastion {self.name}" if self.bastion else self.name

    @property
    def by_hand(self) -> str:
        """What a person types to come to the same place."""
        port = "" if self.port == DEFAULT_PORT else f"-p {self.port} "
        return f"ssh {port}{self.user}@{self.name}"

    @property
    def key_source(self) -> tuple[str, ...]:
        """Who logs in with what: two hops with the same source get the same answer where the setup is the same."""
        return (self.user, self.agent, *self.identities)


@dataclass(frozen=True, slots=True)
class Route:
    """The way to a node: bastions in order, then the node itself; and what the user should know about the config."""

    hops: tuple[Hop, ...]
    warnings: tuple[str, ...] = ()

    @property
    def node(self) -> Hop:
        """The node itself."""
        return self.hops[-1]


@dataclass(frozen=True, slots=True)
class HostKeyOffer:
    """A key that no known_hosts file has: what a person needs to decide, and what accepting it writes.

    Args:
        host: as a sentence names it.
        where: address and port.
        fingerprint: `SHA256:...`, as ssh shows it.
        file: the known_hosts file that takes it; None: the config keeps none (UserKnownHostsFile none or /dev/null).
        line: the line to append, without its newline.
    """

    host: str
    where: str
    algorithm: str
    fingerprint: str
    file: str | None
    line: str


class HostKeyUnknown(LinkError):
    """The host showed a key that is in no known_hosts file; `offer` is what `accept_host_key` takes."""

    def __init__(self, message: str, hint: str, offer: HostKeyOffer) -> None:
        super().__init__(message, hint, kind=Kind.HOST_KEY_UNKNOWN.value, retry=False)
        self.offer = offer
