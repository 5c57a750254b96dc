"""What ~/.ssh/config says about a host, read as ssh reads it, and what of it is not followed.

asyncssh's parser does the work. It aborts on times such as `ServerAliveInterval 30s`, lets ProxyJump win over an
earlier ProxyCommand, takes `UserKnownHostsFile none` for "check nothing", never looks at /etc/ssh/ssh_config, and
passes over keywords that it does not have. All of that is mended here.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, cast

from asyncssh.config import ConfigParseError, SSHClientConfig

from engine.config.schema import Ssh
from engine.link.ssh_model import DEFAULT_PORT, Hop, Kind, Route, Target, fault

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
# ssh_config(5): IdentityFile and GlobalKnownHostsFile, their defaults.
DEFAULT_IDENTITIES = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
# Enough for any chain of bastions; more is a loop that the names do not show.
MAX_HOPS = 8

_TIME = re.compile(r"(\d+)([smhdw]?)", re.IGNORECASE)
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_KEYS_ARE_CHECKED = "is not followed: host keys are always checked"
# Keywords that asyncssh passes over and that matter here: the values that change nothing, and what to say otherwise.
_UNFOLLOWED: dict[str, tuple[str, frozenset[str], str]] = {
    "stricthostkeychecking": ("StrictHostKeyChecking", frozenset({"yes", "ask"}), _KEYS_ARE_CHECKED),
    "controlmaster": (
        "ControlMaster",
        frozenset({"no"}),
        "is not followed: each node gets one connection of its own, so a login that asks a person does not work",
    ),
    "canonicalizehostname": ("CanonicalizeHostname", frozenset({"no", "none"}), "is not followed: write full names"),
    "knownhostscommand": ("KnownHostsCommand", frozenset({"none"}), "is not run: keep its keys in a known_hosts file"),
    "verifyhostkeydns": ("VerifyHostKeyDNS", frozenset({"no"}), "is not followed: keep the keys in known_hosts"),
    "pubkeyacceptedalgorithms": ("PubkeyAcceptedAlgorithms", frozenset[str](), "is not followed"),
    "pubkeyacceptedkeytypes": ("PubkeyAcceptedKeyTypes", frozenset[str](), "is not followed"),
}


def seconds(text: str) -> int | None:
    """The seconds of a time as ssh_config writes it (`30`, `30s`, `1h30m`); None where it is none."""
    parts = _TIME.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(int(number) * _UNIT_S[unit.lower()] for number, unit in parts)


def _noted(handler: Callable[..., Any]) -> dict[str, tuple[str, Callable[..., Any]]]:
    return {key: (words[0], handler) for key, words in _UNFOLLOWED.items()}


class Reader(SSHClientConfig):
    """asyncssh's parser with the differences to ssh that bite taken out; `ignored` is what it could not honour."""

    # ssh expands tokens in these too.
    _percent_expand: ClassVar[set[str]] = SSHClientConfig._percent_expand | {"UserKnownHostsFile", "HostKeyAlias"}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ignored: list[str] = []

    def _set_time(self, option: str, args: list[str]) -> None:
        text = args.pop(0)
        value = 0 if text.lower() == "none" else seconds(text)
        if value is None:
            self._error(f'{option} is no time: "{text}"')
        self._options.setdefault(option, value)

    def _set_jump(self, option: str, args: list[str]) -> None:
        # The first of the two that a host meets counts, even if it says none.
        other = "ProxyCommand" if option == "ProxyJump" else "ProxyJump"
        if other in self._options:
            args.clear()
        else:
            self._set_string(option, args)

    def _note(self, option: str, args: list[str]) -> None:
        keyword, harmless, remark = _UNFOLLOWED[option.lower()]
        value = " ".join(args)
        args.clear()
        if option in self._options:
            return
        self._options[option] = value
        if value.lower() not in harmless:
            self.ignored.append(f"{self._path} line {self._line_no}: {keyword} {value} {remark}")

    _handlers: ClassVar[dict[str, tuple[str, Callable[..., Any]]]] = {
        **cast(Any, SSHClientConfig)._handlers,
        **_noted(_note),
        "serveraliveinterval": ("ServerAliveInterval", _set_time),
        "connecttimeout": ("ConnectTimeout", _set_time),
        "proxyjump": ("ProxyJump", _set_jump),
        "proxycommand": ("ProxyCommand", _set_jump),
    }


def resolve(target: Target, ssh: Ssh, home: Path | None = None) -> Route:
    """The way to `target`. It reads files and runs `Match exec` commands: call it in a thread.

    Args:
        ssh: the run's cluster.ssh.
        home: whose `.ssh` is meant; default: this user's.

    Raises:
        LinkError: the config cannot be used (kind `config`); the sentence has file and line where there is one.
    """
    resolver = _Resolver(ssh, home or Path.home())
    try:
        hops = resolver.hops(target, (), node=True)
    except ConfigParseError as err:
        raise fault(Kind.CONFIG, f"{target.host}: the SSH config cannot be read: {err}", "ssh reads it too") from err
    except OSError as err:
        what = f"{err.filename}: {(err.strerror or str(err)).lower()}"
        raise fault(Kind.CONFIG, f"{target.host}: the SSH config cannot be read: {what}") from err
    return Route(tuple(hops), tuple(dict.fromkeys(resolver.warnings)))


class _Resolver:
    def __init__(self, ssh: Ssh, home: Path) -> None:
        self._ssh = ssh
        self._home = home
        self.warnings: list[str] = []

    def hops(self, target: Target, seen: tuple[str, ...], *, node: bool) -> list[Hop]:
        """`target` and what lies before it, the farthest last."""
        if target.host in seen or len(seen) >= MAX_HOPS:
            chain = " -> ".join((*seen, target.host))
            raise fault(Kind.CONFIG, f"{target.host}: ProxyJump leads in a circle: {chain}", "mend ~/.ssh/config")
        reader = self._read(target, node)
        hop = self._hop(target, reader, node)
        jumps = (self._ssh.jump if node else None) or _text(reader, "ProxyJump")
        if not jumps or jumps.lower() == "none":
            return [hop]
        first, *rest = (_jump(word, hop.label) for word in jumps.split(","))
        before = self.hops(first, (*seen, target.host), node=False)
        # As `ssh -J a,b` has it: only the first follows a ProxyJump of its own.
        before += [self._hop(jump, self._read(jump, False), False, direct=False) for jump in rest]
        return [*before, hop]

    def _read(self, target: Target, node: bool) -> Reader:
        user = target.user or (self._ssh.user if node else None)
        port = target.port or (self._ssh.port if node else None)
        names = (getpass.getuser(), user if user else (), target.host, port if port else ())
        paths = [path for path in (self._home / ".ssh" / "config", SYSTEM_CONFIG) if os.access(path, os.R_OK)]
        reader = _load(None, paths if self._ssh.config else [], False, names)
        if reader.has_match_final():
            reader = _load(reader, paths, True, names)
        self.warnings += reader.ignored
        return reader

    def _hop(self, target: Target, reader: Reader, node: bool, *, direct: bool = True) -> Hop:
        chosen = self._ssh.identity
        given = [chosen] if chosen else []
        configured = [] if chosen and node else _list(reader, "IdentityFile")
        alias = _text(reader, "HostKeyAlias")
        keepalive = min(filter(None, (self._ssh.keepalive_s, _number(reader, "ServerAliveInterval"))), default=0.0)
        jumped = bool(_text(reader, "ProxyJump") or (node and self._ssh.jump))
        return Hop(
            name=target.host,
            address=_text(reader, "Hostname") or target.host,
            port=int(_number(reader, "Port") or DEFAULT_PORT),
            user=_text(reader, "User") or getpass.getuser(),
            identities=self._identities(target, given, configured, node),
            identities_only=bool(reader.get("IdentitiesOnly")) or (node and chosen is not None),
            agent=self._agent(reader),
            known_hosts=self._known_hosts(reader),
            key_alias=alias,
            proxy_command=None if jumped or not direct else _text(reader, "ProxyCommand"),
            connect_timeout_s=min(
                filter(None, (self._ssh.connect_timeout_s, _number(reader, "ConnectTimeout"))), default=15.0
            ),
            keepalive_s=keepalive,
            bastion=not node,
            parsed=reader,
        )

    def _identities(self, target: Target, given: list[str], configured: list[str], node: bool) -> tuple[str, ...]:
        paths = [self._path(text) for text in given]
        if missing := [path for path in paths if not path.exists()]:
            raise fault(
                Kind.CONFIG, f"{target.host}: cluster.ssh.identity {missing[0]} does not exist", "name a private key"
            )
        if not given or not node:
            named = [self._path(text) for text in configured]
            # Like ssh, which passes over an IdentityFile that is not there.
            paths += [path for path in named or self._default_identities() if path.exists()]
        return tuple(dict.fromkeys(map(str, paths)))

    def _default_identities(self) -> list[Path]:
        return [self._home / ".ssh" / name for name in DEFAULT_IDENTITIES]

    def _known_hosts(self, reader: Reader) -> tuple[str, ...]:
        if self._ssh.known_hosts:
            return (str(self._path(self._ssh.known_hosts)),)
        user = _list(reader, "UserKnownHostsFile") if reader.get("UserKnownHostsFile") is not None else USER_KNOWN_HOSTS
        system = _list(reader, "GlobalKnownHostsFile") or GLOBAL_KNOWN_HOSTS
        # Where the user keeps none, nothing may be written to the system's file in its place.
        return tuple(str(self._path(text)) for text in (*(user or (os.devnull,)), *system))

    def _agent(self, reader: Reader) -> str:
        agent = reader.get("IdentityAgent", ())
        if agent is None:
            return ""
        text = agent if isinstance(agent, str) else "SSH_AUTH_SOCK"
        if text == "SSH_AUTH_SOCK" or text.startswith("$"):
            return os.environ.get("SSH_AUTH_SOCK" if text == "SSH_AUTH_SOCK" else text.strip("${}"), "")
        return str(self._path(text))

    def _path(self, text: str) -> Path:
        return self._home / text[2:] if text.startswith("~/") else Path(text).expanduser()


def _load(last: Reader | None, paths: list[Path], final: bool, names: tuple[Any, ...]) -> Reader:
    reader = Reader(last, final, False, final, *names)
    for path in paths:
        reader.parse(path)
    reader.loaded = True
    return reader


def _jump(word: str, label: str) -> Target:
    """`[user@]host[:port]`, an IPv6 address in brackets, or `ssh://` before it.

    Raises:
        LinkError: it is none.
    """
    text = word.strip().removeprefix("ssh://").rstrip("/")
    user, at, place = text.rpartition("@")
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]\s]+))(?::(\d{1,5}))?", place) or re.fullmatch(
        r"([\da-fA-F]*:[\da-fA-F]*:[\da-fA-F:.]*)", place
    )
    if match is None or (at and not user):
        raise fault(Kind.CONFIG, f'{label}: "{word}" is no [user@]host[:port] to jump over', "mend ProxyJump")
    groups = (*match.groups(), None, None)
    return Target(groups[0] or groups[1] or "", user or None, int(groups[2]) if groups[2] else None)


def _text(reader: Reader, option: str) -> str | None:
    value = reader.get(option)
    return value if isinstance(value, str) and value else None


def _number(reader: Reader, option: str) -> float | None:
    value = reader.get(option)
    return value if isinstance(value, int) else None


def _list(reader: Reader, option: str) -> list[str]:
    value: Any = reader.get(option)
    return list(map(str, cast(list[object], value))) if isinstance(value, list) else []
