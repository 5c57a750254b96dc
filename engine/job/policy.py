"""What follows from a state: how a run ends, whether it restarts, what is refused. Pure."""

from __future__ import annotations

from dataclasses import replace

from engine.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED, EXIT_UNAVAILABLE
from engine.job.effects import BeginAttempt, Effect, Finish, SetTimer
from engine.job.state import JobState, failed_ranks, lost_ranks
from engine.judge.verdict import exit_status, lost_cause, node_cause
from engine.model import NodeState, Phase, RankState
from engine.session import Intent, MoreGrace, RestartJob, StopJob

FAIL_TIMER = "fail_grace"
RESTART_TIMER = "restart"
LOST_TIMER = "lost:"  # and the node rank

# An attempt that never showed progress counts as having got going when it lived this long (seconds):
# shorter, and a restart would only repeat a crash at start-up.
MIN_UPTIME_S = 30.0


def conclude(state: JobState, now: float) -> tuple[JobState, tuple[Effect, ...]]:
    """Everything is down: decide what this attempt was, and what follows."""
    state = _close_ranks(state)
    if state.restart_wanted:
        return state, (BeginAttempt(state.attempt + 1, "restart"),)
    phase, status, state = _outcome(state)
    if phase is Phase.FAILED and _may_restart(state, now):
        due = now + state.rules.restart_backoff_s
        state = replace(state, phase=Phase.PENDING, restart_at=due, fail_due=None, survivors={}, deadline=None)
        return state, (SetTimer(RESTART_TIMER, state.rules.restart_backoff_s),)
    stays_down = phase is Phase.FAILED and state.rules.restart_policy == "on_failure"
    why = why_no_restart(state, now) if stays_down else None
    state = replace(state, phase=phase, exit_status=status, ended_at=now, fail_due=None, survivors={}, deadline=None)
    return replace(state, no_restart=why), (Finish(),)


def _close_ranks(state: JobState) -> JobState:
    """Nothing is alive any more: whoever never started never will, whose end we missed is lost."""
    ranks = dict(state.ranks)
    for rank in state.ranks.values():
        if rank.state is RankState.PENDING:
            ranks[rank.rank] = replace(rank, state=RankState.NEVER_STARTED)
        elif rank.state is RankState.RUNNING:
            ranks[rank.rank] = replace(rank, state=RankState.LOST)
    return replace(state, ranks=ranks)


def _outcome(state: JobState) -> tuple[Phase, int, JobState]:
    failed = failed_ranks(state)
    asked = state.stop is not None and state.stop.origin != "fail"
    bad_nodes = [n for n in state.nodes.values() if n.state in (NodeState.FAILED, NodeState.LOST)]
    lost_nodes = sorted((n.since or 0.0, n.node_rank) for n in bad_nodes if n.state is NodeState.LOST)
    if lost_nodes and (not failed or lost_nodes[0][0] <= (failed[0].ended_at or 0.0)):
        # Peers that failed after a node had vanished died of it; and what nobody confirmed is not "stopped".
        cause = node_cause(state.nodes[lost_nodes[0][1]], "peer_lost")
        return Phase.LOST, EXIT_UNAVAILABLE, replace(state, cause=cause)
    if failed:
        return Phase.FAILED, exit_status(state.cause, failed), state
    if bad_nodes and not asked:
        return Phase.FAILED, EXIT_UNAVAILABLE, replace(state, cause=node_cause(bad_nodes[0]))
    if asked and state.stop is not None:
        return Phase.STOPPED, EXIT_INTERRUPTED if state.stop.origin == "sigint" else EXIT_TERMINATED, state
    if all(r.state is RankState.EXITED and r.exit_code == 0 for r in state.ranks.values()):
        return Phase.SUCCEEDED, EXIT_OK, state
    lost = lost_ranks(state)
    if lost:
        return Phase.LOST, EXIT_UNAVAILABLE, replace(state, cause=lost_cause(lost))
    # Signalled by the agent without a word from here: stop.sh by hand, or SIGTERM to the agent.
    return Phase.STOPPED, EXIT_TERMINATED, state


def _may_restart(state: JobState, now: float) -> bool:
    return state.rules.restart_policy == "on_failure" and why_no_restart(state, now) is None


def why_no_restart(state: JobState, now: float) -> str | None:
    """Why a job that failed at `now` (Unix seconds) does not start again by itself, or None where it does."""
    rules = state.rules
    if state.restarts_used >= rules.restart_max:
        return f"all {rules.restart_max} restarts of restart.max are used up"
    if state.stop is not None and state.stop.origin != "fail":
        return "the job was being stopped"
    if any(n.state in (NodeState.LOST, NodeState.FAILED) for n in state.nodes.values()):
        return "a node could not take part"
    if lost_ranks(state):
        return "how some ranks ended is not known"
    started = state.attempt_started_at
    if state.alive or (started is not None and now - started >= MIN_UPTIME_S):
        return None
    return (
        f"it failed within {MIN_UPTIME_S:g} s and before any rank reported a step, so a restart would only repeat that"
    )


def refusal(state: JobState, intent: Intent) -> str | None:
    """Why `intent` cannot be done now, or None."""
    match intent:
        case StopJob():
            if state.phase.final:
                return f"the run is over ({state.phase}); nothing is left to stop"
        case RestartJob():
            if state.attempt < 0:
                return "the run has not started yet"
        case MoreGrace():
            if state.phase is not Phase.STOPPING:
                return "the run is not stopping, so there is no grace period to extend"
    return None
