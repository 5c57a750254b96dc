"""The way to a host, as ~/.ssh/config, /etc/ssh/ssh_config and cluster.ssh describe it.

asyncssh alone would take `UserKnownHostsFile none` for "check nothing", abort on an IdentityFile that does not exist,
never look at /etc/ssh/ssh_config, and open one connection to a bastion for each node behind it.
"""

from __future__ import annotations

import getpass
import os
import re
from pathlib import Path
from typing import Any, cast

from asyncssh import ConfigParseError

from engine.config.schema import Ssh
from engine.link.ssh_model import DEFAULT_PORT, Hop, Kind, Route, Target, fault
from engine.link.ssh_reader import Files, Reader

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
# ssh_config(5): IdentityFile and GlobalKnownHostsFile, their defaults.
DEFAULT_IDENTITIES = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
# Enough for any chain of bastions; more is a loop that the names do not show.
MAX_HOPS = 8


def resolve(target: Target, ssh: Ssh, home: Path | None = None, files: Files | None = None) -> Route:
    """The way to `target`. It reads files and runs `Match exec` commands: call it in a thread.

    Args:
        ssh: the run's cluster.ssh.
        home: whose `.ssh` is meant; default: this user's.
        files: what was read for other hosts before.

    Raises:
        LinkError: the config cannot be used (kind `config`); the sentence has file and line where there is one.
    """
    resolver = _Resolver(ssh, home or Path.home(), files or Files())
    try:
        hops = resolver.hops(target, (), node=True)
    except ConfigParseError as err:
        raise fault(Kind.CONFIG, f"{target.host}: the SSH config cannot be read: {err}", "ssh reads it too") from err
    except OSError as err:
        what = f"{err.filename}: {(err.strerror or str(err)).lower()}"
        raise fault(Kind.CONFIG, f"{target.host}: the SSH config cannot be read: {what}") from err
    return Route(tuple(hops), tuple(dict.fromkeys(resolver.warnings)))


class _Resolver:
    def __init__(self, ssh: Ssh, home: Path, files: Files) -> None:
        self._ssh = ssh
        self._files = files
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
        names = (_local_user(), user if user else (), target.host, port if port else ())
        paths = [
            path
            for path in (self._home / ".ssh" / "config", SYSTEM_CONFIG)
            if self._ssh.config and os.access(path, os.R_OK)
        ]
        reader = Reader(self._files, names).read(paths)
        if reader.has_match_final():
            self.warnings += reader.ignored
            reader = Reader(self._files, names, reader).read(paths)
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
            user=_text(reader, "User") or _local_user(),
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
        return self._home / text[2:] if text.startswith("~/") else Path(os.path.expanduser(text))  # noqa: PTH111 - no error for an unknown home


def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as err:
        raise fault(Kind.CONFIG, f"user id {os.getuid()} of this machine has no name", "set USER") from err


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
