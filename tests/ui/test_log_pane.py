"""The log pane over real files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def last(world: Any) -> str:
    return [row for row in world.log_rows if row][-1]


async def into_log(world: Any) -> None:
    await world.press("tab")
    assert world.focus == "log"


async def test_it_opens_at_the_end_and_follows(open_console: Any) -> None:
    async with open_console() as world:
        assert last(world) == "rank 0 line 100"
        assert "FOLLOW" in world.text
        world.append(b"something new\n")
        await world.wait(lambda: last(world) == "something new")


async def test_scrolling_up_pauses_and_new_lines_move_nothing(open_console: Any) -> None:
    async with open_console() as world:
        await into_log(world)
        await world.press("up", "up", "pageup")
        assert "PAUSED" in world.text
        before = world.log_rows
        assert last(world) != "rank 0 line 100"
        world.append(b"".join(b"new %d\n" % i for i in range(12)))
        await world.wait("PAUSED +12 new")
        assert world.log_rows == before
        await world.press("f")
        assert last(world) == "new 11"
        assert "FOLLOW" in world.text


@pytest.mark.parametrize("key", ["f", "G", "end"])
async def test_keys_that_resume(open_console: Any, key: str) -> None:
    async with open_console() as world:
        await into_log(world)
        await world.press("home")
        assert world.log_rows[0] == "rank 0 line 1"
        assert "PAUSED" in world.text
        await world.press(key)
        assert "FOLLOW" in world.text
        assert last(world) == "rank 0 line 100"


async def test_scrolling_down_to_the_end_follows_again(open_console: Any) -> None:
    async with open_console() as world:
        await into_log(world)
        await world.press("up", "up")
        assert "PAUSED" in world.text
        await world.press("down", "down")
        assert "FOLLOW" in world.text


async def test_a_bar_is_one_living_line(open_console: Any) -> None:
    async with open_console() as world:
        for percent in (10, 20, 30):
            world.append(b"\r%d%%|" % percent)
            await world.wait(lambda p=percent: last(world) == f"{p}%|")
        assert world.log_rows[-2] == "rank 0 line 100"
        world.append(b"\r100%|\ndone\n")
        await world.wait(lambda: world.log_rows[-2:] == ["100%|", "done"])


async def test_what_a_rank_writes_cannot_reach_the_terminal(open_console: Any) -> None:
    async with open_console() as world:
        world.append(b"\x1b]0;pwned\x07\x1b[2J\x1b[31mred\x1b[0m \xff\x00\x9b [bold]x[/bold] \xe2\x80\xaeok\n")
        await world.wait(lambda: last(world).startswith("red"))
        assert last(world) == "red \ufffd\ufffd [bold]x[/bold] ok"
        assert not any(c in world.text for c in "\x1b\x07\x00\u202e\x9b")
        await world.wait(lambda: "red" in world.row(2))  # the table shows it too


async def test_wide_characters_and_the_side(open_console: Any) -> None:
    async with open_console() as world:
        await into_log(world)
        world.append("界".encode() * 60 + b"END\n")
        await world.wait(lambda: "界" in last(world))
        assert all(strip.cell_length == 80 for strip in world.strips)
        await world.press("right")
        assert last(world).startswith("界" * 30)
        await world.press(*["right"] * 9)
        assert last(world).endswith("END")
        await world.press("circumflex_accent")
        assert world.log_rows[-2] == "rank 0 line 100"


async def test_wrapping(open_console: Any) -> None:
    async with open_console() as world:
        await into_log(world)
        world.append(b"a" * 79 + b"b" * 79 + b"END\n")
        await world.wait(lambda: last(world) == "a" * 79)
        await world.press("w")
        assert world.log_rows[-4:] == ["rank 0 line 100", "a" * 79, "b" * 79, "END"]
        assert "wrap" in world.row(6)
        await world.press("up")
        assert world.log_rows[-1] == "b" * 79
        await world.press("w")
        assert any(row == "a" * 79 for row in world.log_rows)


async def test_a_line_of_a_megabyte(open_console: Any) -> None:
    async with open_console() as world:
        world.append(b"x" * 1_000_000 + b"\nnext\n")
        await world.wait(lambda: last(world) == "next")
        assert world.log_rows[-2] == "x" * 79
        await into_log(world)
        await world.press("w")
        assert last(world) == "next"
        assert "bytes more" in world.text


async def test_a_big_log_opens_at_its_end_and_reaches_byte_0(open_console: Any, snapshots: Any, tmp_path: Path) -> None:
    snapshot = snapshots.make_snapshot(tmp_path)
    snapshots.make_logs(snapshot)
    path = tmp_path / snapshot.ranks[0].log
    with path.open("wb") as file:
        file.write(b"the very first line\n")
        for block in range(30):
            file.write(b"".join(b"step %08d loss 2.25\n" % (block * 50_000 + i) for i in range(50_000)))
    async with open_console(snapshot, lines=0) as world:
        assert last(world) == "step 01499999 loss 2.25"
        await into_log(world)
        await world.press("home")
        assert world.log_rows[0] == "the very first line"
        await world.wait("1,500,001")  # counted in the background
        await world.press("end")
        assert last(world) == "step 01499999 loss 2.25"


async def test_an_emptied_log_begins_anew(open_console: Any) -> None:
    async with open_console() as world:
        os.truncate(world.log_path(), 0)
        world.append(b"fresh\n")
        await world.wait(lambda: last(world) == "fresh")
        assert "line 100" not in "".join(world.log_rows)


async def test_a_log_that_is_not_there_yet(open_console: Any) -> None:
    async with open_console(lines=0) as world:
        assert "nothing was written yet" in world.text
        world.log_path().parent.mkdir(parents=True)
        world.append(b"first words")
        await world.wait(lambda: last(world) == "first words")


async def test_a_log_that_cannot_be_read(open_console: Any) -> None:
    async with open_console(lines=0) as world:
        world.log_path().mkdir(parents=True)
        world.log_path().rmdir()
        world.log_path().symlink_to(world.log_path())
        await world.wait("the log cannot be read")


async def test_text_can_be_copied_while_paused(open_console: Any) -> None:
    async with open_console() as world:
        await into_log(world)
        await world.press("home")
        view = world.console._main.log_view
        await world.pilot.mouse_down(view, offset=(5, 0))
        await world.pilot.hover(view, offset=(13, 1))
        await world.pilot.mouse_up(view, offset=(13, 1))
        await world.pilot.pause()
        copied: list[str] = []
        world.console.copy_to_clipboard = copied.append
        await world.press("ctrl+c")
        assert copied == ["0 line 1\nrank 0 line 2"]
        assert world.console.screen is world.console._main  # copied, so it did not ask to leave
