"""Keeps the channel to one node's agent open, turns its frames into events and feeds the copies of its logs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from engine.errors import LinkError
from engine.job.events import Event, LinkLost, NodeConnecting
from engine.job.translate import events_of
from engine.link.base import Channel, Link
from engine.logs.copier import Copier
from engine.logs.mirror import Mirror
from engine.wire import Frame

log = logging.getLogger("trainui.engine")

PING_INTERVAL_S = 10.0
# Three pings unanswered; the agent's bridge gives up after the same time.
SILENCE_LIMIT_S = 30.0
BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 30.0
REQUEST_TIMEOUT_S = 30.0
RELEASE_TIMEOUT_S = 5.0


class NodeKeeper:
    """One node's channel. All methods are called on the engine's loop."""

    def __init__(
        self,
        node_rank: int,
        link: Link,
        agent_source: bytes,
        make_spec: Callable[[], dict[str, Any]],
        *,
        feed: Callable[[Event], None],
        on_failure: Callable[[int, str], None],
        on_beat: Callable[[dict[str, Any]], None],
        mirror: Mirror | None = None,
        shared: bool | None = None,
        on_copy_fault: Callable[[int, str | None], None] | None = None,
    ) -> None:
        """
        Args:
            make_spec: the spec to start the agent with; called for each try, with a new nonce.
            feed: takes events.
            on_failure: told that the agent could not be started or found, with a sentence.
            on_beat: takes heartbeats (the header of a `beat` frame).
            mirror: where the node's logs are copied to if it does not share the disk; None: it certainly does.
            shared: True or False where the config says whether it does; None: found out at each connection.
            on_copy_fault: told what keeps the copies from being written, and with None when nothing does any more.
        """
        self.node_rank = node_rank
        self._link = link
        self._source = agent_source
        self._make_spec = make_spec
        self._feed = feed
        self._on_failure = on_failure
        self._on_beat = on_beat
        self._on_copy_fault = on_copy_fault
        self._channel: Channel | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._next_id = 0
        self._leaving = False  # the run is over, the last logs may still be on their way
        self._released = False
        self._heard_at = 0.0
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._probes = mirror if shared is None else None
        self._copier: Copier | None = None
        if mirror is not None:
            self._copier = Copier(mirror, send=self._outbox.put_nowait, on_fault=self._on_fault, shared=shared)

    async def connect(self) -> None:
        """Open the channel if it is not; ask an open one for its state, which feeds `NodeUp`."""
        self._leaving = self._released = False
        if self._channel is not None:
            with contextlib.suppress(LinkError):
                await self._channel.send({"t": "hello"})
        elif self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep())

    async def request(self, head: dict[str, Any]) -> dict[str, Any]:
        """Ask the agent something and return its answer.

        Raises:
            LinkError: it cannot be reached, or does not answer in time.
        """
        return (await self._ask(head)).head

    async def read(self, attempt: int, rank: int, offset: int, size: int) -> bytes:
        """A part of a log, from the node: at most 1 MiB; shorter where the log ends.

        Raises:
            LinkError: the agent cannot be reached, or cannot read it.
        """
        frame = await self._ask({"t": "read", "attempt": attempt, "rank": rank, "offset": offset, "size": size})
        if not frame.head.get("ok"):
            raise LinkError(str(frame.head.get("error", "the agent refused to read")))
        return frame.payload

    async def _ask(self, head: dict[str, Any]) -> Frame:
        channel = self._channel
        if channel is None:
            raise LinkError("the agent is not connected")
        self._next_id += 1
        number = self._next_id
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await channel.send({**head, "id": number})
            return await asyncio.wait_for(answer, REQUEST_TIMEOUT_S)
        except TimeoutError as err:
            raise LinkError(f"the agent did not answer within {REQUEST_TIMEOUT_S:.0f} s") from err
        finally:
            self._waiting.pop(number, None)

    async def release(self) -> None:
        """The run is over: wait for the last of its logs, let the agent go, and wait until the channel has ended."""
        self._leaving = True
        if self._copier is not None:
            await self._copier.whole()
        if not self._leaving:
            return  # the next attempt has begun meanwhile
        self._released = True
        task = self._task
        if self._channel is not None:
            with contextlib.suppress(LinkError):
                await self._channel.send({"t": "release"})
        if task is not None and not task.done():
            if self._channel is None:
                task.cancel()
            _, pending = await asyncio.wait({task}, timeout=RELEASE_TIMEOUT_S)
            if pending:
                await self.close()
        if self._copier is not None and self._released:
            self._copier.close()

    async def close(self) -> None:
        """Leave the agent as it is."""
        self._leaving = self._released = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._copier is not None:
            self._copier.close()

    async def _keep(self) -> None:
        backoff = BACKOFF_FIRST_S
        while not self._released:
            self._feed(NodeConnecting(self.node_rank))
            try:
                reason, was_up = await self._visit()
            except LinkError as err:
                reason, was_up = str(err), False
                self._on_failure(self.node_rank, reason)
            else:
                if not self._released:
                    self._feed(LinkLost(self.node_rank, reason))
            if self._released:
                return
            backoff = BACKOFF_FIRST_S if was_up else min(BACKOFF_MAX_S, backoff * 2)
            # A channel that was up is looked for again at once: on this machine it is back in no time.
            await asyncio.sleep(0.05 if was_up else backoff)

    async def _visit(self) -> tuple[str, bool]:
        """One channel from its opening to its end: why it ended, and whether the agent ever answered."""
        try:
            channel = await self._open()
        except BaseException:
            self._remove_token()
            raise
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        helpers = [asyncio.create_task(self._ping(channel)), asyncio.create_task(self._post(channel))]
        was_up = False
        try:
            async for frame in channel.frames():
                self._heard_at = loop.time()
                if frame.type == "state" and not was_up:
                    was_up = True
                    self._channel = channel
                    self._remove_token()
                self._take(frame)
            silent = loop.time() - self._heard_at >= SILENCE_LIMIT_S
            reason = f"the agent does not answer for {SILENCE_LIMIT_S:.0f} s" if silent else "the agent is gone"
            return reason, was_up
        finally:
            self._channel = None
            self._remove_token()
            for helper in helpers:
                helper.cancel()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(LinkError("the channel to the agent is closed"))
            if self._copier is not None:
                self._copier.closed()
            await channel.close()

    async def _open(self) -> Channel:
        spec = self._make_spec()
        token = None if self._probes is None else self._probes.place_token()
        if token is not None:
            spec = {**spec, "token": token}
        while not self._outbox.empty():
            self._outbox.get_nowait()  # was meant for the channel before
        if self._copier is not None:
            self._copier.opened()
        return await self._link.open(self._source, spec)

    def _remove_token(self) -> None:
        if self._probes is not None:
            self._probes.remove_token()

    def _take(self, frame: Frame) -> None:
        head = frame.head
        match frame.type:
            case "log" | "logend":
                self._take_log(frame)
            case "re":
                answer = self._waiting.get(head.get("id") or -1)
                if answer is not None and not answer.done():
                    answer.set_result(frame)
                elif not head.get("ok", True):
                    log.warning("node %d: %s", self.node_rank, head.get("error"))
            case "fatal":
                raise LinkError(str(head.get("error", "the agent could not be started")))
            case "beat":
                self._on_beat(head)
            case _:
                self._take_news(head)

    def _take_log(self, frame: Frame) -> None:
        if self._copier is None:
            return
        try:
            self._copier.take(frame)
        except (KeyError, TypeError) as err:
            raise _not_understood(frame.type, err) from err

    def _take_news(self, head: dict[str, Any]) -> None:
        try:
            events = events_of(self.node_rank, head)
            if self._copier is not None:
                self._copier.look(head)
        except (KeyError, TypeError, ValueError) as err:
            raise _not_understood(str(head.get("t")), err) from err
        if self._copier is None:
            self._tell(events)
        else:
            self._copier.offer(head, lambda: self._tell(events))
        beats = head.get("beats")
        if isinstance(beats, dict):
            for beat in beats.values():  # pyright: ignore[reportUnknownVariableType]
                self._on_beat(beat)  # pyright: ignore[reportUnknownArgumentType]

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            self._feed(event)

    def _on_fault(self, text: str | None) -> None:
        if text is not None:
            log.warning("node %d: %s", self.node_rank, text)
        if self._on_copy_fault is not None:
            self._on_copy_fault(self.node_rank, text)

    async def _post(self, channel: Channel) -> None:
        """Send what the copies ask for."""
        with contextlib.suppress(LinkError):
            while True:
                await channel.send(await self._outbox.get())

    async def _ping(self, channel: Channel) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            if loop.time() - self._heard_at >= SILENCE_LIMIT_S:
                await channel.close()
                return
            with contextlib.suppress(LinkError):
                await channel.send({"t": "ping"})


def _not_understood(name: str, err: Exception) -> LinkError:
    return LinkError(f"the agent sent a {name} frame that is not understood: {err!r}")
