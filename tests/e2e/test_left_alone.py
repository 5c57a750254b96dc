"""Runs whose folder, engine or surroundings are not as they were left: sentences, statuses, and nothing that stays."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

UP = "import time; print('up', flush=True); time.sleep(600)"
DONE = "print('done')"


def until_up(desk: Any, ranks: int = 1) -> Path:
    def logs() -> list[Path]:
        return [p for p in desk.trainui.run_root.glob("*/2*/nodes/*/attempt_*/rank_*.log") if "up" in p.read_text()]

    desk.until(lambda: len(logs()) == ranks, f"{ranks} ranks that are up")
    return desk.the_run()


def engine_of(run: Path) -> int:
    return int(json.loads((run / "engine.json").read_text())["pid"])


def agent_of(run: Path) -> int:
    (path,) = run.glob("nodes/*/agent.json")
    return int(json.loads(path.read_text())["pid"])


def over(desk: Any, name: str = "job.yml") -> Path:
    assert desk.run(desk.job(DONE, 1, name), "--no-ui").returncode == 0
    run = desk.runs()[-1]
    desk.until((run / "summary.json").exists, "the summary")
    desk.nothing_lives()
    return run


def one_line(done: subprocess.CompletedProcess[str], status: int, *says: str) -> None:
    assert done.returncode == status, (done.returncode, done.stderr)
    told = done.stderr.strip().split("\n")
    assert len(told) == 1, done.stderr
    for words in says:
        assert words in told[0]


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def test_a_run_directory_that_is_removed_while_it_runs(desk: Any) -> None:
    front = desk.start(desk.job(UP), "--no-ui")
    run = until_up(desk, 2)
    pids = [engine_of(run), agent_of(run)]
    shutil.rmtree(run)
    os.kill(front.pid, signal.SIGINT)
    assert desk.ends(front) == 130
    desk.until(lambda: all(state_of(p) in ("gone", "Z", "X") for p in pids), "the end of engine and agent")
    assert not run.exists()


def test_an_engine_that_is_stopped_is_told_as_such(desk: Any) -> None:
    front = desk.start(desk.job(UP, 1), "--no-ui")
    run = until_up(desk)
    pid = engine_of(run)
    os.kill(pid, signal.SIGSTOP)
    try:
        one_line(desk.run("stop", run), 69, f"pid {pid}", f"kill -CONT {pid}")
        shown = desk.run("status", run)
        assert shown.returncode == 0
        assert "does not answer" in shown.stdout
        assert "no engine" not in shown.stdout
        os.kill(front.pid, signal.SIGINT)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert desk.ends(front) == 130
    desk.nothing_lives()


def test_another_runtime_folder_finds_the_same_engine(desk: Any, tmp_path: Path) -> None:
    """A job that was started on a desktop is stopped over SSH, where XDG_RUNTIME_DIR is another one or none."""
    runtime = tmp_path / "rt"
    runtime.mkdir(mode=0o700)
    desk.trainui.env["XDG_RUNTIME_DIR"] = str(runtime)
    front = desk.start(desk.job(UP, 1), "--no-ui")
    until_up(desk)
    del desk.trainui.env["XDG_RUNTIME_DIR"]
    assert desk.status()["findings"] == []
    assert desk.run("stop").returncode == 0
    assert desk.ends(front) == 143
    desk.nothing_lives()


def test_a_runtime_folder_that_cannot_be_used_is_done_without(desk: Any) -> None:
    done = desk.run(desk.job(DONE, 1), "--no-ui", env={"XDG_RUNTIME_DIR": "/proc"})
    assert done.returncode == 0, done.stderr
    desk.nothing_lives()


def test_a_run_that_was_moved_can_be_read_but_not_go_on(desk: Any, tmp_path: Path) -> None:
    run = over(desk)
    moved = tmp_path / "else where" / run.name
    moved.parent.mkdir()
    run.rename(moved)
    assert desk.run("logs", moved).stdout == "done\n"
    assert desk.run("attach", "--no-ui", moved).returncode == 0
    one_line(desk.run("restart", moved), 69, str(moved), str(run), "move it back")
    assert not run.exists()
    # Under its own name again, or another name of the same place, it goes on.
    moved.rename(run)
    alias = tmp_path / "alias"
    alias.symlink_to(run.parent)
    done = desk.run("restart", "--no-ui", alias / run.name)
    assert done.returncode == 0, done.stderr
    assert list(run.glob("nodes/*/attempt_1/rank_00000.log"))
    desk.nothing_lives()


DEEP = "[" * 100_000


DAMAGED = (DEEP, "{", "[]", '{"v": 99}', "\udcff", "null", '{"nodes": 1}')


def test_damaged_files_of_a_run_are_a_sentence_and_hide_no_other_run(desk: Any) -> None:
    good = over(desk)
    for number, text in enumerate(DAMAGED):
        bad = good.with_name(f"{good.name}{number}")
        shutil.copytree(good, bad)
        for name in ("summary.json", "launch.json"):
            (bad / name).write_text(text, errors="surrogateescape")
        with (bad / "events.jsonl").open("a", errors="surrogateescape") as file:
            file.write(text + "\n")
        one_line(desk.run("status", bad), 2, str(bad))
        one_line(desk.run("stop", bad), 69, str(bad))
        one_line(desk.run("restart", bad), 2, str(bad))
        assert desk.run("logs", bad).stdout == "done\n"
    listed = desk.run("ls")
    assert listed.returncode == 0, listed.stderr
    assert good.name in listed.stdout
    desk.nothing_lives()


def test_very_few_open_files(desk: Any) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))

    name = desk.job(DONE, 1)
    done = subprocess.run(
        [desk.trainui.command, name, "--no-ui"],
        cwd=desk.cwd,
        env=desk.trainui.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=few,
        timeout=60,
    )
    assert done.returncode == 69
    assert "ulimit -n" in done.stderr
    assert "Traceback" not in done.stderr
    assert not desk.living()
    assert desk.runs() == []


def test_as_many_front_ends_as_there_are_files_do_not_harm_the_engine(desk: Any) -> None:
    """Those that find no room are turned away; the job is looked after as before, and can be stopped."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    name = desk.job(UP, 1)
    with (desk.cwd / "front.out").open("wb") as out, (desk.cwd / "front.err").open("wb") as err:
        front = subprocess.Popen(
            [desk.trainui.command, name, "--no-ui"],
            cwd=desk.cwd,
            env=desk.trainui.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            preexec_fn=few,
        )
    desk.started.append(front)
    run = until_up(desk)
    where = json.loads((run / "engine.json").read_text())["socket"]
    code = (
        "import socket, sys\n"
        "socks = [socket.socket(socket.AF_UNIX) for _ in range(60)]\n"
        "for s in socks: s.connect(sys.argv[1])\n"
        "print('in', flush=True)\n"
        "sys.stdin.read()\n"
    )
    crowd = subprocess.Popen(
        [sys.executable, "-c", code, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert crowd.stdin is not None
    assert crowd.stdout is not None
    try:
        assert crowd.stdout.readline() == "in\n"
        os.kill(front.pid, signal.SIGINT)
        assert desk.ends(front) == 130
        assert (run / "engine.log").stat().st_size < 100_000
    finally:
        crowd.stdin.close()
        crowd.stdout.close()
        crowd.wait()
    desk.nothing_lives()


def test_a_stop_while_the_front_end_is_just_starting_the_run(desk: Any) -> None:
    """The run can be found before its engine is there: such a stop waits for it."""
    front = desk.start(desk.job(UP, 1), "--no-ui")
    desk.until(desk.runs, "the run")
    os.kill(front.pid, signal.SIGSTOP)
    try:
        stop = desk.start("stop", str(desk.the_run()), log="stop")
        desk.until(lambda: state_of(stop.pid) != "gone", "the stop")
        shown = desk.run("status", desk.the_run())
        assert "never started" not in shown.stdout
    finally:
        os.kill(front.pid, signal.SIGCONT)
    assert desk.ends(stop) == 0
    assert "never started" not in desk.err("stop")
    assert desk.ends(front) == 143
    assert not (desk.the_run() / "start.lock").exists()
    desk.nothing_lives()


def test_a_working_directory_that_is_no_utf_8(desk: Any) -> None:
    desk.job(DONE, 1)
    folder = os.fsencode(desk.cwd) + b"/by\xfftes"
    os.mkdir(folder)
    done = subprocess.run(
        [desk.trainui.command, str(desk.cwd / "job.yml"), "--no-ui"],
        cwd=folder,
        env=desk.trainui.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "not UTF-8" in done.stderr
    assert "bug" not in done.stderr
    assert desk.runs() == []


def fill(folder: Path) -> Path:
    """Take all space that is left on the disk of `folder`."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
    return filler


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount a small tmpfs")
def test_engine_and_agent_are_killed_on_a_full_disk(desk: Any, tmp_path: Path) -> None:
    """Others take over, and stop the job, without a byte of space; the records come when there is some."""
    small = desk.trainui.run_root
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        front = desk.start(desk.job(UP), "--no-ui")
        run = until_up(desk, 2)
        filler = fill(small)
        os.kill(engine_of(run), signal.SIGKILL)
        os.kill(agent_of(run), signal.SIGKILL)
        done = desk.run("stop", run)
        assert done.returncode == 0, done.stderr
        assert "nothing of it is left" in done.stderr
        assert desk.ends(front) == 143
        filler.unlink()
        desk.until((run / "summary.json").exists, "the summary")
        assert len(list(run.glob("nodes/*/attempt_0/*.exit"))) == 2
        desk.nothing_lives()
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_fifo_in_the_place_of_a_log_hangs_nobody(desk: Any) -> None:
    code = (
        "import os, sys\n"
        "log = os.environ['TRAINUI_NODE_DIR'] + '/attempt_0/rank_00000.log'\n"
        "print('gone', flush=True)\n"
        "os.unlink(log)\n"
        "os.mkfifo(log)\n"
        "sys.exit(3)\n"
    )
    front = desk.start(desk.job(code, 1), "--no-ui")
    assert desk.ends(front) == 3
    for words in (["status"], ["logs", "-n", "1"], ["logs", "-n", "1", "--grep", "x"], ["stop"]):
        done = desk.run(*words)
        assert "Traceback" not in done.stderr
        assert "bug" not in done.stderr
    desk.nothing_lives()


@pytest.mark.parametrize(("root", "says"), [("circle", "loop"), ("~no-such-user-at-all/runs", "home")])
def test_a_run_root_that_leads_nowhere(desk: Any, root: str, says: str) -> None:
    (desk.cwd / "circle").symlink_to("circle")
    one_line(desk.run(desk.job(DONE, 1), "--no-ui", "--run-root", root), 2, root, says, "--run-root")
    done = desk.run("status", "--run-root", root)
    assert done.returncode == 2
    assert "bug" not in done.stderr
