"""Nothing is done to a job without a question that names it, and Cancel is what happens by accident."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual import events

from engine.errors import IntentRefused
from engine.session import MoreGrace, RestartJob, StopJob

# Whatever a keyboard has. Keys of dialogs are pressed elsewhere.
ALL_KEYS = [
    *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
    *["space", "enter", "tab", "shift+tab", "escape", "backspace", "delete", "insert", "home", "end", "pageup"],
    *["pagedown", "up", "down", "left", "right", "plus", "minus", "colon", "slash", "question_mark", "f1", "f2"],
    *["left_square_bracket", "right_square_bracket", "asterisk", "exclamation_mark", "ampersand", "circumflex_accent"],
    *[f"ctrl+{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"],
]


@pytest.mark.parametrize(
    ("key", "title", "intent"),
    [
        ("x", "Stop 4 ranks of demo?", StopJob()),
        ("X", "Kill 4 ranks of demo?", StopJob(kill=True)),
        ("R", "Restart 4 ranks of demo?", RestartJob()),
    ],
)
async def test_y_does_it(open_console: Any, key: str, title: str, intent: Any) -> None:
    async with open_console() as world:
        await world.press(key)
        assert title in world.text
        assert world.session.intents == []
        await world.press("y")
        await world.wait(lambda: world.session.intents == [intent])
        assert title not in world.text


@pytest.mark.parametrize("key", ["x", "X", "R"])
@pytest.mark.parametrize("answer", ["enter", "escape", "n", "q", "ctrl+c"])
async def test_everything_that_is_easily_pressed_cancels(open_console: Any, key: str, answer: str) -> None:
    async with open_console() as world:
        await world.press(key)
        assert "[y]" in world.text
        await world.press(answer)
        assert "[y]" not in world.text
        assert world.session.intents == []


async def test_the_other_choice_can_be_reached_with_arrows(open_console: Any) -> None:
    async with open_console() as world:
        await world.press("x", "down", "enter")
        await world.wait(lambda: world.session.intents == [StopJob()])


async def test_keys_of_the_first_moment_are_dropped(open_console: Any) -> None:
    async with open_console() as world:
        await world.pilot.press("x")
        await world.pilot.pause()
        await world.pilot.press("y")
        world.clock.advance(0.2)
        await world.pilot.press("y")
        await world.pilot.pause()
        assert "Stop 4 ranks of demo?" in world.text
        assert world.session.intents == []
        world.clock.advance(0.1)
        await world.pilot.press("y")
        await world.wait(lambda: world.session.intents == [StopJob()])


async def test_pasted_text_does_nothing(open_console: Any) -> None:
    async with open_console() as world:
        before = world.text
        world.console.post_message(events.Paste("xyXyRyqdq"))
        await world.pilot.pause()
        assert world.text == before
        await world.press("x")
        world.console.post_message(events.Paste("y"))
        await world.pilot.pause()
        assert "Stop 4 ranks of demo?" in world.text
        assert world.session.intents == []


@pytest.mark.parametrize("focus", ["table", "log"])
@pytest.mark.parametrize("part", range(4))
async def test_no_single_key_changes_the_job(open_console: Any, focus: str, part: int) -> None:
    async with open_console() as world:
        for key in ALL_KEYS[part::4]:
            (world.console._main.table if focus == "table" else world.console._main.log_view).focus()
            await world.pilot.pause()
            await world.press(key)
            assert world.session.intents == [], key
            assert world.console.is_running, key
            while world.console.screen is not world.console._main:
                await world.press("escape")


async def test_several_nodes_are_named(open_console: Any, snapshots: Any, tmp_path: Path) -> None:
    async with open_console(snapshots.make_snapshot(tmp_path, 8, 2, name="llama70b")) as world:
        await world.press("x")
        assert "Stop 2 nodes, 8 ranks of llama70b?" in world.text


async def test_read_only(open_console: Any) -> None:
    async with open_console(read_only=True) as world:
        for key in ("x", "X", "R", "plus"):
            await world.press(key)
            assert world.console.screen is world.console._main
            assert "read-only" in world.row(22)
        assert "Stop" not in world.row(23)
        await world.press("q")
        assert "[d] Detach" in world.text
        assert "[x]" not in world.text
        await world.press("x")
        assert world.session.intents == []
        assert world.console.is_running


async def test_more_grace_only_while_stopping(open_console: Any, snapshots: Any) -> None:
    async with open_console() as world:
        await world.press("plus")
        assert "nothing is being stopped" in world.text
        assert world.session.intents == []
        world.session.push(snapshots.stopping(world.session.snapshot))
        await world.wait("STOPPING")
        await world.press("plus")
        await world.wait(lambda: world.session.intents == [MoreGrace()])


async def test_what_the_engine_refuses_is_said(open_console: Any) -> None:
    async with open_console() as world:
        world.session.refuse = IntentRefused("a restart is under way")
        await world.press("R", "y")
        await world.wait("a restart is under way")


async def test_a_run_that_is_over_cannot_be_stopped(open_console: Any, snapshots: Any, tmp_path: Path) -> None:
    async with open_console(snapshots.failed(snapshots.make_snapshot(tmp_path))) as world:
        await world.press("x")
        assert "the run is over" in world.row(22)
        assert world.console.screen is world.console._main
        await world.press("R")
        assert "Restart demo?" in world.text
        assert "Attempt 1 of the same run" in world.text


async def test_the_palette_asks_too(open_console: Any) -> None:
    async with open_console() as world:
        await world.press("colon")
        await world.wait("Search for commands")
        for letter in "kill the job":
            await world.pilot.press("space" if letter == " " else letter)
        await world.wait("Kill the job at once")
        await world.press("enter")
        await world.wait("Kill 4 ranks of demo?")
        assert world.session.intents == []
        world.clock.advance(1)
        await world.pilot.press("y")
        await world.wait(lambda: world.session.intents == [StopJob(kill=True)])
