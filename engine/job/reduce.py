"""The run's state machine: `step(state, event, now) -> (state, effects)`. It knows no clock and no I/O.

Timers are events, effects are data. An event about another attempt than the current one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.job.effects import (
    BeginAttempt,
    CancelTimer,
    Connect,
    Effect,
    ExtendGrace,
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
    NodeConnecting,
    NodeFailed,
    NodePhase,
    NodeUp,
    RankEnded,
    RankSpawned,
    RestartRequested,
    RunEnded,
    SignOfLife,
    StopRequested,
    TimerFired,
)
from engine.job.policy import FAIL_TIMER, LOST_TIMER, RESTART_TIMER, conclude
from engine.job.snapshot import Evidence, Survivor
from engine.job.state import (
    JobState,
    StopOrder,
    all_down,
    failed_ranks,
    fresh_attempt,
    unfinished,
    with_node,
    with_rank,
)
from engine.judge.verdict import find_cause
from engine.model import NodeState, Phase, RankState

Result = tuple[JobState, tuple[Effect, ...]]

# The agent's word -> ours. An agent that is idle or down in an older attempt is `ready` for this one.
_AGENT_PHASES = {
    "idle": NodeState.READY,
    "before_start": NodeState.PREPARING,
    "running": NodeState.RUNNING,
    "stopping": NodeState.STOPPING,
    "after_stop": NodeState.STOPPING,
    "down": NodeState.DOWN,
}

# Which phase may follow which; the reducer's own check, exhaustive in tests.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset({Phase.STARTING, Phase.STOPPED, Phase.FAILED}),
    Phase.CHECKING: frozenset({Phase.STARTING, Phase.FAILED, Phase.STOPPED}),
    Phase.STARTING: frozenset(
        {Phase.RUNNING, Phase.STOPPING, Phase.FAILED, Phase.SUCCEEDED, Phase.LOST, Phase.STOPPED, Phase.PENDING}
    ),
    Phase.RUNNING: frozenset({Phase.STOPPING, Phase.SUCCEEDED, Phase.FAILED, Phase.LOST, Phase.STOPPED, Phase.PENDING}),
    Phase.STOPPING: frozenset(
        {Phase.STOPPED, Phase.FAILED, Phase.LOST, Phase.SUCCEEDED, Phase.PENDING, Phase.STARTING}
    ),
    Phase.SUCCEEDED: frozenset({Phase.STARTING}),
    Phase.FAILED: frozenset({Phase.STARTING}),
    Phase.STOPPED: frozenset({Phase.STARTING}),
    Phase.LOST: frozenset({Phase.STARTING}),
}


class IllegalTransition(Exception):
    """The reducer contradicts its own table: a bug of ours."""


def step(state: JobState, event: Event, now: float) -> Result:
    """What the run is after `event`, and what has to be done about it.

    Args:
        now: Unix time in seconds at which the engine was told.

    Raises:
        IllegalTransition: a bug of ours.
    """
    handler = _HANDLERS[type(event)]
    after, effects = handler(state, event, now)
    if after.phase is not state.phase and after.phase not in TRANSITIONS[state.phase]:
        raise IllegalTransition(f"{state.phase} -> {after.phase} on {event}")
    return after, effects


def _engine_started(state: JobState, event: EngineStarted, now: float) -> Result:
    """Pick up what an earlier engine left: channels and timers."""
    if state.attempt < 0:
        return state, (BeginAttempt(0, "launch"),)
    if state.phase.final:
        return state, ()
    if state.restart_at is not None:
        return state, (SetTimer(RESTART_TIMER, max(0.0, state.restart_at - now)),)
    effects: list[Effect] = [Connect(n) for n in state.nodes]
    for node in state.nodes.values():
        if node.since is not None and state.rules.lost_after_s is not None:
            left = max(0.0, node.since + state.rules.lost_after_s - now)
            effects.append(SetTimer(f"{LOST_TIMER}{node.node_rank}", left))
    if state.fail_due is not None:
        effects.append(SetTimer(FAIL_TIMER, max(0.0, state.fail_due - now)))
    return state, tuple(effects)


def _attempt_started(state: JobState, event: AttemptStarted, now: float) -> Result:
    if event.attempt <= state.attempt:
        return state, ()
    used = state.restarts_used + (event.reason == "on_failure")
    state = replace(fresh_attempt(state, event.attempt, now), restarts_used=used)
    return state, (CancelTimer(RESTART_TIMER), CancelTimer(FAIL_TIMER), *(Connect(n) for n in state.nodes))


def _node_connecting(state: JobState, event: NodeConnecting, now: float) -> Result:
    node = state.nodes[event.node_rank]
    if node.state is NodeState.PENDING:
        return with_node(state, replace(node, state=NodeState.CONNECTING)), ()
    return state, ()


def _node_up(state: JobState, event: NodeUp, now: float) -> Result:
    """The agent answers: start it, stop it, or go on watching it."""
    node = state.nodes[event.node_rank]
    if state.phase.final or state.restart_at is not None or node.state is NodeState.FAILED:
        return state, ()
    if node.state is NodeState.LOST:
        # Given up, and back: what lives there must not outlive the job.
        return state, (StopNode(event.node_rank, _grace(state, now)),) if event.phase != "down" else ()
    if node.since is not None:
        state, effects = _node_up(with_node(state, replace(node, since=None, error=None)), event, now)
        return state, (CancelTimer(f"{LOST_TIMER}{event.node_rank}"), *effects)
    if event.attempt == state.attempt:
        node = replace(node, state=_AGENT_PHASES.get(event.phase, node.state), error=node.error)
        state = with_node(state, node)
        if event.phase == "down":
            return _maybe_over(state, now)
        if state.stop is not None:
            return state, (StopNode(event.node_rank, _grace(state, now)),)
        return _maybe_running(state), ()
    if state.stop is not None:
        # It never began this attempt, and now it will not.
        return _maybe_over(with_node(state, replace(node, state=NodeState.DOWN)), now)
    return with_node(state, replace(node, state=NodeState.READY)), (StartNode(event.node_rank, state.attempt),)


def _node_failed(state: JobState, event: NodeFailed, now: float) -> Result:
    node = state.nodes[event.node_rank]
    if state.phase.final or node.state in (NodeState.DOWN, NodeState.FAILED, NodeState.LOST):
        return state, ()
    state = with_node(state, replace(node, state=NodeState.FAILED, error=event.error))
    if all_down(state):
        return conclude(state, now)
    return _stop(state, "fail", kill=False, now=now)


def _link_lost(state: JobState, event: LinkLost, now: float) -> Result:
    node = state.nodes[event.node_rank]
    if node.state.final or state.phase.final or state.attempt < 0:
        return state, ()
    away = node.since is not None
    node = replace(node, state=NodeState.UNREACHABLE, error=event.reason, since=node.since if away else now)
    limit = state.rules.lost_after_s
    timer = () if away or limit is None else (SetTimer(f"{LOST_TIMER}{event.node_rank}", limit),)
    return with_node(state, node), timer


def _node_lost(state: JobState, node_rank: int, now: float) -> Result:
    """It was away for too long: given up, with its ranks; what runs elsewhere is stopped."""
    node = state.nodes.get(node_rank)
    if node is None or node.since is None or node.state is not NodeState.UNREACHABLE or state.phase.final:
        return state, ()
    error = f"not reached for {now - node.since:.0f} s ({node.error}); what runs there is not known"
    state = with_node(state, replace(node, state=NodeState.LOST, error=error))
    for number in state.node_ranks[node_rank]:
        rank = state.ranks[number]
        if rank.state is RankState.RUNNING:
            state = with_rank(state, replace(rank, state=RankState.LOST, ended_at=node.since))
    if all_down(state):
        return conclude(state, now)
    return _stop(state, "fail", kill=False, now=now)


def _node_phase(state: JobState, event: NodePhase, now: float) -> Result:
    if event.attempt != state.attempt or state.phase.final:
        return state, ()
    node = state.nodes[event.node_rank]
    if node.state in (NodeState.FAILED, NodeState.LOST):
        # Told before: its failure may by now have stopped the others, which must not excuse it.
        return state, ()
    error = event.error
    prepared = any(state.ranks[r].state is not RankState.PENDING for r in state.node_ranks[event.node_rank])
    node_state = _AGENT_PHASES.get(event.phase, node.state)
    if event.phase == "down" and error and not prepared and state.stop is None:
        node_state = NodeState.FAILED
    state = with_node(state, replace(node, state=node_state, error=error))
    survivors = tuple(_survivor(event.node_rank, node.host, s) for s in event.survivors)
    groups = {k: v for k, v in state.survivors.items() if k != event.node_rank}
    if survivors:
        groups[event.node_rank] = survivors
    state = replace(state, survivors=groups, deadline=event.deadline or state.deadline)
    if event.phase == "stopping" and state.stop is not None and state.phase is not Phase.STOPPING:
        state = replace(state, phase=Phase.STOPPING)
    if node_state is NodeState.FAILED and not all_down(state):
        return _stop(state, "fail", kill=False, now=now)
    if event.phase in ("before_start", "running") and state.stop is not None:
        # Our stop reached the agent before our start did, when there was nothing to stop yet.
        return state, (StopNode(event.node_rank, _grace(state, now)),)
    return _maybe_over(_maybe_running(state), now)


def _survivor(node_rank: int, host: str, found: dict[str, Any]) -> Survivor:
    return Survivor(node_rank, host, int(found["pid"]), str(found.get("state", "?")), str(found.get("command", "")))


def _rank_spawned(state: JobState, event: RankSpawned, now: float) -> Result:
    rank = state.ranks.get(event.rank)
    if event.attempt != state.attempt or rank is None or rank.state is not RankState.PENDING:
        return state, ()
    state = with_rank(state, replace(rank, state=RankState.RUNNING, pid=event.pid, started_at=event.at))
    return _maybe_running(state), ()


def _rank_ended(state: JobState, event: RankEnded, now: float) -> Result:
    rank = state.ranks.get(event.rank)
    if event.attempt != state.attempt or rank is None or (rank.state.final and rank.state is not RankState.LOST):
        return state, ()
    if rank.state is RankState.LOST and event.lost:
        return state, ()
    ended = RankState.LOST if event.lost else RankState.SIGNALLED if event.signal else RankState.EXITED
    if event.error and event.code is None and not event.signal:
        ended = RankState.NEVER_STARTED
    state = with_rank(
        state,
        replace(
            rank,
            state=ended,
            exit_code=event.code,
            signal=event.signal,
            by_us=event.by_us,
            started_at=rank.started_at if rank.started_at is not None else event.started_at,
            ended_at=event.at,
        ),
    )
    tail = tuple(Evidence(event.rank, line_no, text) for line_no, text in event.tail)
    state = replace(
        state,
        tails={**state.tails, event.rank: tail} if tail else state.tails,
        errors={**state.errors, event.rank: event.error} if event.error else state.errors,
    )
    state = replace(state, cause=find_cause(failed_ranks(state), state.tails, state.errors))
    return _after_failure(state, now)


def _after_failure(state: JobState, now: float) -> Result:
    """The others get `fail.grace_s` to finish or fail by themselves."""
    waiting = state.fail_due is not None or state.stop is not None or state.phase.final
    if waiting or state.rules.fail_policy != "stop" or not failed_ranks(state) or not unfinished(state):
        return state, ()
    state = replace(state, fail_due=now + state.rules.fail_grace_s)
    return state, (SetTimer(FAIL_TIMER, state.rules.fail_grace_s),)


def _sign_of_life(state: JobState, event: SignOfLife, now: float) -> Result:
    return (replace(state, alive=True) if event.attempt == state.attempt else state), ()


def _stop_requested(state: JobState, event: StopRequested, now: float) -> Result:
    return _stop(replace(state, restart_wanted=False), event.origin, kill=event.kill, now=now)


def _stop(state: JobState, origin: str, *, kill: bool, now: float) -> Result:
    if state.phase.final:
        return state, ()
    if state.restart_at is not None or state.attempt < 0:
        # Between two attempts nothing runs: the failure that led here is what the run comes to.
        over = replace(state, restart_at=None, stop=StopOrder(origin, kill, now))
        after, effects = conclude(replace(over, phase=Phase.STARTING), now)
        return after, (CancelTimer(RESTART_TIMER), *effects)
    before = state.stop
    if before is not None and before.origin != "fail":
        origin = before.origin
    order = StopOrder(origin, kill or (before is not None and before.kill), now)
    state = replace(state, stop=order, phase=Phase.STOPPING, fail_due=None)
    if before is not None and (before.kill or not kill):
        return state, (CancelTimer(FAIL_TIMER),)
    grace = 0.0 if kill else state.rules.stop_grace_s
    if not kill:
        state = replace(state, deadline=now + grace)
    targets = [n.node_rank for n in state.nodes.values() if not n.state.final]
    return state, (CancelTimer(FAIL_TIMER), *(StopNode(n, grace) for n in targets))


def _restart_requested(state: JobState, event: RestartRequested, now: float) -> Result:
    if state.phase.final or state.restart_at is not None:
        return state, (BeginAttempt(state.attempt + 1, "restart"),)
    return _stop(replace(state, restart_wanted=True), "other", kill=False, now=now)


def _grace_extended(state: JobState, event: GraceExtended, now: float) -> Result:
    if state.phase is not Phase.STOPPING or state.deadline is None:
        return state, ()
    state = replace(state, deadline=state.deadline + event.seconds)
    nodes = [n.node_rank for n in state.nodes.values() if n.state is NodeState.STOPPING]
    return state, tuple(ExtendGrace(n, event.seconds) for n in nodes)


def _timer_fired(state: JobState, event: TimerFired, now: float) -> Result:
    if event.name == FAIL_TIMER and state.fail_due is not None:
        return _stop(state, "fail", kill=False, now=now)
    if event.name.startswith(LOST_TIMER):
        return _node_lost(state, int(event.name.removeprefix(LOST_TIMER)), now)
    if event.name == RESTART_TIMER and state.restart_at is not None:
        return state, (BeginAttempt(state.attempt + 1, "on_failure"),)
    return state, ()


def _run_ended(state: JobState, event: RunEnded, now: float) -> Result:
    return state, ()


def _maybe_running(state: JobState) -> JobState:
    started = all(r.state is not RankState.PENDING for r in state.ranks.values())
    return replace(state, phase=Phase.RUNNING) if state.phase is Phase.STARTING and started else state


def _maybe_over(state: JobState, now: float) -> Result:
    return conclude(state, now) if all_down(state) and not state.phase.final else (state, ())


def _grace(state: JobState, now: float) -> float:
    """What is left of the grace period for a node that was away when the stop began."""
    if state.stop is None or state.stop.kill:
        return 0.0
    return max(0.0, (state.deadline or now + state.rules.stop_grace_s) - now)


_HANDLERS: dict[type[Any], Callable[[JobState, Any, float], Result]] = {
    EngineStarted: _engine_started,
    AttemptStarted: _attempt_started,
    NodeConnecting: _node_connecting,
    NodeUp: _node_up,
    NodeFailed: _node_failed,
    LinkLost: _link_lost,
    NodePhase: _node_phase,
    RankSpawned: _rank_spawned,
    RankEnded: _rank_ended,
    SignOfLife: _sign_of_life,
    StopRequested: _stop_requested,
    RestartRequested: _restart_requested,
    GraceExtended: _grace_extended,
    TimerFired: _timer_fired,
    RunEnded: _run_ended,
}
