"""The one truth that every view shows: an immutable picture of a run (contract, section 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.clock import from_rfc3339, rfc3339
from engine.model import NodeState, Phase, RankState

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of a rank's log that proves something. `line_no` counts from 1; None: not known."""

    rank: int
    line_no: int | None
    text: str


@dataclass(frozen=True, slots=True)
class RootCause:
    """Who failed first, and why."""

    rank: int | None
    node: int | None
    host: str | None
    kind: str
    code: int | None
    signal: int | None
    reason: str  # one sentence a user can act on
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Beat:
    """The last sign of life of a rank. Times are Unix seconds on the engine's clock."""

    source: str  # file | log | output
    seen_at: float
    phase: str | None = None


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process of the run that could not be killed."""

    node_rank: int
    host: str
    pid: int
    state: str  # the letter of /proc/PID/stat
    command: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as we know it."""

    node_rank: int
    host: str
    state: NodeState = NodeState.PENDING
    error: str | None = None
    since: float | None = None  # out of reach since then (Unix seconds)


@dataclass(frozen=True, slots=True)
class RankView:
    """A rank as we know it. Times are Unix seconds; `log` is relative to the run directory."""

    rank: int
    local_rank: int
    node_rank: int
    host: str
    log: str
    pid: int | None = None
    state: RankState = RankState.PENDING
    exit_code: int | None = None
    signal: int | None = None
    by_us: bool = False  # we signalled it before it ended: never the cause
    started_at: float | None = None
    ended_at: float | None = None
    step: int | None = None
    beat: Beat | None = None
    restarts: int = 0

    @property
    def failed(self) -> bool:
        """True where it ended with a non-zero code or a signal that was not ours."""
        if self.by_us:
            return False
        return (self.state is RankState.EXITED and self.exit_code != 0) or self.state is RankState.SIGNALLED


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment. Every view is a function of this."""

    run_id: str
    name: str
    run_dir: str
    attempt: int
    phase: Phase
    nodes: tuple[NodeView, ...]
    ranks: tuple[RankView, ...]
    started_at: float | None = None
    ended_at: float | None = None
    exit_status: int | None = None
    root_cause: RootCause | None = None
    survivors: tuple[Survivor, ...] = ()
    findings: tuple[str, ...] = ()
    stop_deadline: float | None = None  # while stopping: when SIGKILL comes (Unix seconds)
    restart_at: float | None = None  # a restart is due then (Unix seconds)
    restarts_left: int = 0
    stop_grace_s: float = 15.0

    @property
    def over(self) -> bool:
        """True when nothing more happens by itself: a final phase, and no further attempt is due."""
        return self.phase.final and self.restart_at is None

    @property
    def stuck(self) -> bool:
        """True when it cannot be stopped: something survived SIGKILL."""
        return self.phase is Phase.STOPPING and bool(self.survivors)

    def to_json(self, now: float) -> dict[str, Any]:
        """The object of `status --json`; `now` (Unix seconds) turns last signs of life into ages."""
        cause = self.root_cause
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "name": self.name,
            "run_dir": self.run_dir,
            "attempt": self.attempt,
            "phase": str(self.phase),
            "started_at": rfc3339(self.started_at),
            "ended_at": rfc3339(self.ended_at),
            "exit_status": self.exit_status,
            "root_cause": None if cause is None else cause_to_json(cause),
            "nodes": [node_to_json(n) for n in self.nodes],
            "ranks": [rank_to_json(r, now) for r in self.ranks],
            "findings": list(self.findings),
            "survivors": [
                {"node_rank": s.node_rank, "host": s.host, "pid": s.pid, "state": s.state, "command": s.command}
                for s in self.survivors
            ],
            "stop_deadline": rfc3339(self.stop_deadline),
            "restart_at": rfc3339(self.restart_at),
            "restarts_left": self.restarts_left,
            "stop_grace_s": self.stop_grace_s,
        }


def cause_to_json(cause: RootCause) -> dict[str, Any]:
    """The `root_cause` object of the contract."""
    return {
        "rank": cause.rank,
        "node": cause.node,
        "host": cause.host,
        "kind": cause.kind,
        "code": cause.code,
        "signal": cause.signal,
        "reason": cause.reason,
        "evidence": [{"rank": e.rank, "line_no": e.line_no, "text": e.text} for e in cause.evidence],
    }


def node_to_json(node: NodeView) -> dict[str, Any]:
    """One entry of `nodes[]`."""
    return {
        "node_rank": node.node_rank,
        "host": node.host,
        "state": str(node.state),
        "error": node.error,
        "since": rfc3339(node.since),
    }


def node_from_json(data: dict[str, Any]) -> NodeView:
    """What `node_to_json` wrote, read back."""
    state, since = NodeState(data["state"]), from_rfc3339(data.get("since"))
    return NodeView(data["node_rank"], data["host"], state, data["error"], since)


def rank_to_json(rank: RankView, now: float) -> dict[str, Any]:
    """One entry of `ranks[]`. A rank that ended has no age."""
    beat = rank.beat
    return {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "node_rank": rank.node_rank,
        "host": rank.host,
        "pid": rank.pid,
        "state": str(rank.state),
        "exit_code": rank.exit_code,
        "signal": rank.signal,
        "by_us": rank.by_us,
        "started_at": rfc3339(rank.started_at),
        "ended_at": rfc3339(rank.ended_at),
        "step": rank.step,
        "heartbeat": None
        if beat is None
        else {
            "source": beat.source,
            "age_s": None if rank.state.final else round(max(0.0, now - beat.seen_at), 3),
            "seen_at": rfc3339(beat.seen_at),
            "liveness": None,  # not judged
            "progress": None,  # not judged
            "phase": beat.phase,
        },
        "restarts": rank.restarts,
        "log": rank.log,
    }


def rank_from_json(data: dict[str, Any]) -> RankView:
    """What `rank_to_json` wrote, read back."""
    beat = data.get("heartbeat")
    seen_at = from_rfc3339(beat["seen_at"]) if beat else None
    return RankView(
        rank=data["rank"],
        local_rank=data["local_rank"],
        node_rank=data["node_rank"],
        host=data["host"],
        log=data["log"],
        pid=data["pid"],
        state=RankState(data["state"]),
        exit_code=data["exit_code"],
        signal=data["signal"],
        by_us=data.get("by_us", False),
        started_at=from_rfc3339(data["started_at"]),
        ended_at=from_rfc3339(data["ended_at"]),
        step=data["step"],
        beat=Beat(beat["source"], seen_at, beat["phase"]) if beat and seen_at is not None else None,
        restarts=data["restarts"],
    )


def snapshot_from_json(data: dict[str, Any]) -> Snapshot:
    """What `Snapshot.to_json` wrote, read back; also the front end's half of the socket protocol.

    Raises:
        KeyError, ValueError, TypeError: it is no snapshot.
    """
    cause = data["root_cause"]
    return Snapshot(
        run_id=data["run_id"],
        name=data["name"],
        run_dir=data["run_dir"],
        attempt=data["attempt"],
        phase=Phase(data["phase"]),
        nodes=tuple(node_from_json(n) for n in data["nodes"]),
        ranks=tuple(rank_from_json(r) for r in data["ranks"]),
        started_at=from_rfc3339(data["started_at"]),
        ended_at=from_rfc3339(data["ended_at"]),
        exit_status=data["exit_status"],
        root_cause=None
        if cause is None
        else RootCause(
            cause["rank"],
            cause["node"],
            cause["host"],
            cause["kind"],
            cause["code"],
            cause["signal"],
            cause["reason"],
            tuple(Evidence(e["rank"], e["line_no"], e["text"]) for e in cause["evidence"]),
        ),
        survivors=tuple(
            Survivor(s["node_rank"], s["host"], s["pid"], s["state"], s["command"]) for s in data.get("survivors", [])
        ),
        findings=tuple(data["findings"]),
        stop_deadline=from_rfc3339(data.get("stop_deadline")),
        restart_at=from_rfc3339(data.get("restart_at")),
        restarts_left=data.get("restarts_left", 0),
        stop_grace_s=data.get("stop_grace_s", 15.0),
    )
