"""docs/schema says what the code writes: neither may change without the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from engine.job.events import (
    EVENT_TYPES,
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
    event_to_json,
)
from engine.job.snapshot import Beat, Evidence, NodeView, RankView, RootCause, Snapshot, Survivor
from engine.model import NodeState, Phase, RankState

SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs" / "schema" / "trainui.schema.json").read_text(encoding="utf-8")
)
NOW = 1_796_000_000.25
EVENTS: list[Event] = [
    EngineStarted(12),
    AttemptStarted(0, "launch"),
    NodeConnecting(0),
    NodeUp(0, None, "idle"),
    NodeFailed(0, "the disk is full"),
    LinkLost(0, "end of file"),
    NodePhase(0, 0, "stopping", None, NOW, ({"pid": 9, "state": "D", "command": "python", "wchan": "nfs"},)),
    RankSpawned(0, 3, 4711, NOW),
    RankEnded(0, 3, NOW, NOW - 5, code=1, tail=((None, "…"), (7, "ValueError: no"))),
    RankEnded(0, 3, NOW, signal=9, by_us=True),
    RankEnded(0, 3, NOW, lost=True, error="no such file"),
    SignOfLife(0, 3),
    StopRequested("sigint"),
    RestartRequested(),
    GraceExtended(30.0),
    TimerFired("kill"),
    RunEnded("failed", 1),
]


def check(data: object, name: str = "") -> None:
    """Raise where `data` is not what the schema (or its definition `name`) describes."""
    schema = SCHEMA | {"$ref": f"#/$defs/{name}", "oneOf": [True]} if name else SCHEMA
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(data)))


def snapshot(**changes: Any) -> Snapshot:
    """A failed run with a bit of everything."""
    log = "nodes/0_host/attempt_0/rank_00000.log"
    ranks = (
        RankView(0, 0, 0, "host", log, 10, RankState.RUNNING, started_at=NOW, step=3, beat=Beat("file", NOW, "eval")),
        RankView(1, 1, 0, "host", log, 11, RankState.EXITED, exit_code=1, started_at=NOW, ended_at=NOW),
        RankView(2, 2, 0, "host", log, 12, RankState.SIGNALLED, signal=15, by_us=True, started_at=NOW, ended_at=NOW),
        RankView(3, 3, 0, "host", log),
    )
    values: dict[str, Any] = {
        "run_id": "20261201-032654-beef",
        "name": "job",
        "run_dir": "/runs/job/20261201-032654-beef",
        "attempt": 0,
        "phase": Phase.STOPPING,
        "nodes": (NodeView(0, "host", NodeState.STOPPING),),
        "ranks": ranks,
        "started_at": NOW,
        "root_cause": RootCause(1, 0, "host", "exit", 1, None, "Rank 1 left with 1.", (Evidence(1, 7, "ValueError"),)),
        "survivors": (Survivor(0, "host", 12, "D", "python"),),
        "findings": ("slow disk",),
        "stop_deadline": NOW,
    }
    return Snapshot(**values | changes)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events(event: Event) -> None:
    line = event_to_json(event, NOW)
    check(line, "event")
    check({"type": "event", **line})


def test_every_event_is_tried_here() -> None:
    assert {type(event) for event in EVENTS} == set(EVENT_TYPES.values())


def test_snapshots() -> None:
    check(snapshot().to_json(NOW + 1), "snapshot")
    check({"type": "summary", **snapshot().to_json(NOW + 1)})


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase(phase: Phase) -> None:
    check(snapshot(phase=phase).to_json(NOW), "snapshot")


@pytest.mark.parametrize("state", list(NodeState))
def test_every_state_of_a_node(state: NodeState) -> None:
    check(snapshot(nodes=(NodeView(0, "host", state, "why"),)).to_json(NOW), "snapshot")


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "log", "host": "h", "rank": 0, "attempt": 0, "text": "no number"},
        {"type": "event", "v": 1, "at": "2026-12-01T03:26:54.123Z", "event": "unheard_of"},
        {"type": "summary", "schema_version": 1},
        {"type": "snapshot"},
        {"type": "event", **event_to_json(RunEnded("failed", 1), NOW), "at": "yesterday"},
    ],
)
def test_it_refuses_what_is_wrong(wrong: object) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(wrong)


def test_every_field_of_a_snapshot_is_described() -> None:
    written = snapshot().to_json(NOW)
    described = SCHEMA["$defs"]
    assert set(written) == set(described["snapshot"]["properties"])
    assert set(written["ranks"][0]) == set(described["rank"]["properties"])
    assert set(written["root_cause"]) == set(described["root_cause"]["properties"])
