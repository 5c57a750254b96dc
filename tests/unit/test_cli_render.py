"""Snapshots and events as text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import TrainUIError
from engine.job.events import EVENT_TYPES, NodePhase, RankEnded, RankSpawned, StopRequested, event_to_json
from engine.job.snapshot import Beat, NodeView, RankView, RootCause, Snapshot, Survivor
from engine.model import Phase, RankState
from tui.commands.stop import progress_text
from tui.event_text import Level, notes
from tui.headless import exit_status
from tui.log_files import find_logs, parse_ranks
from tui.render_text import Prefixes, duration_text, exit_text, ranges_text, runs_text, status_text, summary, table

RANK = RankView(0, 0, 0, "box", "x.log", pid=7, state=RankState.RUNNING, started_at=1000.0)
RUN = Snapshot("20261201-000000-abcd", "demo", "/r/demo", 0, Phase.RUNNING, (NodeView(0, "box"),), (RANK,), 1000.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (-1, "0.0s"), (0.04, "0.0s"), (59.94, "59.9s"), (59.96, "1m00s"), (245, "4m05s"), (3600, "1h00m"),
     (90000, "1d01h")],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


def test_ranges() -> None:
    assert ranges_text([7, 0, 1, 2, 3, 3]) == "0-3, 7"
    assert ranges_text([]) == ""


def test_how_a_rank_ended() -> None:
    assert exit_text(RANK) == "-"
    assert exit_text(replace(RANK, exit_code=0)) == "0"
    assert exit_text(replace(RANK, signal=9)) == "SIGKILL"
    assert exit_text(replace(RANK, signal=40)) == "signal 40"


def test_prefixes_are_as_wide_for_every_rank() -> None:
    prefixes = Prefixes.of([("a", 0), ("longer", 127)], color=False)
    assert {prefixes.text(h, r).index("|") for h, r in (("a", 0), ("longer", 127))} == {len("longer:127 ")}


def test_a_rank_keeps_its_colour() -> None:
    prefixes = Prefixes.of([("a", 0), ("b", 1)], color=True)
    assert prefixes.text("a", 0)[:5] != prefixes.text("b", 1)[:5]
    assert prefixes.text("a", 0).startswith("\x1b[")


def test_a_table_is_aligned_and_lets_nothing_through() -> None:
    rows = table(("n", "host"), [("1", "a\x1b[2Jb\nc"), ("10", "d")], right=frozenset({0}))
    assert rows == [" n  host", " 1  a [2Jb c", "10  d"]


def test_status_shows_heartbeat_ages_and_what_is_due() -> None:
    rank = replace(RANK, step=40, beat=Beat("file", 1057.0))
    shown = status_text(
        replace(RUN, ranks=(rank,), phase=Phase.STOPPING, stop_deadline=1072.0, findings=("look here",)), 1060.0, False
    )
    assert "demo 20261201-000000-abcd: stopping, for 1m00s" in shown
    assert "SIGKILL in 12.0s" in shown
    assert "3.0s ago (file)" in shown
    assert "note: look here" in shown
    assert "1 rank: 1 running" in shown


def test_the_summary_names_the_cause_and_what_is_left() -> None:
    cause = RootCause(0, 0, "box", "unknown", 1, None, "rank 0 on box exited with code 1")
    left = Survivor(0, "box", 9, "D", "python")
    shown = summary(replace(RUN, root_cause=cause, survivors=(left,)), 1060.0, False, ["ValueError: \x1b[2Jx"])
    assert "rank 0 on box exited with code 1\n  | ValueError:  [2Jx\n" in shown
    assert "still alive: pid 9 on box (state D): python" in shown
    assert shown.endswith("run directory: /r/demo\n")
    assert "\x1b" not in shown
    assert "\x1b" in summary(replace(RUN, root_cause=cause), 1060.0, True)


def test_runs_are_a_table() -> None:
    lines = runs_text([RUN, replace(RUN, started_at=None)], 1060.0, lambda at: f"at {at:.0f}").split("\n")
    assert lines[1].split("  ")[-5:][0].strip() in lines[1]
    assert "at 1000" in lines[1]
    assert "1m00s" in lines[1]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"phase": Phase.SUCCEEDED, "exit_status": 0}, 0),
        ({"phase": Phase.FAILED, "exit_status": 37}, 37),
        ({"phase": Phase.STOPPED, "exit_status": 130}, 130),
        ({"phase": Phase.LOST, "exit_status": 69}, 69),
        ({"phase": Phase.LOST}, 69),
        ({"phase": Phase.RUNNING}, 69),
        ({"phase": Phase.STOPPING, "survivors": (Survivor(0, "box", 9, "D", "x"),), "exit_status": 143}, 69),
    ],
)
def test_exit_statuses(changes: dict[str, Any], status: int) -> None:
    assert exit_status(replace(RUN, **changes)) == status


def test_ranks_that_start_together_share_a_line() -> None:
    events = [event_to_json(RankSpawned(0, r, 100 + r, 1.0), 1.0) for r in range(64)]
    assert [n.text for n in notes(events, ["box"])] == ["ranks 0-63 started"]


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (RankEnded(0, 3, 1.0, code=0), Level.INFO, "rank 3 exited with 0"),
        (RankEnded(0, 3, 1.0, code=1), Level.ERROR, "rank 3 exited with 1"),
        (RankEnded(0, 3, 1.0, signal=9), Level.ERROR, "rank 3 ended by SIGKILL"),
        (RankEnded(0, 3, 1.0, signal=15, by_us=True), Level.INFO, "rank 3 ended by SIGTERM, stopped by trainui"),
        (RankEnded(0, 3, 1.0, lost=True), Level.WARNING, "its exit status is lost"),
        (StopRequested("sigint"), Level.WARNING, "stopping the job, asked for by Ctrl-C"),
        (StopRequested("fail"), Level.WARNING, "stopping the other ranks, because one failed"),
        (NodePhase(0, 0, "down"), Level.INFO, "box: everything is down"),
        (NodePhase(0, 0, "down", error="hook failed"), Level.ERROR, "box: hook failed"),
        (
            NodePhase(0, 0, "stopping", survivors=({"pid": 9, "state": "D", "command": "x\x1b[2J"},)),
            Level.ERROR,
            "box: could not be killed: pid 9 (state D) x [2J",
        ),
    ],
)
def test_what_an_event_is_worth(event: Any, level: Level, text: str) -> None:
    (note,) = notes([event_to_json(event, 1.0)], ["box"])
    assert note.level == level
    assert text in note.text


def test_an_event_of_a_newer_release_is_passed_over() -> None:
    assert "invented_later" not in EVENT_TYPES
    assert notes([{"v": 9, "event": "invented_later", "at": "x"}], ["box"]) == []


def test_progress_of_a_stop() -> None:
    snapshot = replace(RUN, phase=Phase.STOPPING, stop_deadline=1012.4)
    assert progress_text(snapshot, 1000.0) == "waiting for rank 0, SIGKILL in 13 s"
    assert progress_text(snapshot, 1100.0) == "waiting for rank 0"
    ended = replace(snapshot, ranks=(replace(RANK, state=RankState.EXITED),))
    assert progress_text(ended, 1000.0) == "waiting for what the ranks left behind, SIGKILL in 13 s"


@pytest.mark.parametrize(("words", "ranks"), [(["3"], {3}), (["0-2", "5"], {0, 1, 2, 5}), (["0,2"], {0, 2})])
def test_ranks_are_read(words: list[str], ranks: set[int]) -> None:
    assert parse_ranks(words) == ranks


@pytest.mark.parametrize("word", ["x", "", "3-1", "-1", "0-99999999999", "1,,2"])
def test_no_ranks(word: str) -> None:
    with pytest.raises(TrainUIError, match="--rank"):
        parse_ranks([word])


def test_logs_are_found_by_their_names(tmp_path: Path) -> None:
    for name in ("0_a/attempt_0/rank_00000.log", "0_a/attempt_1/rank_00000.log", "1_b.c/attempt_1/rank_00012.log"):
        path = tmp_path / "nodes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "nodes/0_a/attempt_1/before_start.log").touch()

    def found(*choice: Any) -> list[tuple[int, str, int]]:
        return [(f.attempt, f.host, f.rank) for f in find_logs(tmp_path, *choice)]

    assert found(None, None, None) == [(1, "a", 0), (1, "b.c", 12)]
    assert found(0, None, None) == [(0, "a", 0)]
    assert found(None, frozenset({12}), None) == [(1, "b.c", 12)]
    assert found(None, None, frozenset({"a"})) == found(None, None, frozenset({"0"})) == [(1, "a", 0)]
