"""Bad input: one line each that a user can act on, the right status, nothing left behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

GOOD = "task: {command: [echo, hello]}\ncluster: {nproc_per_node: 1, gpu_binding: none}\n"


def refused(desk: Any, done: subprocess.CompletedProcess[str], status: int, *says: str, lines: int = 1) -> None:
    assert done.returncode == status, (done.returncode, done.stderr)
    assert done.stdout == ""
    told = [x for x in done.stderr.split("\n") if x]
    told = [x for x in told if "runs as with --no-ui" not in x and "nothing was started" not in x]
    told = [x for x in told if not x.startswith("trainui: warning:")]
    assert len(told) == lines, done.stderr
    assert all(x.startswith("trainui: ") for x in told)
    assert "Traceback" not in done.stderr
    for words in says:
        assert words in done.stderr
    assert desk.runs() == []
    assert not desk.living()


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ("task: [unclosed\n", 2, ["job.yml:"]),
        ("", 2, ["job.yml", "empty"]),
        ("- a\n- list\n", 2, ["job.yml"]),
        ("task: {comand: [echo]}\n", 2, ["job.yml:1", "comand", "command"]),
        ("task: {command: [echo]}\nstop: {grace_s: soon}\n", 2, ["job.yml:2", "stop.grace_s"]),
        ("task: {command: [no-such-command-at-all]}\n", 69, ["no-such-command-at-all"]),
        ("task: {command: [echo], cwd: /no/such/folder}\n", 69, ["/no/such/folder"]),
        ("task: {command: [./not-executable]}\n", 69, ["not-executable"]),
        ("task: {command: [echo]}\ncluster: {launcher: ssh}\n", 2, ["not yet", "cluster.launcher"]),
    ],
)
def test_a_bad_config(desk: Any, text: str, status: int, says: list[str]) -> None:
    (desk.cwd / "not-executable").write_text("#!/bin/sh\n")
    desk.trainui.config(text)
    refused(desk, desk.run("job.yml", "--no-ui"), status, *says)


def test_all_faults_at_once(desk: Any) -> None:
    desk.trainui.config("task: {comand: x}\nstop: {grace_s: soon}\nnmae: x\n")
    done = desk.run("job.yml", "--no-ui")
    assert done.returncode == 2
    for line, key in ((1, "comand"), (2, "grace_s"), (3, "nmae")):
        assert any(f"job.yml:{line}" in x and key in x for x in done.stderr.split("\n")), done.stderr
    assert desk.runs() == []


def test_a_missing_file(desk: Any) -> None:
    refused(desk, desk.run("missing.yml", "--no-ui"), 2, "missing.yml")


def test_a_directory_as_config(desk: Any) -> None:
    (desk.cwd / "folder").mkdir()
    refused(desk, desk.run("folder", "--no-ui"), 2, "folder", "directory")


def test_an_unknown_override(desk: Any) -> None:
    desk.trainui.config(GOOD)
    refused(desk, desk.run("job.yml", "stop.grace=3", "--no-ui"), 2, "stop.grace", "grace_s")


def test_a_run_root_that_is_a_file(desk: Any) -> None:
    desk.trainui.config(GOOD)
    (desk.cwd / "file").write_text("x")
    done = desk.run("job.yml", "--no-ui", "--run-root", "file")
    assert done.returncode in (2, 69)
    assert "file" in done.stderr
    assert "Traceback" not in done.stderr
    assert (desk.cwd / "file").read_text() == "x"
    assert not desk.living()


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount a small tmpfs")
def test_a_full_disk(desk: Any, tmp_path: Path) -> None:
    desk.trainui.config(GOOD)
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        (small / "filler").write_bytes(b"x" * 4096)
        done = desk.run("job.yml", "--no-ui", "--run-root", small)
        assert done.returncode in (2, 69), done.stderr
        assert "space" in done.stderr
        assert "Traceback" not in done.stderr
        assert [p.name for p in small.iterdir()] == ["filler"]
        assert not desk.living()
    finally:
        subprocess.run(["umount", "-l", small], check=True)


@pytest.mark.skipif(os.getuid() == 0 and not Path("/proc/sys").exists(), reason="needs a place nobody can write")
def test_a_run_root_that_cannot_be_written(desk: Any) -> None:
    desk.trainui.config(GOOD)
    done = desk.run("job.yml", "--no-ui", "--run-root", "/proc/sys/trainui-runs")
    assert done.returncode in (2, 69)
    assert "/proc/sys" in done.stderr
    assert "--run-root" in done.stderr
    assert "Traceback" not in done.stderr
    assert not desk.living()


def test_a_working_directory_that_is_gone(desk: Any) -> None:
    desk.trainui.config(GOOD)
    script = f"mkdir gone; cd gone; rmdir ../gone; exec {desk.trainui.command} ../job.yml --no-ui"
    done = subprocess.run(["bash", "-c", script], cwd=desk.cwd, env=desk.trainui.env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "current directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_hostile_pythonpath(desk: Any) -> None:
    for name in ("engine", "tui", "signal", "click", "json"):
        (desk.cwd / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    desk.trainui.config(GOOD)
    done = desk.run("job.yml", "--no-ui", env={"PYTHONPATH": "."})
    assert done.returncode == 0, done.stderr
    assert "| hello" in done.stdout
    desk.nothing_lives()
