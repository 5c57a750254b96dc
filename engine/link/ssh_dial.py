"""One SSH connection: options, the attempt, and what was learned of it when it failed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import asyncssh

from engine.link import ssh_keys
from engine.link.ssh_errors import Context, Stage, explain
from engine.link.ssh_identity import Identities, KeyRing
from engine.link.ssh_known import KnownHosts
from engine.link.ssh_model import KEEPALIVE_COUNT, MAX_FOREIGN_TEXT, Hop
from engine.link.ssh_reader import Reader

# Bulk over aes-gcm is half as fast again as over asyncssh's first choice; all others stay allowed.
_CIPHERS = "^aes128-gcm@openssh.com"
# 0.7 s of CPU on the loop for each connection; every server since 2013 has something better.
_KEX = "-diffie-hellman-group-exchange-*"


class Witness(asyncssh.SSHClient):
    """Sees how far a connection comes, and which host key is shown."""

    def __init__(self, on_lost: Callable[[Exception | None], None]) -> None:
        self.stage = Stage.CONNECT
        self.key: asyncssh.SSHKey | None = None
        self.ca: asyncssh.SSHKey | None = None
        self.banner = ""
        self._conn: asyncssh.SSHClientConnection | None = None
        self._on_lost = on_lost

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._conn = conn
        self.stage = Stage.BANNER

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(exc)

    def begin_auth(self, username: str) -> None:
        self.stage = Stage.LOGIN

    def auth_completed(self) -> None:
        self.stage = Stage.SESSION

    def auth_banner_received(self, msg: str, lang: str) -> None:
        self.banner = (self.banner + msg)[-MAX_FOREIGN_TEXT:]

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.key = key
        return False

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.ca = key
        return False

    def reached(self) -> Stage:
        """How far it came."""
        spoke = self._conn is not None and self._conn.get_extra_info("server_version")
        return Stage.KEYS if self.stage == Stage.BANNER and spoke else self.stage


class Connection:
    """A connection that is logged in. `lost` is set, with the reason, once it is gone."""

    def __init__(self, hop: Hop, conn: asyncssh.SSHClientConnection, lost: asyncio.Future[Exception | None]) -> None:
        self.hop = hop
        self.ssh = conn
        self.lost = lost

    @property
    def usable(self) -> bool:
        """False once it has ended."""
        return not self.lost.done() and not self.ssh.is_closed()

    async def close(self, patience_s: float = 2.0) -> None:
        """End it; a peer that does not answer is not waited for."""
        self.ssh.close()
        try:
            async with asyncio.timeout(patience_s):
                await self.ssh.wait_closed()
        except TimeoutError:
            self.ssh.abort()


async def dial(
    hop: Hop, via: Connection | None, known: KnownHosts, ring: KeyRing, lost: asyncio.Future[Exception | None]
) -> Connection:
    """Connect to `hop` and log in, once.

    Args:
        via: the bastion to go through; None: directly, or as ProxyCommand says.
        lost: set when the connection is lost later on.

    Raises:
        LinkError: the sentence for what went wrong.
    """
    witness = Witness(lambda exc: None if lost.done() else lost.set_result(exc))
    identities = Identities()
    with _words_of_proxy(hop) as (command, words):
        try:
            identities, options = await asyncio.to_thread(_prepare, hop, known, ring, command)
            async with asyncio.timeout(hop.connect_timeout_s):
                conn = await asyncssh.connect(
                    hop.address,
                    hop.port,
                    config=None,
                    options=_config_of(hop),
                    tunnel=via.ssh if via else None,
                    client_factory=lambda: witness,
                    **options,
                )
        except asyncssh.HostKeyNotVerifiable as err:
            raise ssh_keys.refused(known, hop, witness.key, witness.ca, str(err)) from err
        except (OSError, asyncssh.Error, ValueError) as err:
            agent_keys, gone = await _agent_words(hop, identities, err)
            context = Context(
                hop,
                witness.reached(),
                via=via.hop.name if via else "",
                locked=_short(identities.locked),
                broken=(*_short(identities.broken), *gone),
                offered=(*agent_keys, *_short(identities.offered)),
                said=witness.banner or words(),
            )
            raise explain(err, context) from err
    return Connection(hop, conn, lost)


def _config_of(hop: Hop) -> asyncssh.SSHClientConnectionOptions:
    """An options object that holds nothing but our parsed config, upon which asyncssh builds the real one."""
    base = asyncssh.SSHClientConnectionOptions.__new__(asyncssh.SSHClientConnectionOptions)
    base.kwargs = {}
    base.config = hop.parsed
    return base


def _prepare(
    hop: Hop, known: KnownHosts, ring: KeyRing, command: list[str] | None
) -> tuple[Identities, dict[str, Any]]:
    """Keys, and what `asyncssh.connect` is told beyond the config. It reads files: call it in a thread."""
    reader: Reader = hop.parsed
    identities, keys = ring.load(hop), ssh_keys.trusted(known, hop)
    more: dict[str, Any] = {}
    if reader.get("Ciphers") is None:
        more["encryption_algs"] = _CIPHERS
    if reader.get("KexAlgorithms") is None:
        more["kex_algs"] = _KEX
    if reader.get("HostKeyAlgorithms") is None:
        more["server_host_key_algs"] = ssh_keys.algorithms(keys)
    if hop.identities_only:
        # Without a public part there is nothing to choose the agent's keys by, and None would mean all of them.
        more["agent_identities"] = list(identities.public) or [b"none"]
    return identities, more | {
        "username": hop.user,
        "known_hosts": keys,
        "host_key_alias": hop.key_alias,
        "client_keys": list(identities.keys),
        "agent_path": hop.agent or None,
        "agent_forwarding": False,
        "proxy_command": command,
        "compression_algs": "none",
        "canonicalize_hostname": False,
        "connect_timeout": None,  # ours goes around everything
        "login_timeout": 0,
        "keepalive_interval": hop.keepalive_s,
        "keepalive_count_max": KEEPALIVE_COUNT,
    }


@contextlib.contextmanager
def _words_of_proxy(hop: Hop) -> Generator[tuple[list[str] | None, Callable[[], str]]]:
    """ProxyCommand as an argument list, and a function that tells what it printed on stderr.

    asyncssh would take its stderr for data of the connection, and the end of stderr for the connection's end (so
    that pipe stays open as descriptor 3), and would split the command without a shell.
    """
    if not hop.proxy_command:
        yield None, lambda: ""
        return
    handle, name = tempfile.mkstemp(prefix="trainui-proxy-")
    os.close(handle)
    path = Path(name)
    try:
        yield (
            ["/bin/sh", "-c", f"exec 3>&2 2>>{shlex.quote(name)}; exec {hop.proxy_command}"],
            lambda: path.read_text(encoding="utf-8", errors="replace")[-MAX_FOREIGN_TEXT:],
        )
    finally:
        path.unlink(missing_ok=True)


async def _agent_words(hop: Hop, identities: Identities, err: Exception) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How many keys of the agent were offered, and that it is gone; asked only when a login was refused.

    A run outlives the login from which it was started, and a forwarded agent does not.
    """
    if not hop.agent or not isinstance(err, asyncssh.DisconnectError):
        return (), ()
    try:
        held = await asyncio.wait_for(_agent_keys(hop.agent), 2.0)
    except (OSError, asyncssh.Error, ValueError):
        return (), (f"the ssh-agent at {hop.agent} does not answer",)
    keys = [key.public_data for key in held]
    if hop.identities_only:
        keys = [key for key in keys if key in identities.public]
    return ((f"{len(keys)} key{'s' * (len(keys) != 1)} of the agent",) if keys else ()), ()


async def _agent_keys(path: str) -> Sequence[asyncssh.SSHKeyPair]:
    async with asyncssh.connect_agent(path) as agent:
        return await agent.get_keys()


def _short(names: tuple[str, ...]) -> tuple[str, ...]:
    home = str(Path.home()) + "/"
    return tuple("~/" + name.removeprefix(home) if name.startswith(home) else name for name in names)
