"""Sizes, layouts, help, signs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tui.present.text import ASCII

SIZES = [(1, 1), (2, 2), (5, 3), (10, 5), (20, 6), (40, 10), (59, 14), (60, 15), (80, 24), (99, 30), (100, 30)]
SIZES += [(120, 40), (160, 50), (200, 60), (79, 4), (3, 60), (200, 3)]


def fills(world: Any, size: tuple[int, int]) -> bool:
    return len(world.strips) == size[1] and all(strip.cell_length == size[0] for strip in world.strips)


@pytest.mark.parametrize("state", ["running", "stopping", "failed"])
async def test_no_size_breaks_it(open_console: Any, snapshots: Any, tmp_path: Path, state: str) -> None:
    snapshot = snapshots.make_snapshot(tmp_path)
    if state != "running":
        snapshot = getattr(snapshots, state)(snapshot)
    async with open_console(snapshot) as world:
        for size in SIZES:
            await world.pilot.resize_terminal(*size)
            await world.pilot.pause()
            assert fills(world, size), size


@pytest.mark.parametrize("key", ["R", "question_mark", "q", "z"])
async def test_no_size_breaks_what_opens(open_console: Any, key: str) -> None:
    async with open_console() as world:
        await world.press(key)
        for size in SIZES:
            await world.pilot.resize_terminal(*size)
            await world.pilot.pause()
            assert fills(world, size), size


async def test_stacked_and_side_by_side(open_console: Any) -> None:
    async with open_console(size=(80, 24)) as world:
        table, log = world.console._main.table, world.console._main.log_view
        assert table.region.x == log.region.x
        assert table.region.bottom < log.region.y
        assert table.region.height == 5
        await world.pilot.resize_terminal(120, 40)
        await world.pilot.pause()
        assert (table.region.height, log.region.width) == (5, 120)  # a few ranks leave the log its whole width
        await world.pilot.resize_terminal(160, 40)
        await world.pilot.pause()
        assert table.region.right <= log.region.x
        assert log.region.right == 160
        await world.pilot.resize_terminal(50, 10)
        await world.pilot.pause()
        assert world.focus == "log"
        assert log.region.height == 9
        assert "rank 0 line 100" in world.text
        assert "RANK" not in world.text


async def test_many_ranks_stand_beside_the_log(open_console: Any, snapshots: Any, tmp_path: Path) -> None:
    async with open_console(snapshots.make_snapshot(tmp_path, 32), size=(120, 40)) as world:
        table, log = world.console._main.table, world.console._main.log_view
        assert table.region.right <= log.region.x
        assert log.region.right == 120
        assert table.region.height > 32


async def test_zoom_and_back(open_console: Any) -> None:
    async with open_console() as world:
        await world.press("tab", "z")
        assert "RANK" not in world.text
        assert len(world.log_rows) > 18
        await world.press("escape")
        assert "RANK" in world.text


async def test_tab_goes_round(open_console: Any) -> None:
    async with open_console() as world:
        seen = [world.focus]
        for _ in range(3):
            await world.press("tab")
            seen.append(world.focus)
        assert seen == ["table", "log", "table", "log"]
        await world.press("shift+tab")
        assert world.focus == "table"


@pytest.mark.parametrize("key", ["question_mark", "f1"])
async def test_help_lists_the_keys_and_closes(open_console: Any, key: str) -> None:
    async with open_console(size=(100, 50)) as world:
        await world.press(key)
        for words in ("Stop the job", "Kill the job", "Follow the log", "Log of the next rank", "Tab Shift+Tab"):
            assert words in world.text
        await world.press("x")  # not while reading
        assert "Stop 4 ranks" not in world.text
        await world.press("escape")
        assert "IN THE TABLE" not in world.text
        await world.press(key, key)
        assert world.console.screen is world.console._main


async def test_help_at_80x24_can_be_read_to_its_end(open_console: Any) -> None:
    async with open_console() as world:
        await world.press("question_mark", "end")
        assert "Log of the rank before" in world.text
        assert "THE JOB" not in world.text
        await world.press("home")
        assert "Restart the job" in world.text


async def test_redraw_changes_nothing(open_console: Any) -> None:
    async with open_console() as world:
        before = world.text
        await world.press("ctrl+l")
        assert world.text == before


async def test_every_key_in_the_last_row_is_bound(open_console: Any) -> None:
    async with open_console(size=(200, 60)) as world:
        words = world.row(59).split()
        bound = {key for binding in world.console._bindings.key_to_bindings for key in [binding]}
        names = {"?": "question_mark", ":": "colon"}
        for key in ("x", "R", "f", "w", "z", "?", "q", ":"):
            assert key in words
            assert names.get(key, key) in bound


async def test_plain_terminals_get_ascii(
    open_console: Any, snapshots: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    snapshot = snapshots.failed(snapshots.make_snapshot(tmp_path))
    async with open_console(snapshot) as world:
        assert world.text.isascii()
        assert world.console.theme == "ansi-dark"
        strips = world.strips
        colors = {s.style.color for strip in strips for s in strip if s.style is not None and s.style.color is not None}
        assert all(color.is_default for color in colors)
        await world.press("question_mark")
        assert world.text.isascii()
        await world.press("escape", "R")
        assert world.text.isascii()
        assert "Restart" in world.text


async def test_a_locale_without_utf8_gets_ascii(open_console: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    async with open_console() as world:
        assert world.console._glyphs is ASCII
        assert world.text.isascii()


async def test_nothing_is_drawn_while_the_terminal_does_not_take_it(open_console: Any, snapshots: Any) -> None:
    class Queue:
        def qsize(self) -> int:
            return 1

    class Writer:
        _queue = Queue()

    async with open_console() as world:
        driver = world.console._driver
        driver._writer_thread = Writer()
        before = world.text
        world.append(b"unseen\n")
        world.session.push(snapshots.failed(world.session.snapshot), {"event": "rank_ended", "rank": 2, "code": 3})
        await world.wait(lambda: world.console.snapshot.phase == "failed")
        await world.pilot.pause(0.3)
        assert world.row(0) == before.split("\n")[0]
        assert "unseen" not in world.text
        del driver._writer_thread
        await world.wait("FAILED")
        assert "rank 2 exited with 3" in world.row(22)
        await world.press("0")
        await world.wait(lambda: world.log_rows[-1] == "unseen")
