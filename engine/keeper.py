"""Keeps the channel to one node's agent open, and turns its frames into events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from engine.errors import LinkError
from engine.job.events import Event, LinkLost, NodeConnecting
from engine.job.translate import events_of
from engine.link.base import Channel, Link
from engine.wire import Frame

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
    ) -> None:
        """
        Args:
            make_spec: the spec to start the agent with; called for each try, with a new nonce.
            feed: takes events.
            on_failure: told that the agent could not be started or found, with a sentence.
            on_beat: takes heartbeats (the header of a `beat` frame).
        """
        self.node_rank = node_rank
        self._link = link
        self._source = agent_source
        self._make_spec = make_spec
        self._feed = feed
        self._on_failure = on_failure
        self._on_beat = on_beat
        self._channel: Channel | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._released = False
        self._heard_at = 0.0

    async def connect(self) -> None:
        """Open the channel if it is not; ask an open one for its state, which feeds `NodeUp`."""
        self._released = False
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
        channel = self._channel
        if channel is None:
            raise LinkError("the agent is not connected")
        self._next_id += 1
        number = self._next_id
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await channel.send({**head, "id": number})
            return await asyncio.wait_for(answer, REQUEST_TIMEOUT_S)
        except TimeoutError as err:
            raise LinkError(f"the agent did not answer within {REQUEST_TIMEOUT_S:.0f} s") from err
        finally:
            self._waiting.pop(number, None)

    async def release(self) -> None:
        """The run is over: let the agent go, and wait until the channel has ended."""
        self._released = True
        task = self._task
        if self._channel is not None:
            with contextlib.suppress(LinkError):
                await self._channel.send({"t": "release"})
        if task is None or task.done():
            return
        if self._channel is None:
            task.cancel()
        _, pending = await asyncio.wait({task}, timeout=RELEASE_TIMEOUT_S)
        if pending:
            await self.close()

    async def close(self) -> None:
        """Leave the agent as it is."""
        self._released = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

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
        channel = await self._link.open(self._source, self._make_spec())
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        pinger = asyncio.create_task(self._ping(channel))
        was_up = False
        try:
            async for frame in channel.frames():
                self._heard_at = loop.time()
                if frame.type == "state" and not was_up:
                    was_up = True
                    self._channel = channel
                self._take(frame)
            silent = loop.time() - self._heard_at >= SILENCE_LIMIT_S
            reason = f"the agent does not answer for {SILENCE_LIMIT_S:.0f} s" if silent else "the agent is gone"
            return reason, was_up
        finally:
            self._channel = None
            pinger.cancel()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(LinkError("the channel to the agent is closed"))
            await channel.close()

    def _take(self, frame: Frame) -> None:
        head = frame.head
        match frame.type:
            case "re":
                answer = self._waiting.get(head.get("id", -1))
                if answer is not None and not answer.done():
                    answer.set_result(head)
            case "fatal":
                raise LinkError(str(head.get("error", "the agent could not be started")))
            case "beat":
                self._on_beat(head)
            case _:
                try:
                    events = events_of(self.node_rank, head)
                except (KeyError, TypeError, ValueError) as err:
                    raise LinkError(f"the agent sent a {frame.type} frame that is not understood: {err!r}") from err
                for event in events:
                    self._feed(event)
                beats = head.get("beats")
                if isinstance(beats, dict):
                    for beat in beats.values():  # pyright: ignore[reportUnknownVariableType]
                        self._on_beat(beat)  # pyright: ignore[reportUnknownArgumentType]

    async def _ping(self, channel: Channel) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            if loop.time() - self._heard_at >= SILENCE_LIMIT_S:
                await channel.close()
                return
            with contextlib.suppress(LinkError):
                await channel.send({"t": "ping"})
