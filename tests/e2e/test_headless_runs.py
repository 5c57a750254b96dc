"""`trainui CFG --no-ui` with real ranks: ends, statuses, signals, detaching."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


def up(desk: Any, count: int = 2, log: str = "front") -> None:
    desk.until(lambda: desk.out(log).count("| up") == count, "all ranks")


def test_success_prints_lines_and_a_summary_and_exits_0(desk: Any) -> None:
    cfg = desk.job("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    done = desk.run(cfg, "--no-ui")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert sorted(x.split(" | ")[1] for x in lines if " | " in x) == ["rank 0 of 2", "rank 1 of 2"]
    assert "succeeded, exit status 0" in done.stdout
    assert lines[-2] == f"run directory: {desk.the_run()}"
    assert all(x.startswith("trainui: ") for x in done.stderr.split("\n") if x)
    desk.nothing_lives()


@pytest.mark.parametrize(
    ("code", "status", "shown"),
    [
        ("import sys; print('bye'); sys.exit(37)", 37, "37"),
        ("import os, signal; print('bye', flush=True); os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL"),
        ("import os, signal; print('bye', flush=True); os.kill(os.getpid(), signal.SIGSEGV)", 139, "SIGSEGV"),
        ("raise RuntimeError('CUDA error: out of cheese')", 1, "1"),
    ],
)
def test_the_status_is_that_of_the_rank_that_failed_first(desk: Any, code: str, status: int, shown: str) -> None:
    first = f"import os, time\nif os.environ['RANK'] == '1':\n    exec({code!r})\ntime.sleep(600)"
    cfg = desk.job(first, 3, fail={"grace_s": 0})
    done = desk.run(cfg, "--no-ui")
    assert done.returncode == status, done.stderr
    table = {x.split()[0]: x for x in done.stdout.split("\n") if x.split()[:1] in (["0"], ["1"], ["2"])}
    assert f" {shown} " in table["1"]
    assert "<- first to fail" in table["1"]
    assert "stopped by trainui" in table["0"]
    assert "rank 1 on" in done.stdout
    last = "RuntimeError: CUDA error: out of cheese" if "cheese" in code else "bye"
    assert f"  | {last}" in done.stdout
    desk.nothing_lives()


def test_output_of_any_kind_comes_through(desk: Any) -> None:
    code = (
        "import sys; w = sys.stdout.buffer.write\n"
        r"w(b'bad \xff byte\n'); w(b'nul \x00 byte\n'); w(b'\x1b]0;title\x07clean\n'); w(b'10%\r20%\r30%\n')"
        "\nw(b'x' * 3_000_000 + b'\\n'); w('漢字🙂\\n'.encode()); w(b'no newline')"
    )
    cfg = desk.job(code, 1)
    done = desk.run(cfg, "--no-ui")
    assert done.returncode == 0
    texts = [x.split(" | ", 1)[1] for x in done.stdout.split("\n") if " | " in x]
    assert texts[0] == "bad \ufffd byte"
    assert "\x00" not in done.stdout
    assert "\x1b" not in done.stdout
    assert "clean" in texts
    assert "30%" in texts
    assert "漢字🙂" in texts
    assert texts[-1] == "no newline"
    assert sum(len(x) for x in texts if set(x) == {"x"}) == 3_000_000


def test_ctrl_c_stops_gracefully_and_exits_130(desk: Any) -> None:
    code = (
        "import signal, sys, time\n"
        "def term(*_):\n    print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, term); print('up', flush=True); time.sleep(600)"
    )
    front = desk.start(desk.job(code), "--no-ui")
    up(desk)
    front.send_signal(signal.SIGINT)
    assert desk.ends(front) == 130
    assert desk.out().count("| saved") == 2
    assert "stopped, exit status 130" in desk.out()
    desk.nothing_lives()


def test_a_second_ctrl_c_kills_what_ignores_the_first(desk: Any) -> None:
    front = desk.start(desk.job(STUBBORN, stop={"grace_s": 300}), "--no-ui")
    up(desk)
    front.send_signal(signal.SIGINT)
    desk.until(lambda: "stopping what is left" in desk.err(), "the first stop")
    assert desk.living()
    front.send_signal(signal.SIGINT)
    assert desk.ends(front) == 130
    assert desk.out().count("SIGKILL") == 2
    desk.nothing_lives()


def test_sigterm_stops_and_exits_143(desk: Any) -> None:
    front = desk.start(desk.job(SLEEPER), "--no-ui")
    up(desk)
    front.send_signal(signal.SIGTERM)
    assert desk.ends(front) == 143
    desk.nothing_lives()


def test_ctrl_c_while_it_starts_leaves_nothing(desk: Any) -> None:
    cfg = desk.job(SLEEPER, hooks={"before_start": "sleep 600"})
    front = desk.start(cfg, "--no-ui")
    desk.until(lambda: "before_start" in desk.err(), "the hook")
    front.send_signal(signal.SIGINT)
    assert desk.ends(front) == 130
    desk.nothing_lives()


def test_a_hook_that_fails_is_told_once_with_its_words(desk: Any) -> None:
    done = desk.run(desk.job(SLEEPER, hooks={"before_start": "echo no disk; exit 3"}), "--no-ui")
    assert done.returncode == 69
    assert done.stderr.count("hooks.before_start failed with status 3: no disk") == 1
    assert "everything is down" in done.stderr
    assert done.stdout.count("hooks.before_start failed with status 3: no disk") == 1
    desk.nothing_lives()


@pytest.mark.parametrize("wait_for", ["run 2", "engine.json", "agent.json"])
def test_ctrl_c_at_any_moment_of_the_start_leaves_nothing(desk: Any, wait_for: str) -> None:
    front = desk.start(desk.job(SLEEPER), "--no-ui")

    def moment() -> bool:
        if wait_for == "run 2":
            return "trainui: run 2" in desk.err()
        return any(desk.trainui.run_root.rglob(wait_for))

    desk.until(moment, wait_for)
    front.send_signal(signal.SIGINT)
    assert desk.ends(front) == 130
    desk.nothing_lives()


def test_hang_up_detaches_and_attach_misses_nothing(desk: Any) -> None:
    code = (
        "import os, time\n"
        "for i in range(400):\n    print('line', i, flush=True)\n"
        "    while i == 200 and not os.path.exists('go'): time.sleep(0.02)\n"
    )
    front = desk.start(desk.job(code, 1), "--no-ui")
    desk.until(lambda: "line 200\n" in desk.out(), "half of the lines")
    front.send_signal(signal.SIGHUP)
    assert desk.ends(front) == 0
    assert "detached" in desk.err()
    assert desk.status()["phase"] == "running"
    second = desk.start("attach", "--no-ui", log="second")
    desk.until(lambda: "line 200\n" in desk.out("second"), "the lines so far")
    (desk.cwd / "go").touch()
    assert desk.ends(second) == 0
    shown = [x.split("| ")[1] for x in desk.out("second").split("\n") if "| line" in x]
    assert shown == [f"line {i}" for i in range(400)]
    desk.nothing_lives()
    third = desk.run("attach", "--no-ui")
    assert third.returncode == 0
    assert [x.split("| ")[1] for x in third.stdout.split("\n") if "| line" in x] == shown


def test_kill_9_on_the_front_end_hurts_nothing(desk: Any) -> None:
    front = desk.start(desk.job(SLEEPER), "--no-ui")
    up(desk)
    front.kill()
    desk.ends(front)
    assert desk.status()["phase"] == "running"
    done = desk.run("stop")
    assert done.returncode == 0, done.stderr
    assert desk.status()["phase"] == "stopped"
    assert desk.run("attach", "--no-ui").returncode == 143
    desk.nothing_lives()


def test_kill_9_on_the_engine_is_healed(desk: Any) -> None:
    code = "import os, time; print('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('done')"
    front = desk.start(desk.job(code), "--no-ui")
    up(desk)
    import json

    pid = json.loads((desk.the_run() / "engine.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    desk.until(lambda: "attaching again" in desk.err(), "the sentence")
    (desk.cwd / "go").touch()
    assert desk.ends(front) == 0
    assert desk.out().count("| done") == 2
    assert desk.out().count("| up") == 2
    desk.nothing_lives()


def test_a_reader_that_leaves_detaches_us(desk: Any) -> None:
    code = "import time\nwhile True:\n    print('up', flush=True); time.sleep(0.01)"
    front = desk.trainui.start(desk.job(code, 1), "--no-ui")
    assert front.stdout is not None
    assert front.stderr is not None
    assert b"up" in front.stdout.readline()
    front.stdout.close()
    desk.until(lambda: front.poll() is not None, "the end")
    assert front.returncode == 0
    assert b"detached" in front.stderr.read()
    front.stderr.close()
    assert desk.status()["phase"] == "running"
    assert desk.run("stop").returncode == 0
    desk.nothing_lives()


def test_a_reader_that_stalls_slows_nothing(desk: Any) -> None:
    code = "import sys\nfor i in range(40000): sys.stdout.write('x' * 99 + '\\n')\nopen('done', 'w').close()"
    front = desk.trainui.start(desk.job(code, 1), "--no-ui")
    desk.until((desk.cwd / "done").exists, "the job's end while nobody reads its lines")
    desk.until(lambda: desk.status()["phase"] == "succeeded", "the verdict")
    out, _ = front.communicate(timeout=30)
    assert out.count(b"x" * 99) == 40000
    assert front.returncode == 0
    desk.nothing_lives()


def test_a_closed_stdout_is_no_fault(desk: Any) -> None:
    cfg = desk.job("print('hello')", 1)
    done = subprocess.run(
        ["bash", "-c", f"exec {desk.trainui.command} {cfg} --no-ui >&- 2>err"], cwd=desk.cwd, env=desk.trainui.env
    )
    assert done.returncode == 0, (desk.cwd / "err").read_text()
    desk.nothing_lives()


def test_without_a_terminal_it_says_that_it_runs_without_a_screen(desk: Any) -> None:
    done = desk.run(desk.job("print('hello')", 1))
    assert done.returncode == 0
    assert "trainui: stdout is not a terminal, so this runs as with --no-ui" in done.stderr
    assert "| hello" in done.stdout


def test_colours_on_a_terminal_only(desk: Any) -> None:
    cfg = desk.job("print('hello')", 1)
    plain = on_a_terminal(desk, [cfg, "--no-ui"], {"NO_COLOR": "1"})
    assert "| hello" in plain
    assert "\x1b[" not in plain
    assert "\x1b[" not in on_a_terminal(desk, [cfg, "--no-ui"], {"TERM": "dumb"})
    assert "\x1b[" not in on_a_terminal(desk, [cfg, "--no-ui", "--no-color"], {})
    assert "\x1b[" in on_a_terminal(desk, [cfg, "--no-ui"], {})
    desk.nothing_lives()


def on_a_terminal(desk: Any, words: list[str], env: dict[str, str]) -> str:
    """What the command writes to a pseudo-terminal."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [desk.trainui.command, *words],
        cwd=desk.cwd,
        env=desk.trainui.env | env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    got = b""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        try:
            data = os.read(ours, 65536)
        except OSError:
            break  # EIO: the other side is closed
        if not data:
            break
        got += data
    os.close(ours)
    assert process.wait(10) == 0, got
    return got.decode()


def test_two_stops_at_once(desk: Any) -> None:
    front = desk.start(desk.job(STUBBORN, stop={"grace_s": 1}), "--no-ui")
    up(desk)
    stops = [desk.start("stop", log=f"stop{i}") for i in range(2)]
    assert [desk.ends(s) for s in stops] == [0, 0]
    assert desk.ends(front) == 143
    desk.nothing_lives()


def test_the_job_keeps_running_while_the_front_end_is_frozen(desk: Any, tmp_path: Path) -> None:
    code = "import os\nfor i in range(20000): print('x' * 99)\nopen('done', 'w').close()"
    front = desk.start(desk.job(code, 1, name="job.yml"), "--no-ui")
    desk.until(lambda: "trainui: run 2" in desk.err(), "the start")
    front.send_signal(signal.SIGSTOP)
    try:
        desk.until((desk.cwd / "done").exists, "the job's end")
    finally:
        front.send_signal(signal.SIGCONT)
    assert desk.ends(front) == 0
    assert desk.out().count("x" * 99) == 20000
    desk.nothing_lives()
