"""Ranks: the table, which log is shown, failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.job.snapshot import RankView


async def test_a_row_says_all(open_console: Any) -> None:
    async with open_console(size=(120, 40)) as world:
        await world.press("z")
        await world.wait("0:01:03")
        row = world.row(2)
        for part in ("running", "31000", "0:01:03", "3s", "120", "rank 0 line 100"):
            assert part in row


async def test_the_log_follows_the_cursor(open_console: Any) -> None:
    async with open_console() as world:
        await world.press("down", "j")
        assert world.rank == 2
        assert world.log_rows[-1] == "rank 2 line 100"
        await world.press("k", "up")
        assert world.log_rows[-1] == "rank 0 line 100"
        await world.press("G")
        assert world.rank == 3
        await world.press("g")
        assert world.rank == 0


@pytest.mark.parametrize("key", ["enter", "l"])
async def test_into_the_log(open_console: Any, key: str) -> None:
    async with open_console() as world:
        await world.press("down", key)
        assert world.focus == "log"
        assert world.log_rows[-1] == "rank 1 line 100"


async def test_digits_and_neighbours(open_console: Any, snapshots: Any, tmp_path: Path) -> None:
    async with open_console(snapshots.make_snapshot(tmp_path, 8, 2)) as world:
        await world.press("3")
        assert world.rank == 3
        await world.press("right_square_bracket")
        assert world.rank == 4
        assert "rank 4 @ node02" in world.text
        await world.press("3")  # on this node now
        assert world.rank == 7
        await world.press("right_square_bracket", "left_square_bracket")
        assert world.rank == 6
        await world.press("9")  # there is none
        assert world.rank == 6
        assert world.log_rows[-1] == "rank 6 line 100"


async def test_a_failure_opens_the_log_of_its_cause(open_console: Any, snapshots: Any) -> None:
    async with open_console() as world:
        world.append(b"Traceback (most recent call last):\nValueError: loss is NaN\n", rank=2)
        ended = {"event": "rank_ended", "rank": 2, "code": 3}
        world.session.push(snapshots.failed(world.session.snapshot), ended)
        await world.wait("FAILED")
        assert world.rank == 2
        assert "rank 2 exited with 3: ValueError: loss is NaN" in world.text
        await world.wait(lambda: world.log_rows[-1] == "ValueError: loss is NaN")
        assert "rank 2 exited with 3" in world.row(22)
        assert "1 failed" in world.row(0) and "3 stopped" in world.row(0)
        await world.press("0")  # and then the user is free
        world.session.push(replace(world.session.snapshot, findings=("x",)))
        await world.pilot.pause(0.3)
        assert world.rank == 0


async def test_attaching_to_a_failed_run_opens_the_log_of_its_cause(
    open_console: Any, snapshots: Any, tmp_path: Path
) -> None:
    async with open_console(snapshots.failed(snapshots.make_snapshot(tmp_path))) as world:
        await world.wait(lambda: world.rank == 2)
        assert world.log_rows[-1] == "rank 2 line 100"


async def test_the_next_attempt_has_other_logs(open_console: Any, snapshots: Any, tmp_path: Path) -> None:
    async with open_console() as world:
        first = world.session.snapshot

        def again(rank: RankView) -> RankView:
            return replace(rank, log=rank.log.replace("attempt_0", "attempt_1"), pid=42000 + rank.rank)

        second = replace(first, attempt=1, ranks=tuple(map(again, first.ranks)))
        snapshots.make_logs(second, 7)
        world.session.push(second, {"event": "attempt_started", "attempt": 1, "reason": "restart"})
        await world.wait("42000")
        assert world.log_rows[6] == "rank 0 line 7"
        assert "attempt 1" in world.row(0)
        assert "attempt 1 starts, as asked for" in world.row(22)


async def test_a_thousand_ranks(open_console: Any, snapshots: Any, tmp_path: Path) -> None:
    async with open_console(snapshots.make_snapshot(tmp_path, 1024), lines=2) as world:
        await world.press("G")
        assert world.rank == 1023
        assert world.log_rows[1] == "rank 1023 line 2"
        await world.press("pageup", "home", "pagedown")
        assert 3 < world.rank < 20
        assert "1024 running" in world.row(0)


async def test_one_rank_needs_no_table(open_console: Any, snapshots: Any, tmp_path: Path) -> None:
    async with open_console(snapshots.make_snapshot(tmp_path, 1)) as world:
        assert world.focus == "log"
        assert world.log_rows[-1] == "rank 0 line 100"


async def test_foreign_names_are_harmless(open_console: Any, snapshots: Any, tmp_path: Path) -> None:
    snapshot = snapshots.make_snapshot(tmp_path, name="evil\x1b]0;x\x07[bold]\n")
    snapshot = replace(snapshot, nodes=(replace(snapshot.nodes[0], error="\x1b[2Jno\rspace"),))
    async with open_console(snapshot) as world:
        assert world.row(0).startswith("evil[bold]")
        assert "node01: no space" in world.row(1)
        assert "\x1b" not in world.text
