"""The async shell around the reducer: runs its effects, feeds it what happens, publishes snapshots."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.clock import Clock
from engine.errors import IntentRefused, LinkError, RunDirError
from engine.hub import Hub
from engine.job.effects import (
    BeginAttempt,
    CancelTimer,
    Connect,
    Effect,
    ExtendGrace,
    Finish,
    SetTimer,
    StartNode,
    StopNode,
)
from engine.job.events import (
    AttemptStarted,
    EngineStarted,
    Event,
    GraceExtended,
    LinkLost,
    NodeFailed,
    RankEnded,
    RestartRequested,
    RunEnded,
    SignOfLife,
    StopRequested,
    TimerFired,
    event_to_json,
)
from engine.job.policy import refusal
from engine.job.reduce import IllegalTransition, step
from engine.job.snapshot import Beat, Snapshot
from engine.job.state import JobState, to_snapshot
from engine.journal import Journal
from engine.keeper import NodeKeeper
from engine.link.base import Link
from engine.logs.last import last_lines
from engine.logs.mirror import Mirror
from engine.model import NodeState, RankState
from engine.parse.ansi import plain
from engine.plan import Plan
from engine.rundir import RunPaths, os_error_text, write_json
from engine.session import Intent, MoreGrace, RestartJob, StopJob

log = logging.getLogger("trainui.engine")

# How many last lines of a failed rank are kept as evidence.
TAIL_LINES = 12
OUTPUT_POLL_S = 1.0
RETRY_WRITE_S = 2.0


class Supervisor:
    """Looks after one run. Everything happens on one loop; only `feed` changes the state."""

    def __init__(
        self,
        plan: Plan,
        paths: RunPaths,
        state: JobState,
        journal: Journal,
        clock: Clock,
        links: Mapping[int, Link],
        agent_source: bytes,
        make_spec: Callable[[int], dict[str, Any]],
        mirrors: Mapping[int, Mirror] | None = None,
    ) -> None:
        """
        Args:
            state: `initial(plan)`, or what replaying the journal gave.
            mirrors: for the nodes that may not share the run directory's disk.
        """
        self._plan = plan
        self._paths = paths
        self._journal = journal
        self._clock = clock
        self.state = state
        self.hub = Hub(self.snapshot)
        self.over = asyncio.Event()  # final, and everything about it is on disk
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._beats: dict[int, tuple[Beat, int | None]] = {}
        self._sizes: dict[int, int] = {}
        self._ports: dict[int, asyncio.Task[int]] = {}
        self._faults: dict[str, str] = {}
        self._keepers = {
            node: NodeKeeper(
                node,
                link,
                agent_source,
                lambda node=node: make_spec(node),
                feed=self.feed,
                on_failure=self._node_unreachable,
                on_beat=self._on_beat,
                mirror=(mirrors or {}).get(node),
                on_copy_fault=self._on_copy_fault,
            )
            for node, link in links.items()
        }

    # -- what is known -------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The run as the views see it: the state, and the last signs of life."""
        findings = (*self._plan.warnings, *self._faults.values())
        snapshot = to_snapshot(self.state, findings)
        ranks = tuple(
            replace(r, beat=seen[0], step=seen[1]) if (seen := self._beats.get(r.rank)) else r for r in snapshot.ranks
        )
        return replace(snapshot, ranks=ranks)

    def start(self, *, restart: bool = False) -> None:
        """Begin, or go on where an earlier engine was; `restart`: with the next attempt."""
        self._spawn(self._watch_output())
        again = restart and self.state.attempt >= 0  # of a run that was only rendered, attempt 0 is the next one
        self.feed(EngineStarted(os.getpid()))
        if again:
            self.feed(RestartRequested())
        if self.state.phase.final:
            self._spawn(self._finish())

    async def close(self) -> None:
        """Leave everything as it is: agents and ranks run on."""
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for keeper in self._keepers.values():
            await keeper.close()
        self._journal.close()

    def do(self, intent: Intent) -> None:
        """Carry out what a front end asks for.

        Raises:
            IntentRefused: it cannot be done now.
        """
        why = refusal(self.state, intent)
        if why is not None:
            raise IntentRefused(why)
        match intent:
            case StopJob():
                self.feed(StopRequested(intent.origin, intent.kill))
            case RestartJob():
                self.feed(RestartRequested())
            case MoreGrace():
                self.feed(GraceExtended(intent.seconds))

    # -- events in, effects out ----------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Tell the reducer, write the event down, do what follows."""
        now = self._clock.wall()
        if isinstance(event, RankEnded):
            event = self._with_tail(event)
        try:
            state, effects = step(self.state, event, now)
        except IllegalTransition:
            log.exception("the reducer refused an event; the run goes on as it was")
            return
        if not effects and (state is self.state or state == self.state) and not isinstance(event, RunEnded):
            return
        self.state = state
        line = event_to_json(event, now)
        self._write_down(line)
        self.hub.publish(line)
        for effect in effects:
            self._do(effect)

    def _write_down(self, line: dict[str, Any]) -> None:
        self._journal.append(line)
        self._fault("journal", self._paths.events, self._journal.error)

    def _fault(self, key: str, path: Path, error: OSError | None) -> None:
        """Show, or take back, that a file of the run cannot be written."""
        text = None
        if error is not None:
            text = f"{path} cannot be written: {os_error_text(error)}; it is kept in memory meanwhile"
        self._set_fault(key, text)

    def _on_copy_fault(self, node_rank: int, text: str | None) -> None:
        self._set_fault(f"copy {node_rank}", text and f"{self.state.nodes[node_rank].host}: {text}")

    def _set_fault(self, key: str, text: str | None) -> None:
        """Show a fault among the findings; None takes it back."""
        before = self._faults.pop(key, None)
        if text is not None:
            self._faults[key] = text
        if before != text:
            self.hub.publish()

    def _with_tail(self, event: RankEnded) -> RankEnded:
        """Evidence is read when the rank has ended: then its log is whole."""
        rank = self.state.ranks.get(event.rank)
        if rank is None or event.by_us or event.lost or event.code == 0 or event.attempt != self.state.attempt:
            return event
        try:
            lines = last_lines(self._paths.root / rank.log, TAIL_LINES)
        except OSError:
            return event
        return replace(event, tail=tuple((line_no, plain(raw)[:400]) for line_no, raw in lines))

    def _do(self, effect: Effect) -> None:
        match effect:
            case BeginAttempt():
                self._begin(effect)
            case Connect():
                self._spawn(self._keepers[effect.node_rank].connect())
            case StartNode():
                self._spawn(self._start_node(effect.node_rank, effect.attempt))
            case StopNode():
                self._spawn(self._tell(effect.node_rank, {"t": "stop", "grace_s": effect.grace_s}))
            case ExtendGrace():
                self._spawn(self._tell(effect.node_rank, {"t": "grace", "add_s": effect.seconds}))
            case SetTimer():
                self._cancel_timer(effect.name)
                loop = asyncio.get_running_loop()
                self._timers[effect.name] = loop.call_later(effect.delay_s, self.feed, TimerFired(effect.name))
            case CancelTimer():
                self._cancel_timer(effect.name)
            case Finish():
                self._spawn(self._finish())

    def _begin(self, effect: BeginAttempt) -> None:
        self.over.clear()
        self._beats.clear()
        self._sizes.clear()
        self._paths.summary.unlink(missing_ok=True)
        self.feed(AttemptStarted(effect.attempt, effect.reason))

    def _cancel_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the engine failed", exc_info=task.exception())

    # -- the nodes -----------------------------------------------------------------------------------

    def _node_unreachable(self, node_rank: int, reason: str) -> None:
        """An agent that never answered fails its node; one that did is only out of reach."""
        if self.state.nodes[node_rank].state in (NodeState.PENDING, NodeState.CONNECTING):
            self.feed(NodeFailed(node_rank, reason))
        else:
            self.feed(LinkLost(node_rank, reason))

    async def _start_node(self, node_rank: int, attempt: int) -> None:
        try:
            port = self._plan.master_port or await self._free_port(attempt)
            answer = await self._keepers[node_rank].request(
                {"t": "start", "attempt": attempt, "env": {"MASTER_PORT": str(port)}}
            )
        except LinkError as err:
            # The channel's end is told by its keeper; when it is back, the reducer starts the node again.
            log.warning("node %d: start of attempt %d: %s", node_rank, attempt, err)
            return
        if not answer.get("ok"):
            self.feed(NodeFailed(node_rank, str(answer.get("error", "the agent refused to start"))))

    async def _free_port(self, attempt: int) -> int:
        """One port for each attempt, free on the master (node 0); asked once for all nodes."""
        task = self._ports.get(attempt)
        if task is None or (task.done() and task.exception() is not None):
            task = asyncio.create_task(self._ask_port())
            self._ports[attempt] = task
        return await asyncio.shield(task)

    async def _ask_port(self) -> int:
        return int((await self._keepers[0].request({"t": "port"}))["port"])

    async def _tell(self, node_rank: int, head: dict[str, Any]) -> None:
        try:
            await self._keepers[node_rank].request(head)
        except LinkError as err:
            # Unconfirmed: when the node is back, the reducer says it again.
            log.warning("node %d: %s: %s", node_rank, head["t"], err)

    # -- signs of life -------------------------------------------------------------------------------

    def _on_beat(self, head: dict[str, Any]) -> None:
        rank = self.state.ranks.get(head.get("rank", -1))
        if rank is None or head.get("attempt", self.state.attempt) != self.state.attempt:
            return
        step_no = head.get("iteration")
        phase = "checkpointing" if head.get("checkpoint_active") else head.get("phase")
        known = self._beats.get(rank.rank)
        if step_no is None and known is not None:
            step_no = known[1]
        self._beats[rank.rank] = (Beat("file", self._clock.wall(), phase), step_no)
        if step_no is not None and not self.state.alive:
            self.feed(SignOfLife(self.state.attempt, rank.rank))
        self.hub.publish()

    async def _watch_output(self) -> None:
        """Any output is a sign of life, the weakest one: it counts where a rank sends no beats."""
        while True:
            await asyncio.sleep(OUTPUT_POLL_S)
            moved = False
            for rank in self.state.ranks.values():
                known = self._beats.get(rank.rank)
                if rank.state is not RankState.RUNNING or (known is not None and known[0].source == "file"):
                    continue
                try:
                    size = (self._paths.root / rank.log).stat().st_size
                except OSError:
                    continue
                if size != self._sizes.get(rank.rank, 0):
                    self._sizes[rank.rank] = size
                    self._beats[rank.rank] = (Beat("output", self._clock.wall()), None)
                    moved = True
            if self._journal.error is not None:
                self._journal.flush()
                self._fault("journal", self._paths.events, self._journal.error)
            if moved:
                self.hub.publish()

    # -- the end -------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Write the summary and let the agents go. A full disk is waited for: the summary is not lost."""
        state = self.state
        if state.exit_status is None:
            return
        self.feed(RunEnded(str(state.phase), state.exit_status))
        while self.state is state or self.state.phase.final:
            try:
                write_json(self._paths.summary, self.snapshot().to_json(self._clock.wall()))
                self._set_fault("summary", None)
                break
            except RunDirError as err:
                if not self._paths.root.is_dir():
                    # Whoever removed the folder wants no summary in it, and we must not wait for ever.
                    log.warning("%s", err)
                    break
                self._set_fault("summary", str(err))
                await asyncio.sleep(RETRY_WRITE_S)
        if not self.state.phase.final:
            return
        await asyncio.gather(*(keeper.release() for keeper in self._keepers.values()))
        if self.state.phase.final:
            self.over.set()
            self.hub.publish()
