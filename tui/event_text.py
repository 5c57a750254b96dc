"""Life-cycle events (objects of events.jsonl) as lines for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tui.render_text import clean, ranks_text, signal_name

Event = Mapping[str, Any]


class Level(IntEnum):
    """How much a line matters; `--log-level` names the least that is shown."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Note:
    """A line for stderr."""

    level: Level
    text: str


def notes(events: Sequence[Event], hosts: Sequence[str]) -> list[Note]:
    """The lines that a batch of events is worth; ranks that started together share one.

    Args:
        events: in the order in which they happened.
        hosts: the nodes' names by node rank.
    """
    told: list[Note] = []
    spawned: list[int] = []
    for event in events:
        if event.get("event") == "rank_spawned":
            spawned.append(event["rank"])
            continue
        if spawned:
            told.append(_started(spawned))
            spawned = []
        note = _note(event, hosts)
        if note is not None:
            told.append(note)
    if spawned:
        told.append(_started(spawned))
    return told


def _started(ranks: Sequence[int]) -> Note:
    return Note(Level.INFO, f"{ranks_text(ranks)} started")


def _note(event: Event, hosts: Sequence[str]) -> Note | None:
    node = event.get("node_rank")
    host = clean(hosts[node]) if isinstance(node, int) and 0 <= node < len(hosts) else f"node {node}"
    match event.get("event"):
        case "engine_started":
            return Note(Level.DEBUG, f"engine started, pid {event['pid']}")
        case "attempt_started":
            return Note(Level.INFO, _attempt_text(event))
        case "node_up":
            return Note(Level.DEBUG, f"{host}: the agent answers")
        case "node_failed":
            return Note(Level.ERROR, f"{host}: {clean(event['error'])}")
        case "link_lost":
            return Note(Level.WARNING, f"{host}: the link is down ({clean(event['reason'])}); the job on it runs on")
        case "node_phase":
            return _node_phase(event, host)
        case "rank_ended":
            return _ended(event)
        case "stop_requested":
            return Note(Level.WARNING, _stop_text(event))
        case "restart_requested":
            return Note(Level.WARNING, "restart asked for")
        case "grace_extended":
            return Note(Level.INFO, f"{event['seconds']:g} s more before SIGKILL")
        case _:
            return None  # timers and the like: bookkeeping; the summary tells the end


def _attempt_text(event: Event) -> str:
    why = {"on_failure": ", because the one before failed", "restart": ", as asked for"}.get(event["reason"], "")
    return f"attempt {event['attempt']} starts{why}"


def _node_phase(event: Event, host: str) -> Note | None:
    survivors: Sequence[Any] = event.get("survivors") or ()
    if survivors:
        who = "; ".join(f"pid {s['pid']} (state {s['state']}) {clean(str(s['command']))}" for s in survivors)
        return Note(Level.ERROR, f"{host}: could not be killed: {who}")
    if event.get("error"):
        return Note(Level.ERROR, f"{host}: {clean(event['error'])}")
    told = {
        "before_start": "runs hooks.before_start",
        "stopping": "stopping what is left",
        "after_stop": "runs hooks.after_stop",
        "down": "everything is down",
    }.get(event["phase"])
    return None if told is None else Note(Level.INFO, f"{host}: {told}")


def _ended(event: Event) -> Note:
    rank = f"rank {event['rank']}"
    if event.get("error"):
        return Note(Level.ERROR, f"{rank}: {clean(event['error'])}")
    if event.get("lost"):
        return Note(Level.WARNING, f"{rank} ended while nobody could wait for it: its exit status is lost")
    if event.get("signal") is not None:
        how = f"ended by {signal_name(event['signal'])}"
    else:
        how = f"exited with {event['code']}"
    if event.get("by_us"):
        return Note(Level.INFO, f"{rank} {how}, stopped by trainui")
    return Note(Level.INFO if event.get("code") == 0 else Level.ERROR, f"{rank} {how}")


def _stop_text(event: Event) -> str:
    if event["origin"] == "fail":
        return "stopping the other ranks, because one failed"
    by = "Ctrl-C" if event["origin"] == "sigint" else "a signal or another console"
    return f"{'killing' if event['kill'] else 'stopping'} the job, asked for by {by}"
