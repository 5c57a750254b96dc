"""An agent's frames -> events. Pure; the same frame twice gives the same events."""

from __future__ import annotations

from typing import Any

from engine.job.events import Event, NodePhase, NodeUp, RankEnded, RankSpawned


def events_of(node_rank: int, head: dict[str, Any]) -> list[Event]:
    """The events that a frame's header tells (docs/agent-protocol.md); empty for all others.

    Raises:
        KeyError, TypeError, ValueError: it is not a frame of our agent.
    """
    match head.get("t"):
        case "state":
            return _from_state(node_rank, head)
        case "spawned":
            return [RankSpawned(head["attempt"], head["rank"], head["pid"], head["at"])]
        case "exit":
            return [_ended(head["attempt"], head, head["at"])]
        case "phase":
            return [_phase(node_rank, head)]
        case _:
            return []


def _from_state(node_rank: int, head: dict[str, Any]) -> list[Event]:
    attempt: int | None = head.get("attempt")
    if attempt is None:
        return [NodeUp(node_rank, None, head["phase"])]
    events: list[Event] = []
    for rank in head.get("ranks", []):
        if rank.get("pid") and rank.get("started_at") is not None:
            events.append(RankSpawned(attempt, rank["rank"], rank["pid"], rank["started_at"]))
        if rank.get("ended_at") is not None:
            events.append(_ended(attempt, rank, rank["ended_at"]))
    # The ranks' ends come first: a phase of "down" concludes the attempt from them.
    events.append(_phase(node_rank, head))
    events.append(NodeUp(node_rank, attempt, head["phase"]))
    return events


def _ended(attempt: int, data: dict[str, Any], at: float) -> RankEnded:
    return RankEnded(
        attempt=attempt,
        rank=data["rank"],
        at=at,
        started_at=data.get("started_at"),
        code=data.get("code"),
        signal=data.get("signal"),
        lost=bool(data.get("lost")),
        by_us=bool(data.get("by_us")),
        error=data.get("error"),
    )


def _phase(node_rank: int, head: dict[str, Any]) -> NodePhase:
    return NodePhase(
        node_rank=node_rank,
        attempt=head["attempt"],
        phase=head["phase"],
        error=head.get("error"),
        deadline=head.get("deadline"),
        survivors=tuple(head.get("survivors") or ()),
    )
