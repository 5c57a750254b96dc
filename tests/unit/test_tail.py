"""Reading logs that are still being written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.logs.tail import LONGEST_S, READ_BYTES, LogTail, Pace, follow, start_of_last_lines


def test_a_file_that_comes_later_is_read_from_its_start(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "rank.log")
    assert tail.poll() == b""
    (tmp_path / "rank.log").write_bytes(b"first")
    assert tail.poll() == b"first"
    assert tail.poll() == b""
    tail.close()


def test_it_reads_on_where_it_left_off(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    path.write_bytes(b"one")
    tail = LogTail(path)
    assert tail.poll() == b"one"
    with path.open("ab") as file:
        file.write(b"two")
    assert tail.poll() == b"two"
    tail.close()


def test_a_big_file_comes_in_pieces_and_whole(tmp_path: Path) -> None:
    data = bytes(range(256)) * (READ_BYTES // 100)
    (tmp_path / "rank.log").write_bytes(data)
    tail = LogTail(tmp_path / "rank.log")
    pieces = list(iter(tail.poll, b""))
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) == READ_BYTES
    tail.close()


def test_a_file_that_somebody_emptied_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    path.write_bytes(b"long ago")
    tail = LogTail(path)
    tail.poll()
    path.write_bytes(b"new")
    assert tail.poll() == b"new"
    assert tail.truncated == 1
    tail.close()


def test_a_log_that_cannot_be_read_is_an_error_not_an_empty_log(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        LogTail(tmp_path).poll()


def test_the_pace_slows_down_and_wakes_up() -> None:
    pace = Pace()
    assert [pace.next(False) for _ in range(6)][-1] == LONGEST_S
    assert pace.next(True) < LONGEST_S


async def test_the_end_of_the_file_is_not_the_end_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    path.write_bytes(b"a")
    finished = False
    got: list[bytes] = []

    async def read() -> None:
        async for data in follow(LogTail(path), lambda: finished):
            got.append(data)  # noqa: PERF401 (the test looks at it meanwhile)

    reader = asyncio.create_task(read())
    async with asyncio.timeout(10):
        while got != [b"a"]:
            await asyncio.sleep(0.01)
    assert not reader.done()
    with path.open("ab") as file:
        file.write(b"last words")
    finished = True
    async with asyncio.timeout(10):
        await reader
    assert b"".join(got) == b"alast words"


@pytest.mark.parametrize(
    ("data", "count", "shown"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 9, b"a\nb\n"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
        (b"\n\n\n", 2, b"\n\n"),
    ],
)
def test_last_lines(tmp_path: Path, data: bytes, count: int, shown: bytes) -> None:
    path = tmp_path / "rank.log"
    path.write_bytes(data)
    start, end = start_of_last_lines(path, count)
    assert data[start:end] == shown


def test_last_lines_over_many_blocks(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    line = b"x" * 1000 + b"\n"
    path.write_bytes(line * 2000)
    start, end = start_of_last_lines(path, 900)
    assert end - start == 900 * len(line)


@given(st.lists(st.sampled_from([b"", b"a", b"bb"]), max_size=12), st.booleans(), st.integers(1, 14))
def test_last_lines_are_those_of_tail(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], end: bool, n: int
) -> None:
    data = b"\n".join(parts) + (b"\n" if end and parts else b"")
    path = tmp_path_factory.mktemp("tail") / "rank.log"
    path.write_bytes(data)
    lines = data.split(b"\n")
    whole = [x + b"\n" for x in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    start, stop = start_of_last_lines(path, n)
    assert data[start:stop] == b"".join(whole[-n:])
