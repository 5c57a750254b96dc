"""All SSH connections of a run: one for each node, one shared for each bastion, never too many logins at once."""

from __future__ import annotations

import asyncio
import logging
import random
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path

from engine.config.schema import Ssh
from engine.errors import LinkError
from engine.link import ssh_keys
from engine.link.ssh_config import resolve
from engine.link.ssh_dial import Connection, dial
from engine.link.ssh_gate import HANDSHAKES, Gate, Logins
from engine.link.ssh_identity import KeyRing
from engine.link.ssh_known import KnownHosts
from engine.link.ssh_model import Hop, HostKeyOffer, Kind, Route, Target, fault
from engine.link.ssh_reader import Files

# Tries beyond the first, for what may heal within seconds; the caller has a slower backoff of its own.
RETRIES = 3
RETRY_BASE_S = 1.0
# What may heal so soon. A host that gave no answer in all of connect_timeout_s is left to the caller.
_HEALING = frozenset({Kind.DROPPED.value, Kind.LOST.value})
# Where the hard limit of open files is "unlimited" (as many as Linux allows by default).
_MAX_FILES = 1 << 20


class SshPool:
    """Shared by all links of a run; used on one event loop.

    `warnings` grows by what the user's SSH config says and we do not follow, each once.
    """

    def __init__(
        self,
        options: Ssh,
        *,
        home: Path | None = None,
        jitter: Callable[[float, float], float] = random.uniform,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """
        Args:
            options: cluster.ssh.
            home: whose ~/.ssh counts; default: this user's.
            jitter: picks the wait before a retry between two numbers of seconds.
        """
        self.warnings: list[str] = []
        self.gate = Gate(min(HANDSHAKES, options.max_parallel))
        self._options = options
        self._home = home
        self._jitter = jitter
        self._sleep = sleep
        self._known = KnownHosts()
        self._ring = KeyRing()
        self._files = Files()
        self._logins = Logins()
        self._routes: dict[Target, Route] = {}
        self._bastions: dict[tuple[object, ...], asyncio.Task[Connection]] = {}
        # It writes a line for each packet type otherwise, and costs a tenth of a login doing so.
        logging.getLogger("asyncssh").setLevel(logging.WARNING)
        raise_file_limit()

    async def connect(self, target: Target) -> Connection:
        """A new connection to a node, logged in; the caller closes it.

        Raises:
            LinkError: it cannot be reached. `retry` False: not before a person has acted.
        """
        route = await self._route(target)
        try:
            via = None
            for tries in range(RETRIES + 1):
                via = await self._way_to(route)
                try:
                    return await self._attempt(route.node, via)
                except LinkError as err:
                    if err.kind not in _HEALING or tries == RETRIES:
                        raise
                await self._sleep(self._jitter(0.0, RETRY_BASE_S * 2**tries))
        except LinkError:
            self._routes.pop(target, None)  # a config that was mended in between shall count
            raise
        raise AssertionError("the loop returns or raises")

    def reset_auth(self) -> None:
        """Try refused logins again: the user has mended something, and says so."""
        self._logins.reset()

    def accept_host_key(self, offer: HostKeyOffer) -> None:
        """Write an offered key into known_hosts.

        Raises:
            LinkError: it cannot be written.
        """
        ssh_keys.accept_host_key(offer)

    async def close(self) -> None:
        """Close the bastions' connections; those of nodes belong to who asked for them."""
        tasks, self._bastions = list(self._bastions.values()), {}
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Connection):
                await result.close()

    async def _route(self, target: Target) -> Route:
        route = self._routes.get(target)
        if route is None:
            try:
                async with asyncio.timeout(self._options.connect_timeout_s):
                    route = await asyncio.to_thread(resolve, target, self._options, self._home, self._files)
            except TimeoutError as err:
                limit = f"{self._options.connect_timeout_s:g} s"
                raise fault(
                    Kind.CONFIG,
                    f"{target.host}: reading the SSH config took more than {limit}",
                    "a Match exec command that hangs, or a slow home directory?",
                ) from err
            self._routes[target] = route
            self.warnings += [text for text in route.warnings if text not in self.warnings]
        return route

    async def _way_to(self, route: Route) -> Connection | None:
        """The connection through which the node is reached: the last bastion's, which all nodes behind it share."""
        via: Connection | None = None
        key: tuple[object, ...] = ()
        for hop in route.hops[:-1]:
            key = (*key, hop.user, hop.where, hop.proxy_command)
            via = await self._bastion(key, hop, via)
        return via

    async def _bastion(self, key: tuple[object, ...], hop: Hop, via: Connection | None) -> Connection:
        task = self._bastions.get(key)
        if task is not None and task.done() and not _usable(task):
            task = None
        if task is None:
            task = asyncio.create_task(self._open_bastion(hop, via), name=f"bastion {hop.name}")
            # Whoever waits is told; that nobody may be waiting any more is no reason for asyncio to complain.
            task.add_done_callback(lambda it: it.cancelled() or it.exception())
            self._bastions[key] = task
        # One who gives up must not take the connection from the others.
        return await asyncio.shield(task)

    async def _open_bastion(self, hop: Hop, via: Connection | None) -> Connection:
        for tries in range(RETRIES + 1):
            try:
                return await self._attempt(hop, via)
            except LinkError as err:
                if err.kind not in _HEALING or tries == RETRIES or (via is not None and not via.usable):
                    raise
            await self._sleep(self._jitter(0.0, RETRY_BASE_S * 2**tries))
        raise AssertionError("the loop returns or raises")

    async def _attempt(self, hop: Hop, via: Connection | None) -> Connection:
        place = hop.proxy_command or hop.where
        places = [place] if via is None else [place, f"through {via.hop.where}"]
        async with self.gate.handshake(places):
            self._logins.check(hop)
            lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
            try:
                connection = await dial(hop, via, self._known, self._ring, lost)
            except LinkError as err:
                self._logins.settled(hop, err)
                if err.kind == Kind.DROPPED:
                    self.gate.dropped(place)
                raise
            self._logins.settled(hop, None)
            return connection


def raise_file_limit() -> None:
    """Allow this process as many open files as the system lets it: each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # a container may say no; then the limit stays what it was


def _usable(task: asyncio.Task[Connection]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().usable
