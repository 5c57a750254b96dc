"""Every way out of the console."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.session import StopJob


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_leaving_a_running_job_asks(open_console: Any, key: str) -> None:
    async with open_console() as world:
        await world.press(key)
        assert "Leave demo?" in world.text
        assert "trainui attach 20270115-080000-ab12" in world.text
        await world.press("escape")
        assert "Leave demo?" not in world.text
        await world.press(key, "enter")  # the default stays
        assert world.console.is_running
        await world.press(key, "d")
        await world.wait(lambda: not world.console.is_running)
    assert world.console.return_value.action == "detached"
    assert world.session.intents == []


async def test_escape_never_leaves(open_console: Any) -> None:
    async with open_console() as world:
        await world.press(*["escape"] * 5)
        assert world.console.is_running
        assert world.console.screen is world.console._main


async def test_stop_and_quit_waits_until_everything_is_down(open_console: Any, snapshots: Any) -> None:
    async with open_console() as world:
        await world.press("q", "x")
        await world.wait(lambda: world.session.intents == [StopJob()])
        world.session.push(snapshots.stopping(world.session.snapshot))
        await world.wait("SIGKILL in")
        assert "still alive: ranks 1-3 (pid 31001, 31002, 31003)" in world.text
        assert world.console.is_running
        world.session.push(snapshots.stopped(world.session.snapshot))
        await world.wait(lambda: not world.console.is_running)
    assert world.console.return_value.action == "stopped"
    assert world.console.return_value.snapshot.exit_status == 143


async def test_survivors_are_named_and_quitting_is_possible(open_console: Any, snapshots: Any) -> None:
    async with open_console() as world:
        await world.press("q", "x")
        world.session.push(snapshots.stopping(world.session.snapshot, survivors=True))
        await world.wait("could not be killed: pid 31001 on node01 (state D): python train.py")
        assert world.console.is_running
        await world.press("q")
        await world.wait(lambda: not world.console.is_running)
    assert world.console.return_value.action == "stopped"


async def test_a_finished_run_stays_until_q(open_console: Any, snapshots: Any) -> None:
    async with open_console() as world:
        world.session.push(snapshots.failed(world.session.snapshot))
        world.session.end()
        await world.wait("FAILED")
        assert "exit status 3" in world.row(1)
        assert world.console.is_running
        await world.press("q")
        await world.wait(lambda: not world.console.is_running)
    assert world.console.return_value.action == "ended"


async def test_a_run_that_ends_takes_back_the_question_whether_it_runs_on(open_console: Any, snapshots: Any) -> None:
    async with open_console() as world:
        await world.press("q")
        assert "It runs on" in world.text
        world.session.push(snapshots.failed(world.session.snapshot))
        await world.wait("the run is over, q leaves")
        await world.wait(lambda: "It runs on" not in world.text)
        assert world.console.is_running
        await world.press("q")
        await world.wait(lambda: not world.console.is_running)
    assert world.console.return_value.action == "ended"


async def test_q_leaves_a_zoom_first(open_console: Any) -> None:
    async with open_console() as world:
        await world.press("z")
        assert "rank 0 pid" not in world.text  # the table has it all
        await world.press("q")
        assert "rank 0 pid" in world.text
        assert world.console.screen is world.console._main


async def test_the_engine_vanishes_and_comes_back(open_console: Any, snapshots: Any, tmp_path: Path) -> None:
    other = snapshots.FakeSession(snapshots.make_snapshot(tmp_path))

    async def reconnect() -> Any:
        await world.wait("the engine vanished; reconnecting")
        return other

    async with open_console(reconnect=reconnect) as world:
        world.session.vanish()
        await world.wait("an engine looks after the run again")
        other.push(snapshots.failed(other.snapshot))
        await world.wait("FAILED")
        await world.press("q")
        await world.console.bridge.close()
    assert other.closed


async def test_the_engine_is_gone_for_good(open_console: Any) -> None:
    async with open_console() as world:
        world.session.vanish("it was killed")
        await world.wait("the engine is gone, what you see is old: it was killed")
        assert "RUNNING" in world.text  # the last snapshot stays
        await world.press("q")
        await world.wait(lambda: not world.console.is_running)
    assert world.console.return_value.action == "gone"


async def test_a_signal_leaves_the_job_alone(open_console: Any) -> None:
    async with open_console() as world:
        world.console.terminate()
        await world.wait(lambda: not world.console.is_running)
    assert world.console.return_value.action == "terminated"
    assert world.session.intents == []
