"""All that the engine knows of a run, as one immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.job.snapshot import Evidence, NodeView, RankView, RootCause, Snapshot, Survivor
from engine.model import NodeState, Phase, RankState
from engine.plan import Plan
from engine.rundir import rank_log


@dataclass(frozen=True, slots=True)
class Rules:
    """What the plan says about failing, stopping and restarting. Durations are seconds."""

    stop_grace_s: float
    fail_policy: str
    fail_grace_s: float
    restart_policy: str
    restart_max: int
    restart_backoff_s: float
    lost_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class StopOrder:
    """A stop in progress. `origin`: sigint | other | fail."""

    origin: str
    kill: bool
    at: float


@dataclass(frozen=True, slots=True)
class JobState:
    """The reducer's state. Times are Unix seconds; keys of the mappings are node ranks and ranks."""

    run_id: str
    name: str
    run_dir: str
    rules: Rules
    folders: Mapping[int, str]
    node_ranks: Mapping[int, tuple[int, ...]]  # node rank -> its ranks
    nodes: Mapping[int, NodeView]
    ranks: Mapping[int, RankView]
    attempt: int = -1  # none begun
    phase: Phase = Phase.PENDING
    started_at: float | None = None  # of the run
    attempt_started_at: float | None = None
    ended_at: float | None = None
    exit_status: int | None = None
    stop: StopOrder | None = None
    restart_wanted: bool = False
    fail_due: float | None = None  # when the fail policy stops the others
    restart_at: float | None = None
    restarts_used: int = 0
    no_restart: str | None = None  # why a failed job did not start again by itself, though it was to
    alive: bool = False  # a sign of life came in this attempt
    tails: Mapping[int, tuple[Evidence, ...]] = field(default_factory=dict[int, tuple[Evidence, ...]])
    errors: Mapping[int, str] = field(default_factory=dict[int, str])  # rank -> why it could not be started
    cause: RootCause | None = None
    survivors: Mapping[int, tuple[Survivor, ...]] = field(default_factory=dict[int, tuple[Survivor, ...]])
    deadline: float | None = None


def initial(plan: Plan) -> JobState:
    """The state before the first event."""
    folders = {n.node_rank: n.folder for n in plan.nodes}
    return JobState(
        run_id=plan.run_id,
        name=plan.name,
        run_dir=plan.run_dir,
        rules=Rules(
            plan.stop_grace_s,
            plan.fail_policy,
            plan.fail_grace_s,
            plan.restart_policy,
            plan.restart_max,
            plan.restart_backoff_s,
            plan.lost_after_s,
        ),
        folders=folders,
        node_ranks={n.node_rank: tuple(r.rank for r in n.ranks) for n in plan.nodes},
        nodes={n.node_rank: NodeView(n.node_rank, n.host) for n in plan.nodes},
        ranks={
            r.rank: RankView(r.rank, r.local_rank, n.node_rank, n.host, rank_log(n.folder, 0, r.rank))
            for n in plan.nodes
            for r in n.ranks
        },
    )


def fresh_attempt(state: JobState, attempt: int, now: float) -> JobState:
    """Every rank pending again, with the logs of `attempt`."""
    ranks = {
        r.rank: RankView(
            r.rank,
            r.local_rank,
            r.node_rank,
            r.host,
            rank_log(state.folders[r.node_rank], attempt, r.rank),
            restarts=attempt,
        )
        for r in state.ranks.values()
    }
    nodes = {n.node_rank: replace(n, state=NodeState.PENDING, error=None, since=None) for n in state.nodes.values()}
    return replace(
        state,
        attempt=attempt,
        phase=Phase.STARTING,
        nodes=nodes,
        ranks=ranks,
        started_at=state.started_at if state.started_at is not None else now,
        attempt_started_at=now,
        ended_at=None,
        exit_status=None,
        stop=None,
        restart_wanted=False,
        fail_due=None,
        restart_at=None,
        no_restart=None,
        alive=False,
        tails={},
        errors={},
        cause=None,
        survivors={},
        deadline=None,
    )


def with_node(state: JobState, node: NodeView) -> JobState:
    """The state with one node replaced."""
    return replace(state, nodes={**state.nodes, node.node_rank: node})


def with_rank(state: JobState, rank: RankView) -> JobState:
    """The state with one rank replaced."""
    return replace(state, ranks={**state.ranks, rank.rank: rank})


def to_snapshot(state: JobState, findings: tuple[str, ...] = ()) -> Snapshot:
    """What the views see."""
    left = max(0, state.rules.restart_max - state.restarts_used) if state.rules.restart_policy != "never" else 0
    if state.no_restart is not None:
        findings = (*findings, f"not restarted by itself: {state.no_restart}")
    return Snapshot(
        run_id=state.run_id,
        name=state.name,
        run_dir=state.run_dir,
        attempt=max(0, state.attempt),
        phase=state.phase,
        nodes=tuple(state.nodes.values()),
        ranks=tuple(state.ranks.values()),
        started_at=state.started_at,
        ended_at=state.ended_at,
        exit_status=state.exit_status,
        root_cause=state.cause,
        survivors=tuple(s for group in state.survivors.values() for s in group),
        findings=findings,
        stop_deadline=state.deadline if state.phase is Phase.STOPPING else None,
        restart_at=state.restart_at,
        restarts_left=left,
        stop_grace_s=state.rules.stop_grace_s,
    )


def unfinished(state: JobState) -> list[RankView]:
    """The ranks that still run, or may yet start."""
    return [r for r in state.ranks.values() if not r.state.final]


def all_down(state: JobState) -> bool:
    """True when every node confirmed its end, failed, or was given up."""
    return all(n.state.final for n in state.nodes.values())


def failed_ranks(state: JobState) -> list[RankView]:
    """The ranks that failed by themselves or could not be started, the first one first (node's time, then rank)."""
    failed = [r for r in state.ranks.values() if r.failed or r.rank in state.errors]
    return sorted(failed, key=lambda r: (r.ended_at or 0.0, r.rank))


def lost_ranks(state: JobState) -> list[RankView]:
    """The ranks whose end nobody saw."""
    return [r for r in state.ranks.values() if r.state is RankState.LOST]
