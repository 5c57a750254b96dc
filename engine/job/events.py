"""What happened, as the reducer is told. Each is one line of events.jsonl; replaying them gives the state again.

All are idempotent: telling the same twice changes nothing. Times (`at`) are Unix seconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from engine.clock import from_rfc3339, rfc3339


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """An engine begins to look after the run (the first one, or one after another vanished)."""

    pid: int


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The next attempt begins: every rank is pending again. `reason`: launch | restart | on_failure."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeConnecting:
    """We try to reach the node's agent."""

    node_rank: int


@dataclass(frozen=True, slots=True)
class NodeUp:
    """The node's agent answers. `attempt`, `phase`: where it is by its own word."""

    node_rank: int
    attempt: int | None
    phase: str


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """The node cannot take part; `error` is a sentence."""

    node_rank: int
    error: str


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The channel to the agent ended; the ranks may well run on."""

    node_rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodePhase:
    """The agent's own phase changed (docs/agent-protocol.md)."""

    node_rank: int
    attempt: int
    phase: str
    error: str | None = None
    deadline: float | None = None
    survivors: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class RankSpawned:
    """A rank's process runs."""

    attempt: int
    rank: int
    pid: int
    at: float


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A rank's process ended. Exactly one of code, signal, lost is set."""

    attempt: int
    rank: int
    at: float
    started_at: float | None = None
    code: int | None = None
    signal: int | None = None
    lost: bool = False
    by_us: bool = False
    error: str | None = None
    tail: tuple[tuple[int | None, str], ...] = ()  # (line_no, text) of its last lines, where it failed


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """The attempt got going: a rank reported progress. Before that, nothing restarts by itself."""

    attempt: int
    rank: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody wants the job down. `origin`: sigint | other | fail (our own fail policy)."""

    origin: str
    kill: bool = False


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """Somebody wants the next attempt."""


@dataclass(frozen=True, slots=True)
class GraceExtended:
    """SIGKILL shall come later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer that the reducer asked for ran out."""

    name: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run reached a final phase. For readers of events.jsonl; the state knew it already."""

    phase: str
    exit_status: int


Event = (
    EngineStarted
    | AttemptStarted
    | NodeConnecting
    | NodeUp
    | NodeFailed
    | LinkLost
    | NodePhase
    | RankSpawned
    | RankEnded
    | SignOfLife
    | StopRequested
    | RestartRequested
    | GraceExtended
    | TimerFired
    | RunEnded
)

EVENT_TYPES: dict[str, type[Event]] = {
    "engine_started": EngineStarted,
    "attempt_started": AttemptStarted,
    "node_connecting": NodeConnecting,
    "node_up": NodeUp,
    "node_failed": NodeFailed,
    "link_lost": LinkLost,
    "node_phase": NodePhase,
    "rank_spawned": RankSpawned,
    "rank_ended": RankEnded,
    "sign_of_life": SignOfLife,
    "stop_requested": StopRequested,
    "restart_requested": RestartRequested,
    "grace_extended": GraceExtended,
    "timer_fired": TimerFired,
    "run_ended": RunEnded,
}
_NAMES = {kind: name for name, kind in EVENT_TYPES.items()}
EVENT_VERSION = 1


def event_to_json(event: Event, at: float) -> dict[str, Any]:
    """One line of events.jsonl. `at`: when the engine was told (Unix seconds)."""
    body = asdict(event)
    happened = body.pop("at", None)
    line: dict[str, Any] = {"v": EVENT_VERSION, "at": rfc3339(at), "event": _NAMES[type(event)]}
    if happened is not None:
        line["happened_at"] = rfc3339(happened)
    for key in ("started_at", "deadline"):
        if key in body:
            body[key] = rfc3339(body[key])
    return line | body


def event_from_json(line: dict[str, Any]) -> tuple[Event, float]:
    """What `event_to_json` wrote: the event, and when the engine was told.

    Raises:
        KeyError, TypeError, ValueError: it is no event of ours.
    """
    body = {k: v for k, v in line.items() if k not in ("v", "at", "event", "happened_at")}
    if "happened_at" in line:
        body["at"] = from_rfc3339(line["happened_at"])
    for key in ("started_at", "deadline"):
        if key in body:
            body[key] = from_rfc3339(body[key])
    for key in ("survivors", "tail"):
        if key in body:
            items: list[Any] = body[key]
            body[key] = tuple(tuple(item) if key == "tail" else item for item in items)
    at = from_rfc3339(line["at"])
    if at is None:
        raise ValueError("an event without a time")
    return EVENT_TYPES[line["event"]](**body), at
