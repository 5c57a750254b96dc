"""The copies of a node's logs: byte-exact whatever order the pieces come in, and patient with a full disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.logs import mirror as module
from engine.logs.mirror import MAX_OPEN, Mirror, Taken

LOG = "nodes/0_far/attempt_0/rank_00003.log"


def piece(text: bytes, offset: int, **more: Any) -> tuple[dict[str, Any], bytes]:
    return {"t": "log", "attempt": 0, "rank": 3, "offset": offset, "n": len(text), **more}, text


@pytest.fixture
def mirror(tmp_path: Path) -> Any:
    mirror = Mirror(tmp_path, "0_far")
    yield mirror
    mirror.close()


PIECES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 120)), max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(source=st.binary(min_size=1, max_size=400), pieces=PIECES, reopen=st.integers(0, 30))
def test_whatever_comes_in_whatever_order_the_copy_is_a_beginning_of_the_log(
    tmp_path_factory: Any, source: bytes, pieces: list[tuple[int, int]], reopen: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    mirror = Mirror(folder, "0_far")
    for number, (offset, length) in enumerate(pieces):
        if number == reopen:
            mirror.close()
            mirror = Mirror(folder, "0_far")  # another engine
        before = mirror.size(0, 3)
        text = source[offset : offset + length]
        taken = mirror.take(*piece(text, offset))
        after = mirror.size(0, 3)
        copy = (folder / LOG).read_bytes() if after else b""
        assert copy == source[:after] and after >= before
        assert taken is (Taken.GAP if offset > before else Taken.OK)
        if taken is Taken.OK:
            assert after == max(before, offset + len(text))
    # What the agent sends when it is asked for the rest makes it whole.
    wanted = mirror.subscription(0, 3)
    mirror.take(*piece(source[wanted["offset"] :], wanted["offset"]))
    assert (folder / LOG).read_bytes() == source
    mirror.close()


def test_the_request_goes_on_where_the_copy_ends_and_proves_whose_copy_it_is(mirror: Mirror, tmp_path: Path) -> None:
    assert mirror.subscription(0, 3) == {"t": "subscribe", "attempt": 0, "rank": 3, "offset": 0}
    text = bytes(range(256)) * 40
    mirror.take(*piece(text, 0))
    wanted = Mirror(tmp_path, "0_far").subscription(0, 3)
    assert wanted["offset"] == len(text)
    assert wanted["tail"] == {"n": 4096, "sha256": hashlib.sha256(text[-4096:]).hexdigest()}


def test_a_log_that_was_emptied_on_the_node_is_emptied_here(mirror: Mirror, tmp_path: Path) -> None:
    mirror.take(*piece(b"old text", 0))
    assert mirror.take(*piece(b"", 0, truncated=True)) is Taken.OK
    assert (tmp_path / LOG).read_bytes() == b""
    mirror.take(*piece(b"new", 0))
    assert (tmp_path / LOG).read_bytes() == b"new"


def test_what_it_writes_is_for_nobody_else(mirror: Mirror, tmp_path: Path) -> None:
    mirror.take(*piece(b"x", 0))
    assert stat.S_IMODE((tmp_path / LOG).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / LOG).parent.stat().st_mode) == 0o700


def test_more_logs_than_open_files(mirror: Mirror, tmp_path: Path) -> None:
    ranks = range(3 * MAX_OPEN)
    for round_ in range(3):
        for rank in ranks:
            mirror.take({"attempt": 0, "rank": rank, "offset": round_, "n": 1}, b"%d" % round_)
    mine = [os.readlink(p) for p in Path("/proc/self/fd").iterdir() if p.exists()]
    assert sum(str(tmp_path) in name for name in mine) <= MAX_OPEN
    logs = sorted((tmp_path / "nodes/0_far/attempt_0").iterdir())
    assert [path.read_bytes() for path in logs] == [b"012"] * len(ranks)


def test_a_full_disk_keeps_what_went_in_and_goes_on_there(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = os.pwrite, [5]

    def pwrite(fd: int, data: memoryview, at: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(fd, bytes(data[: room[0]]), at)
        room[0] -= count
        return count

    monkeypatch.setattr(module.os, "pwrite", pwrite)
    assert mirror.take(*piece(b"0123456789", 0)) is Taken.STUCK
    assert mirror.error is not None
    assert f"{tmp_path / LOG} cannot be written: no space left on device" in mirror.error
    assert "free some space" in mirror.error and "run-root" not in mirror.error
    assert mirror.subscription(0, 3)["offset"] == 5
    room[0] = 100
    assert mirror.take(*piece(b"56789", 5)) is Taken.OK
    assert (tmp_path / LOG).read_bytes() == b"0123456789"


def test_exit_records_say_what_the_agents_say(mirror: Mirror, tmp_path: Path) -> None:
    told = {"rank": 3, "code": 7, "signal": None, "lost": False, "by_us": False, "error": None, "started_at": 0.5}
    mirror.record_exit(0, told, 2.0)
    assert json.loads((tmp_path / LOG).with_suffix(".exit").read_text()) == {
        "code": 7,
        "started_at": "1970-01-01T00:00:00.500Z",
        "ended_at": "1970-01-01T00:00:02.000Z",
        "by_us": False,
        "error": None,
    }


def test_an_exit_record_that_cannot_be_written_is_written_later(mirror: Mirror, tmp_path: Path) -> None:
    blocker = tmp_path / "nodes"
    blocker.write_text("a file where the folder should be")
    mirror.record_exit(0, {"rank": 3, "signal": 9, "by_us": True}, 2.0)
    assert mirror.waiting_records and mirror.error is not None and "cannot be written" in mirror.error
    blocker.unlink()
    mirror.write_records()
    assert not mirror.waiting_records
    assert json.loads((tmp_path / LOG).with_suffix(".exit").read_text())["signal"] == 9


def test_the_token_is_a_new_file_each_time_and_is_taken_away(mirror: Mirror, tmp_path: Path) -> None:
    folder = tmp_path / "nodes/0_far"
    first = mirror.place_token()
    assert first is not None and (folder / first["name"]).read_text().strip() == first["value"]
    second = mirror.place_token()
    assert second is not None and second["name"] != first["name"] and second["value"] != first["value"]
    assert [p.name for p in folder.iterdir()] == [second["name"]]
    mirror.remove_token()
    assert list(folder.iterdir()) == []
