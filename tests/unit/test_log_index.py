"""The index against a plain reading of the same bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.logs import index
from engine.logs.index import LogIndex
from engine.logs.last import last_line, last_lines


def expected_lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


def starts(log: LogIndex) -> list[int]:
    """All line starts, found by walking backwards."""
    found: list[int] = []
    start = log.last_start()
    while start is not None:
        found.append(start)
        start = log.line_before(start)
    return found[::-1]


def starts_forward(log: LogIndex) -> list[int]:
    found: list[int] = []
    start = 0
    while start < log.size:
        found.append(start)
        start = log.line_end(start)[1]
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, so that short files cross many of them."""
    monkeypatch.setattr(index, "BLOCK", 8)
    monkeypatch.setattr(index, "LONGEST", 32)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\r", b"x" * 9, b"y" * 40, b"z" * 100]), max_size=40))
def test_every_line_from_both_sides(small: None, tmp_path: Path, parts: list[bytes]) -> None:
    data = b"".join(parts)
    path = tmp_path / "log"
    path.write_bytes(data)
    log = LogIndex(path)
    log.refresh()
    assert log.complete
    assert log.lines == data.count(b"\n")
    assert starts(log) == starts_forward(log)
    joined = b"".join(log.read(s, log.line_end(s)[1]) for s in starts(log))
    assert joined == data
    assert all(log.line_end(s)[1] - s <= 2 * 32 for s in starts(log))
    whole = expected_lines(data)
    for number, line in enumerate(whole, 1):
        start = log.start_of(number)
        assert start is not None
        assert data[start:].startswith(line)
        assert log.number_at(start) == number
        assert line.startswith(log.window(number, 1)[0])
    if all(len(line) < 32 for line in whole):
        assert log.window(1, len(whole) + 5) == whole
        assert log.window(2, 3) == whole[1:4]
    assert log.start_of(len(data) + 2) is None
    log.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunks=st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\x01", b"\n")), max_size=12))
def test_a_growing_log(small: None, tmp_path: Path, chunks: list[bytes]) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"")
    log = LogIndex(path)
    data = b""
    for chunk in chunks:
        with path.open("ab") as file:
            file.write(chunk)
        data += chunk
        assert log.refresh(budget=7) == bool(chunk)
        assert log.size == len(data)
        assert starts(log) == starts_forward(log)
    for _ in range(len(data)):
        log.refresh(budget=7)
    assert log.lines == data.count(b"\n")
    log.close()


def test_an_emptied_log_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    log = LogIndex(path)
    log.refresh()
    assert log.window(1, 9) == [b"one", b"two"]
    os.truncate(path, 0)
    with path.open("ab") as file:
        file.write(b"new\n")
    assert log.refresh()
    assert log.generation == 1
    assert log.window(1, 9) == [b"new"]
    log.close()


def test_a_replaced_log_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    log = LogIndex(path)
    log.refresh()
    other = tmp_path / "other"
    other.write_bytes(b"three is longer than the two before\n")
    other.replace(path)
    assert log.refresh()
    assert log.window(1, 9) == [b"three is longer than the two before"]
    log.close()


def test_a_log_that_is_not_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogIndex(path)
    assert not log.refresh()
    assert (log.size, log.last_start(), log.error) == (0, None, None)
    path.write_bytes(b"here\n")
    assert log.refresh()
    assert log.window(1, 2) == [b"here"]
    log.close()


def test_the_end_of_a_big_file_is_shown_before_it_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    line = b"step %07d loss 2.25 and some more words to make a line\n"
    with path.open("wb") as file:
        for block in range(40):
            file.write(b"".join(line % (block * 10_000 + i) for i in range(10_000)))
    log = LogIndex(path)
    log.refresh(budget=1024)
    assert not log.complete
    last = log.last_start()
    assert last is not None
    assert log.line(last).startswith(b"step 0399999")
    while not log.complete:
        log.refresh()
    assert log.lines == 400_000
    assert log.window(123_457, 1)[0].startswith(b"step 0123456")
    log.close()


def test_last_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for data, wanted in [
        (b"", b""),
        (b"\n\n", b""),
        (b"one\ntwo\n", b"two"),
        (b"one\ntwo\n\x1b[0m\n\n", b"two"),
        (b"one\n 10%\r 20%", b" 20%"),
        (b"one\n 10%\r 20%\r", b" 20%"),
        (b"x" * 20_000 + b"end", b"x" * (8 * 1024 - 3) + b"end"),
    ]:
        path.write_bytes(data)
        assert last_line(path) == wanted


def test_last_lines_have_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n\nthree\nfour")
    assert last_lines(path, 2) == [(3, b"three"), (4, b"four")]
    assert last_lines(path, 9) == [(1, b"one"), (2, b""), (3, b"three"), (4, b"four")]
    path.write_bytes(b"")
    assert last_lines(path, 3) == []
    with pytest.raises(FileNotFoundError):
        last_lines(tmp_path / "none", 3)
