"""Run directories are made whole or not at all, and found by what people type."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from engine.compose import discard_run
from engine.errors import RunDirError, RunNotFound
from engine.rundir import RunPaths, create_run_dir, find_run, list_runs, new_run_id, write_atomically


def make(root: Path, name: str, run_id: str) -> RunPaths:
    paths = create_run_dir(root, name, run_id)
    paths.plan.write_text("{}")
    return paths


def test_ids_sort_by_time() -> None:
    early = new_run_id(datetime(2026, 12, 1, 3, 4, 5))
    assert early.startswith("20261201-030405-") and len(early) == len("20261201-030405-abcd")
    assert early < new_run_id(datetime(2026, 12, 1, 3, 4, 6))


def test_a_run_directory_is_private_and_latest_points_at_the_newest(tmp_path: Path) -> None:
    first = make(tmp_path / "runs", "job", "20260101-000000-aaaa")
    second = make(tmp_path / "runs", "job", "20260101-000001-bbbb")
    assert first.root.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "runs" / "job" / "latest").resolve() == second.root


def test_the_same_id_twice_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "job", "20260101-000000-aaaa")
    with pytest.raises(RunDirError, match="there already"):
        create_run_dir(tmp_path, "job", "20260101-000000-aaaa")


def test_a_file_in_the_way_is_one_sentence_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("not a folder")
    with pytest.raises(RunDirError) as caught:
        create_run_dir(tmp_path / "runs", "job", "20260101-000000-aaaa")
    assert "\n" not in str(caught.value) and str(tmp_path / "runs") in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        (None, "20260102-000000-cccc"),
        ("20260101-000000-aaaa", "20260101-000000-aaaa"),
        ("20260102", "20260102-000000-cccc"),
        ("one", "20260101-000001-bbbb"),
    ],
)
def test_a_run_is_found_by(tmp_path: Path, word: str | None, found: str) -> None:
    make(tmp_path, "one", "20260101-000000-aaaa")
    make(tmp_path, "one", "20260101-000001-bbbb")
    make(tmp_path, "two", "20260102-000000-cccc")
    assert find_run(word, tmp_path).root.name == found
    assert find_run(str(tmp_path / "one" / "latest"), tmp_path).root.name == "20260101-000001-bbbb"


def test_the_newest_is_the_one_begun_last_whatever_the_clock_on_the_wall_said(tmp_path: Path) -> None:
    made = ["20261025-025900-aaaa", "20261025-020000-bbbb", "20261025-020000-0000"]  # clocks go back; one second
    for run_id in made:
        make(tmp_path, "one", run_id)
    assert [r.root.name for r in list_runs(tmp_path)] == made[::-1]
    assert find_run(None, tmp_path).root.name == made[-1]


def test_no_run_and_too_many_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="there is no run"):
        find_run(None, tmp_path)
    make(tmp_path, "one", "20260101-000000-aaaa")
    make(tmp_path, "one", "20260101-000001-bbbb")
    with pytest.raises(RunNotFound, match="any of 2 runs"):
        find_run("20260101", tmp_path)
    with pytest.raises(RunNotFound, match='no run "x"'):
        find_run("x", tmp_path)
    with pytest.raises(RunNotFound, match="not a run directory"):
        find_run(str(tmp_path / "one"), tmp_path)
    assert [r.root.name for r in list_runs(tmp_path)] == ["20260101-000001-bbbb", "20260101-000000-aaaa"]


def test_a_run_that_is_taken_back_leaves_latest_at_the_newest_of_the_others(tmp_path: Path) -> None:
    first = make(tmp_path / "runs", "one", "20260101-000000-aaaa")
    second = make(tmp_path / "runs", "one", "20260101-000001-bbbb")
    latest = tmp_path / "runs" / "one" / "latest"
    discard_run(second)
    assert latest.resolve() == first.root
    third = make(tmp_path / "runs", "one", "20260101-000002-cccc")
    discard_run(first)  # latest is another's
    assert latest.resolve() == third.root
    discard_run(third)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "summary.json"
    write_atomically(target, "old")
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("/dev/full is missing")
    with pytest.raises(RunDirError, match="cannot|no space|is a directory|not a directory"):
        write_atomically(tmp_path / "summary.json" / "below", "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["summary.json"]
