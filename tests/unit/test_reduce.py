"""The run's state machine, told what happens, must say what a user expects."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.job.effects import BeginAttempt, CancelTimer, Connect, ExtendGrace, Finish, SetTimer, StartNode, StopNode
from engine.job.events import (
    AttemptStarted,
    EngineStarted,
    Event,
    GraceExtended,
    LinkLost,
    NodeFailed,
    NodePhase,
    NodeUp,
    RankEnded,
    RankSpawned,
    RestartRequested,
    SignOfLife,
    StopRequested,
    TimerFired,
    event_from_json,
    event_to_json,
)
from engine.job.policy import refusal
from engine.job.reduce import step
from engine.job.snapshot import NodeView, snapshot_from_json
from engine.job.state import initial, to_snapshot
from engine.journal import replay
from engine.model import NodeState, Phase, RankState
from engine.session import MoreGrace, RestartJob, StopJob

_spec = importlib.util.spec_from_file_location("job_world", Path(__file__).with_name("job_world.py"))
assert _spec is not None and _spec.loader is not None
job_world: Any = importlib.util.module_from_spec(_spec)
import sys  # noqa: E402

sys.modules.setdefault("job_world", job_world)
_spec.loader.exec_module(job_world)
World, tiny_plan = job_world.World, job_world.tiny_plan


@pytest.fixture
def world() -> Iterator[Any]:
    yield World()


def test_a_run_that_goes_well(world: Any) -> None:
    assert world.tell(EngineStarted(1)) == [BeginAttempt(0, "launch")]
    assert Connect(0) in world.tell(AttemptStarted(0, "launch"))
    assert world.tell(NodeUp(0, None, "idle")) == [StartNode(0, 0)]
    world.tell(RankSpawned(0, 0, 100, 1000.5))
    assert world.state.phase is Phase.STARTING
    world.tell(RankSpawned(0, 1, 101, 1000.6))
    assert world.state.phase is Phase.RUNNING
    world.end(0, code=0)
    world.end(1, code=0)
    assert world.down() == [Finish()]
    assert (world.state.phase, world.state.exit_status, world.state.cause) == (Phase.SUCCEEDED, 0, None)


def test_the_first_failure_is_the_cause_and_the_others_get_a_grace_period(world: Any) -> None:
    world.run_all()
    effects = world.end(1, code=3, tail=((7, "boom"),))
    assert effects == [SetTimer("fail_grace", 30.0)]
    assert world.state.phase is Phase.RUNNING
    assert world.tell(TimerFired("fail_grace"))[-1] == StopNode(0, 15.0)
    world.end(0, signal=15, by_us=True)
    world.down()
    assert world.state.phase is Phase.FAILED and world.state.exit_status == 3
    assert world.state.cause.rank == 1 and "boom" in world.state.cause.reason


def test_the_earliest_end_is_the_cause_even_if_it_is_told_last(world: Any) -> None:
    world.run_all()
    world.end(1, at=1005.0, code=7)
    world.end(0, at=1004.0, signal=11)
    world.down()
    assert world.state.cause.rank == 0 and world.state.cause.kind == "segfault"
    assert world.state.exit_status == 139


def test_a_rank_that_we_signalled_is_never_the_cause(world: Any) -> None:
    world.run_all()
    world.tell(StopRequested("other"))
    world.end(0, at=1001.0, code=1, by_us=True)
    world.end(1, at=1002.0, signal=9, by_us=True)
    world.down()
    assert world.state.cause is None
    assert (world.state.phase, world.state.exit_status) == (Phase.STOPPED, 143)


def test_ctrl_c_is_130(world: Any) -> None:
    world.run_all()
    world.tell(StopRequested("sigint"), StopRequested("other", kill=True))
    world.end(0, signal=9, by_us=True)
    world.end(1, signal=9, by_us=True)
    world.down()
    assert world.state.exit_status == 130


def test_leaving_early_with_0_is_no_failure(world: Any) -> None:
    world.run_all()
    assert world.end(0, code=0) == []
    assert world.state.phase is Phase.RUNNING
    world.end(1, code=0)
    world.down()
    assert world.state.exit_status == 0


def test_continue_lets_the_others_finish() -> None:
    world = World(tiny_plan(fail_policy="continue"))
    world.run_all()
    assert world.end(0, code=5) == []
    world.end(1, code=0)
    world.down()
    assert (world.state.phase, world.state.exit_status) == (Phase.FAILED, 5)


def test_all_failing_by_themselves_need_no_stop(world: Any) -> None:
    world.run_all()
    world.end(0, at=1001.0, code=4)
    world.end(1, at=1002.0, code=5)
    assert world.down() == [Finish()]
    assert world.state.exit_status == 4


def test_kill_follows_stop_and_a_second_stop_changes_nothing(world: Any) -> None:
    world.run_all()
    assert StopNode(0, 15.0) in world.tell(StopRequested("other"))
    assert [e for e in world.tell(StopRequested("other")) if isinstance(e, StopNode)] == []
    assert StopNode(0, 0.0) in world.tell(StopRequested("other", kill=True))
    assert [e for e in world.tell(StopRequested("other", kill=True)) if isinstance(e, StopNode)] == []


def test_stopped_is_said_only_when_the_node_confirmed(world: Any) -> None:
    world.run_all()
    world.tell(StopRequested("other"))
    world.end(0, signal=15, by_us=True)
    world.end(1, signal=9, by_us=True)
    world.tell(NodePhase(0, 0, "stopping", survivors=({"pid": 77, "state": "D", "command": "python"},)))
    assert world.state.phase is Phase.STOPPING
    survivors = to_snapshot(world.state).survivors
    assert [(s.host, s.pid, s.state) for s in survivors] == [("n0", 77, "D")]
    world.down()
    assert world.state.phase is Phase.STOPPED and to_snapshot(world.state).survivors == ()


def test_stop_before_anything_began() -> None:
    world = World()
    world.begin()
    world.tell(StopRequested("sigint"))
    assert world.state.phase is Phase.STOPPING
    assert world.tell(NodeUp(0, None, "idle")) == [Finish()]
    assert (world.state.phase, world.state.exit_status) == (Phase.STOPPED, 130)
    assert all(r.state is RankState.NEVER_STARTED for r in world.state.ranks.values())


def test_a_rank_that_could_not_be_started_is_the_cause(world: Any) -> None:
    world.begin()
    world.tell(NodeUp(0, None, "idle"), RankSpawned(0, 0, 100, 1.0))
    world.end(1, at=2.0, error="run.sh is gone")
    world.end(0, at=3.0, signal=15, by_us=True)
    world.down()
    assert (world.state.phase, world.state.exit_status) == (Phase.FAILED, 1)
    assert world.state.ranks[1].state is RankState.NEVER_STARTED
    assert "could not be started: run.sh is gone" in world.state.cause.reason


def test_a_stop_that_overtakes_the_start_is_sent_again(world: Any) -> None:
    world.begin()
    assert world.tell(NodeUp(0, None, "idle")) == [StartNode(0, 0)]
    world.tell(StopRequested("sigint"))
    world.now += 1
    assert world.tell(NodePhase(0, 0, "running")) == [StopNode(0, 14.0)]
    world.tell(StopRequested("sigint", kill=True))
    assert world.tell(NodePhase(0, 0, "before_start")) == [StopNode(0, 0.0)]


def test_a_node_that_was_away_when_the_stop_began_is_told_when_it_is_back(world: Any) -> None:
    world.run_all()
    world.tell(LinkLost(0, "the agent is gone"))
    assert world.state.nodes[0].state is NodeState.UNREACHABLE and world.state.phase is Phase.RUNNING
    world.tell(StopRequested("other"))
    world.now += 5
    assert StopNode(0, 10.0) in world.tell(NodeUp(0, 0, "running"))


def two_nodes(**rules: Any) -> Any:
    world = World(tiny_plan(nodes=2, per_node=1, lost_after_s=60.0, **rules))
    world.run_all()
    return world


def test_a_node_out_of_reach_keeps_its_ranks_and_comes_back() -> None:
    world = two_nodes()
    assert world.tell(LinkLost(1, "no answer")) == [SetTimer("lost:1", 60.0)]
    assert world.state.phase is Phase.RUNNING and world.state.ranks[1].state is RankState.RUNNING
    assert world.state.nodes[1].since == world.now
    world.now += 20
    assert world.tell(LinkLost(1, "connection refused")) == []
    assert world.state.nodes[1].since == world.now - 20
    assert SetTimer("lost:1", 40.0) in world.tell(EngineStarted(2))
    assert world.tell(NodeUp(1, 0, "running")) == [CancelTimer("lost:1")]
    assert world.state.nodes[1] == NodeView(1, "n1", NodeState.RUNNING)
    assert world.tell(TimerFired("lost:1")) == []


def test_a_node_that_stays_away_is_given_up_and_nothing_restarts() -> None:
    world = two_nodes(restart_policy="on_failure")
    world.tell(SignOfLife(0, 0), LinkLost(1, "no answer"))
    world.now += 60
    assert StopNode(0, 15.0) in world.tell(TimerFired("lost:1"))
    assert world.state.ranks[1].state is RankState.LOST
    # The others failed because their peer had vanished: that is not the cause.
    world.end(0, code=1)
    world.down(0)
    assert (world.state.phase, world.state.exit_status) == (Phase.LOST, 69)
    assert world.state.cause.host == "n1" and "not reached for 60 s (no answer)" in world.state.cause.reason


def test_a_failure_before_the_node_vanished_stays_the_cause() -> None:
    world = two_nodes()
    world.end(0, at=world.now - 5, code=3)
    world.tell(LinkLost(1, "no answer"))
    world.now += 60
    world.tell(TimerFired("lost:1"))
    world.down(0)
    assert (world.state.phase, world.state.exit_status) == (Phase.FAILED, 3)


def test_a_node_that_was_given_up_is_stopped_when_it_comes_back() -> None:
    world = two_nodes()
    world.tell(LinkLost(1, "no answer"))
    world.now += 60
    world.tell(TimerFired("lost:1"))
    assert world.tell(NodeUp(1, 0, "running")) == [StopNode(1, 15.0)]
    assert world.state.nodes[1].state is NodeState.LOST


def test_before_start_that_fails_fails_the_job(world: Any) -> None:
    world.begin()
    world.tell(NodeUp(0, None, "idle"), NodePhase(0, 0, "before_start"))
    effects = world.down(error="hooks.before_start ended with code 2: no such module")
    assert effects == [Finish()]
    assert (world.state.phase, world.state.exit_status) == (Phase.FAILED, 69)
    assert "no such module" in world.state.cause.reason and world.state.cause.host == "n0"
    # The same told again by a later `state` frame changes nothing.
    assert world.tell(NodeUp(0, 0, "down")) == []


def test_one_node_that_cannot_start_stops_the_others() -> None:
    world = World(tiny_plan(nodes=2))
    world.begin()
    world.tell(NodeUp(0, None, "idle"), NodePhase(0, 0, "running"), RankSpawned(0, 0, 5, 1.0))
    assert StopNode(0, 15.0) in world.tell(NodeFailed(1, "no python3"))
    world.end(0, signal=15, by_us=True)
    world.down(0)
    assert world.state.exit_status == 69 and "no python3" in world.state.cause.reason


def test_an_end_that_nobody_saw_is_lost_and_not_success(world: Any) -> None:
    world.run_all()
    world.end(0, code=0)
    world.end(1, lost=True)
    world.down()
    assert (world.state.phase, world.state.exit_status) == (Phase.LOST, 69)
    assert world.state.cause.kind == "peer_lost"


def test_restart_waits_until_everything_is_down(world: Any) -> None:
    world.run_all()
    assert StopNode(0, 15.0) in world.tell(RestartRequested())
    world.end(0, signal=15, by_us=True)
    world.end(1, signal=15, by_us=True)
    assert world.down() == [BeginAttempt(1, "restart")]
    world.tell(AttemptStarted(1, "restart"))
    assert world.state.phase is Phase.STARTING and world.state.attempt == 1
    assert "attempt_1" in world.state.ranks[0].log and world.state.ranks[0].restarts == 1
    assert world.tell(NodeUp(0, 0, "down")) == [StartNode(0, 1)]


def test_restart_of_a_finished_run(world: Any) -> None:
    world.run_all()
    world.end(0, code=1)
    world.end(1, code=1)
    world.down()
    assert world.tell(RestartRequested()) == [BeginAttempt(1, "restart")]


def test_stop_after_restart_request_means_stop(world: Any) -> None:
    world.run_all()
    world.tell(RestartRequested(), StopRequested("other"))
    world.end(0, signal=15, by_us=True)
    world.end(1, signal=15, by_us=True)
    world.down()
    assert world.state.phase is Phase.STOPPED


@pytest.fixture
def restarting() -> Any:
    return World(tiny_plan(restart_policy="on_failure", restart_max=1))


def fail_both(world: Any, attempt: int = 0) -> None:
    for rank in (0, 1):
        world.end(rank, attempt=attempt, code=9)


def test_restart_on_failure_counts_its_budget(restarting: Any) -> None:
    world = restarting
    world.run_all()
    world.tell(SignOfLife(0, 0))
    fail_both(world)
    assert world.down() == [SetTimer("restart", 10.0)]
    assert world.state.phase is Phase.PENDING and world.state.restart_at == world.now + 10
    assert world.tell(TimerFired("restart")) == [BeginAttempt(1, "on_failure")]
    world.tell(AttemptStarted(1, "on_failure"), NodeUp(0, 0, "down"))
    world.tell(RankSpawned(1, 0, 1, 1.0), RankSpawned(1, 1, 2, 1.0), SignOfLife(1, 0))
    fail_both(world, 1)
    assert world.down(attempt=1) == [Finish()]
    assert world.state.phase is Phase.FAILED and world.state.exit_status == 9
    assert "all 1 restarts" in to_snapshot(world.state).findings[0]


def test_a_crash_before_the_first_sign_of_life_is_not_repeated(restarting: Any) -> None:
    restarting.run_all()
    fail_both(restarting)
    assert restarting.down() == [Finish()]
    [why] = to_snapshot(restarting.state).findings
    assert "not restarted by itself" in why and "within 30 s" in why


def test_stop_while_a_restart_is_due_ends_the_run_as_failed(restarting: Any) -> None:
    world = restarting
    world.run_all()
    world.tell(SignOfLife(0, 0))
    fail_both(world)
    world.down()
    assert Finish() in world.tell(StopRequested("other"))
    assert (world.state.phase, world.state.exit_status) == (Phase.FAILED, 9)
    assert world.tell(TimerFired("restart")) == []


def test_a_new_engine_picks_up_what_an_old_one_left(restarting: Any) -> None:
    world = restarting
    world.run_all()
    world.end(0, code=1)
    world.now += 10
    assert SetTimer("fail_grace", 20.0) in world.tell(EngineStarted(2))


def test_more_grace(world: Any) -> None:
    world.run_all()
    assert refusal(world.state, MoreGrace(30)) is not None
    world.tell(StopRequested("other"), NodePhase(0, 0, "stopping", deadline=1015.0))
    assert refusal(world.state, MoreGrace(30)) is None
    assert world.tell(GraceExtended(30)) == [ExtendGrace(0, 30)]
    assert world.state.deadline == 1045.0


def test_refusals_after_the_end(world: Any) -> None:
    world.run_all()
    world.end(0, code=0)
    world.end(1, code=0)
    world.down()
    assert "over" in (refusal(world.state, StopJob()) or "")
    assert refusal(world.state, RestartJob()) is None


# -- any order of events ---------------------------------------------------------------------------------

ATTEMPTS = st.integers(0, 2)
RANKS = st.integers(0, 3)
NODES = st.integers(0, 1)
PHASES = st.sampled_from(["idle", "before_start", "running", "stopping", "after_stop", "down"])
TIMES = st.floats(1, 2000)
ENDS = st.sampled_from([{"code": 0}, {"code": 3}, {"signal": 9}, {"lost": True}, {"signal": 15, "by_us": True}])
EVENTS = st.one_of(
    st.just(EngineStarted(1)),
    st.builds(AttemptStarted, ATTEMPTS, st.sampled_from(["launch", "restart", "on_failure"])),
    st.builds(NodeUp, NODES, st.none() | ATTEMPTS, PHASES),
    st.builds(NodeFailed, NODES, st.just("broken")),
    st.builds(LinkLost, NODES, st.just("gone")),
    st.builds(NodePhase, NODES, ATTEMPTS, PHASES, st.none() | st.just("hook failed")),
    st.builds(RankSpawned, ATTEMPTS, RANKS, st.integers(2, 99), TIMES),
    st.builds(lambda a, r, t, how: RankEnded(a, r, t, **how), ATTEMPTS, RANKS, TIMES, ENDS),
    st.builds(SignOfLife, ATTEMPTS, RANKS),
    st.builds(StopRequested, st.sampled_from(["sigint", "other"]), st.booleans()),
    st.just(RestartRequested()),
    st.builds(GraceExtended, st.just(30.0)),
    st.builds(TimerFired, st.sampled_from(["fail_grace", "restart", "lost:0", "lost:1"])),
)


@settings(max_examples=400)
@given(st.lists(EVENTS, max_size=40), st.sampled_from(["never", "on_failure"]))
def test_whatever_is_told_the_state_makes_sense(events: list[Event], policy: str) -> None:
    world = World(tiny_plan(nodes=2, restart_policy=policy, lost_after_s=30.0))
    for event in events:
        world.now += 1
        for effect in world.tell(event):
            if isinstance(effect, BeginAttempt):
                world.tell(AttemptStarted(effect.attempt, effect.reason))
        state = world.state
        assert state.phase.final == (state.exit_status is not None)
        if state.phase is Phase.SUCCEEDED:
            assert all(r.exit_code == 0 for r in state.ranks.values())
        if state.phase in (Phase.FAILED, Phase.LOST):
            assert state.exit_status and state.cause is not None
        if state.cause is not None and state.cause.rank is not None:
            assert not state.ranks[state.cause.rank].by_us
        json.dumps(to_snapshot(state).to_json(world.now))


@settings(max_examples=150)
@given(st.lists(EVENTS, max_size=25))
def test_telling_an_event_twice_changes_nothing(events: list[Event]) -> None:
    world = World(tiny_plan(nodes=2))
    world.begin()
    for event in events:
        world.tell(event)
        if isinstance(event, GraceExtended | RestartRequested):
            continue
        again, _ = step(world.state, event, world.now)
        if isinstance(event, StopRequested):
            continue
        assert again == world.state


@settings(max_examples=150)
@given(st.lists(EVENTS, max_size=25))
def test_the_journal_gives_the_same_state_again(events: list[Event]) -> None:
    world = World(tiny_plan(nodes=2))
    for event in events:
        world.tell(event)
    lines = [json.loads(json.dumps(event_to_json(e, at))) for e, at in world.told]
    again = replay(initial(world.plan), iter(lines))
    assert rounded(again) == rounded(world.state)


def rounded(state: Any) -> Any:
    """A state with its times as they are written: to the millisecond."""
    return to_snapshot(state).to_json(0)


@settings(max_examples=100)
@given(EVENTS)
def test_an_event_survives_being_written_down(event: Event) -> None:
    line = json.loads(json.dumps(event_to_json(event, 12.5)))
    back, at = event_from_json(line)
    assert type(back) is type(event) and at == 12.5


@settings(max_examples=60)
@given(st.lists(EVENTS, max_size=25))
def test_a_snapshot_survives_being_sent(events: list[Event]) -> None:
    world = World(tiny_plan(nodes=2))
    for event in events:
        world.tell(event)
    data = json.loads(json.dumps(to_snapshot(world.state).to_json(5.0)))
    assert snapshot_from_json(data).to_json(5.0) == data
