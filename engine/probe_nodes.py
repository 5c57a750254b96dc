"""Probes on many nodes at once: one channel for each, kept open from the first facts to the last check.

What a node is asked depends on the plan, and the plan on what the nodes told: so the probe stays, and every host is
logged in to once. `engine/node/probe.py` is what runs there; it goes through the same links as the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.clock import Clock, SystemClock
from engine.errors import LinkError
from engine.link.base import Channel, Link
from engine.node_report import (
    Machine,
    NodeReport,
    Offset,
    Reach,
    parse_looked,
    parse_machine,
    parse_reach,
)
from engine.plan import NodePlan, Plan
from engine.preflight_sentences import check_request

# The probe gives each of its tools 5 s; a machine that is only slow is through by then (seconds).
FACTS_TIMEOUT_S = 20.0
CHECK_TIMEOUT_S = 20.0
PING_TIMEOUT_S = 5.0
# A connection that is not there by then is dropped by something (seconds).
REACH_TIMEOUT_S = 5.0
# glibc's resolver: 5 s, two tries, and mostly two name servers.
RESOLVE_TIMEOUT_S = 20.0
# The probe ends after 120 s without a word.
KEEPALIVE_S = 20.0
# Of so many pings the fastest tells the clock best.
CLOCK_PINGS = 5


class NodeProbe:
    """The open probe of one node."""

    def __init__(self, host: str, channel: Channel) -> None:
        self.host = host
        self._channel = channel
        self._answers: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._facts: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._gone: LinkError | None = None
        self._next = 0
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._keep_alive())]

    async def machine(self) -> Machine:
        """What the probe tells by itself.

        Raises:
            LinkError: it does not, or its channel is gone.
        """
        facts = await self._wait(self._facts, FACTS_TIMEOUT_S)
        if "error" in facts:
            raise LinkError(f"{self.host}: the probe could not look around there: {facts['error']}")
        return parse_machine(facts)

    async def ask(self, request: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """Send a request (its name is `t`), and return the answer.

        Raises:
            LinkError: it is refused, there is no answer in time, or the channel is gone.
        """
        if self._gone is not None:
            raise self._gone
        self._next += 1
        number = self._next
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            await self._channel.send({**request, "id": number})
            reply = await self._wait(answer, timeout_s)
        finally:
            self._answers.pop(number, None)
        if reply.get("ok") is not True:
            raise LinkError(f"{self.host}: the probe could not {request['t']}: {reply.get('error')}")
        return reply

    async def close(self) -> None:
        """The probe ends, and leaves nothing behind."""
        self._end(LinkError(f"{self.host}: the probe was closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(LinkError, OSError):
            await self._channel.close()

    async def _wait(self, future: asyncio.Future[Mapping[str, Any]], timeout_s: float) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(future)
        except TimeoutError as err:
            busy = await self._busy_with()
            where = f" while it looks at {', '.join(busy)}" if busy else ""
            hint = "a network disk or a name server that hangs?" if busy else "is the machine overloaded?"
            raise LinkError(f"{self.host}: no answer for {timeout_s:g} s{where}", hint) from err

    async def _busy_with(self) -> list[str]:
        """What the probe is looking at; nothing where it does not say that either."""
        self._next += 1
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[self._next] = answer
        with contextlib.suppress(LinkError, TimeoutError):
            async with asyncio.timeout(PING_TIMEOUT_S):
                await self._channel.send({"t": "ping", "id": self._next})
                looking: list[object] = (await answer).get("looking") or []
                return [str(item) for item in looking]
        return []

    async def _read(self) -> None:
        gone = LinkError(f"{self.host}: the probe there ended, or the link to it")
        try:
            async for frame in self._channel.frames():
                if frame.type == "facts" and not self._facts.done():
                    self._facts.set_result(frame.head)
                elif frame.type == "re":
                    waiting = self._answers.get(frame.head.get("id") or 0)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(frame.head)
        except LinkError as err:
            gone = err
        finally:
            # An SSH channel knows more.
            self._end(getattr(self._channel, "ended", None) or gone)

    def _end(self, why: LinkError) -> None:
        self._gone = self._gone or why
        for future in (self._facts, *self._answers.values()):
            if not future.done():
                future.set_exception(why)
                future.exception()  # nobody may be waiting for it; that is no fault

    async def _keep_alive(self) -> None:
        with contextlib.suppress(LinkError):
            while True:
                await asyncio.sleep(KEEPALIVE_S)
                await self._channel.send({"t": "ping"})


class NodeProbes:
    """The probes of all nodes of a plan, in order, and what they found so far."""

    def __init__(self, hosts: Sequence[str], clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._reports = [NodeReport(host) for host in hosts]
        self._probes: list[NodeProbe | None] = [None] * len(hosts)

    @property
    def reports(self) -> tuple[NodeReport, ...]:
        """What is known by now."""
        return tuple(self._reports)

    async def open(self, links: Sequence[Link]) -> tuple[NodeReport, ...]:
        """Start all probes and take in what the machines are. Never raises: a node that fails has a `fault`.

        Args:
            links: one for each host. How many are opened at once is for them to say.
        """
        source = await asyncio.to_thread(_probe_source)
        async with asyncio.TaskGroup() as group:
            for at, link in enumerate(links):
                group.create_task(self._open(at, link, source))
        return self.reports

    async def check(self, plan: Plan, node_dirs: Sequence[str]) -> tuple[NodeReport, ...]:
        """Ask every node for what the plan needs there. Never raises.

        Args:
            plan: its nodes are the probes' hosts, in order.
            node_dirs: where each node keeps the run's files, absolute.
        """
        async with asyncio.TaskGroup() as group:
            for at, node in enumerate(plan.nodes):
                group.create_task(self._look(at, plan, node, node_dirs[at]))
        # Alone, so that nothing else delays them.
        async with asyncio.TaskGroup() as group:
            for at in range(len(plan.nodes)):
                group.create_task(self._ask_clock(at))
        await self._try_master(plan)
        return self.reports

    async def close(self) -> None:
        """End all probes."""
        probes = [probe for probe in self._probes if probe is not None]
        self._probes = [None] * len(self._probes)
        await asyncio.gather(*(probe.close() for probe in probes))

    async def _open(self, at: int, link: Link, source: bytes) -> None:
        host = self._reports[at].host
        try:
            channel = await link.open(source, {"v": 1, "nonce": secrets.token_hex(8)})
            probe = self._probes[at] = NodeProbe(host, channel)
            self._note(at, machine=await probe.machine())
        except LinkError as err:
            self._fail(at, err)

    async def _look(self, at: int, plan: Plan, node: NodePlan, node_dir: str) -> None:
        probe = self._ready(at)
        if probe is None:
            return
        try:
            request = {"t": "check", **check_request(plan, node, node_dir)}
            self._note(at, looked=parse_looked(await probe.ask(request, CHECK_TIMEOUT_S)))
        except LinkError as err:
            self._fail(at, err)

    async def _ask_clock(self, at: int) -> None:
        probe = self._ready(at)
        if probe is None:
            return
        found: list[Offset] = []
        try:
            for _ in range(CLOCK_PINGS):
                wall, sent = self._clock.wall(), self._clock.monotonic()
                now = (await probe.ask({"t": "ping"}, PING_TIMEOUT_S)).get("now")
                half = (self._clock.monotonic() - sent) / 2
                if isinstance(now, int | float):
                    # It answered at some moment between the two: the middle is wrong by half of it at most.
                    found.append(Offset(now - (wall + half), half))
        except LinkError as err:
            self._fail(at, err)
        if found:
            self._note(at, clock=min(found, key=lambda offset: offset.error_s))

    async def _try_master(self, plan: Plan) -> None:
        """The master listens as torch would, and every node, itself included, connects by its name."""
        master = self._ready(0)
        if master is None:
            return
        greeting = secrets.token_hex(16)
        try:
            asked = {"t": "listen", "port": plan.master_port or 0, "greeting": greeting}
            answer = await master.ask(asked, PING_TIMEOUT_S)
        except LinkError as err:
            self._fail(0, err)
            return
        if plan.master_port is not None:
            self._note(0, port_fault=str(answer.get("fault") or ""))
        request = {
            "t": "reach",
            "host": plan.master_addr,
            "port": answer.get("port"),
            "greeting": greeting,
            "timeout_s": REACH_TIMEOUT_S,
        }
        async with asyncio.TaskGroup() as group:
            for at in range(len(self._probes)):
                group.create_task(self._try_reach(at, request))
        with contextlib.suppress(LinkError):
            await master.ask({"t": "unlisten"}, PING_TIMEOUT_S)

    async def _try_reach(self, at: int, request: Mapping[str, Any]) -> None:
        probe = self._ready(at)
        if probe is None:
            return
        try:
            answer = await probe.ask(request, REACH_TIMEOUT_S + RESOLVE_TIMEOUT_S)
            self._note(at, reach=parse_reach(answer))
        except LinkError as err:
            self._note(at, reach=Reach("error", error=err.message.removeprefix(f"{probe.host}: ")))

    def _ready(self, at: int) -> NodeProbe | None:
        """The node's probe, unless something failed there already: then nothing more is asked."""
        return None if self._reports[at].fault else self._probes[at]

    def _note(self, at: int, **found: Any) -> None:
        self._reports[at] = replace(self._reports[at], **found)

    def _fail(self, at: int, err: LinkError) -> None:
        self._note(at, fault=err.message, hint=err.hint)


def _probe_source() -> bytes:
    return (Path(__file__).parent / "node" / "probe.py").read_bytes()
