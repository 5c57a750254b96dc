"""How many handshakes may be under way at once, and which logins are not tried again. No asyncssh here.

sshd drops connections that are not logged in yet beyond MaxStartups (10, in all, by default): 100 at once through
one address lose 45, and nothing tells them why. Since 9.8 it also shuts out an address whose logins failed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from engine.errors import LinkError
from engine.link.ssh_model import Hop, Kind, fault

HANDSHAKES = 16
HANDSHAKES_PER_ADDRESS = 6


class Limit:
    """At most `size` at once, first come, first served; `size` may shrink while it is in use."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.busy = 0
        self.peak = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Hold one of the places."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    def narrow(self) -> None:
        """Half as many from now on, one at least."""
        self.size = max(1, self.size // 2)

    async def _enter(self) -> None:
        if self.busy < self.size and not self._waiting:
            self._take()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # it was our turn just as we were cancelled
            else:
                with suppress(ValueError):
                    self._waiting.remove(turn)
            raise

    def _take(self) -> None:
        self.busy += 1
        self.peak = max(self.peak, self.busy)

    def _leave(self) -> None:
        self.busy -= 1
        while self._waiting and self.busy < self.size:
            turn = self._waiting.popleft()
            if not turn.done():
                self._take()
                turn.set_result(None)


class Gate:
    """The caps of one run: in all, for each address, and for each bastion."""

    def __init__(self, total: int = HANDSHAKES, per_address: int = HANDSHAKES_PER_ADDRESS) -> None:
        self.total = Limit(total)
        self._per_address = per_address
        self._limits: dict[str, Limit] = {}

    def limit(self, place: str) -> Limit:
        """The cap of an address or a bastion."""
        return self._limits.setdefault(place, Limit(self._per_address))

    @asynccontextmanager
    async def handshake(self, places: Iterable[str]) -> AsyncGenerator[None]:
        """Wait for a turn at all of `places`; the common cap comes last, so that nobody holds it while waiting."""
        async with AsyncExitStack() as stack:
            for place in places:
                await stack.enter_async_context(self.limit(place).slot())
            await stack.enter_async_context(self.total.slot())
            yield

    def dropped(self, place: str) -> None:
        """The server closed a connection before login, so it takes fewer at once than we thought."""
        self.limit(place).narrow()


class Logins:
    """Which keys were refused. After one refusal the same user and keys are not tried elsewhere until told so.

    A host that has let them in before is tried all the same: one node that refuses must not keep the others away.
    """

    def __init__(self) -> None:
        self._refused: dict[tuple[str, ...], str] = {}
        self._proven: set[tuple[str, ...]] = set()

    def check(self, hop: Hop) -> None:
        """
        Raises:
            LinkError: these keys were refused elsewhere.
        """
        where = self._refused.get(hop.key_source)
        if where is None or (hop.where, *hop.key_source) in self._proven:
            return
        raise fault(
            Kind.AUTH,
            f'{hop.label}: login as "{hop.user}" at {hop.where} was not tried, because {where} refused the same user '
            "and keys",
            "mend that first, then reconnect",
        )

    def settled(self, hop: Hop, err: LinkError | None) -> None:
        """Keep how a login ended."""
        if err is None:
            self._proven.add((hop.where, *hop.key_source))
        elif err.kind in (Kind.AUTH, Kind.TOO_MANY_KEYS, Kind.PASSPHRASE):
            self._refused.setdefault(hop.key_source, f"{hop.label} ({hop.where})")

    def reset(self) -> None:
        """A person has acted: try all again."""
        self._refused.clear()
