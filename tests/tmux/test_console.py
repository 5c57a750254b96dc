"""The console in a real terminal, by keys and screen text."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.tmux, pytest.mark.timeout(120)]

TICKER = """
task:
  command:
    - python3
    - -c
    - |
      import os, time
      for i in range(100000):
          print(f"tick {i:06d} of rank", os.environ["RANK"], flush=True)
          time.sleep(0.05)
cluster: {nproc_per_node: 4, gpu_binding: none}
stop: {grace_s: 2}
name: ticker
"""
FAILS = """
task:
  command:
    - python3
    - -c
    - |
      import os, time
      time.sleep(0.5)
      if os.environ["RANK"] == "2":
          raise ValueError("the reason")
      time.sleep(300)
cluster: {nproc_per_node: 4, gpu_binding: none}
fail: {grace_s: 0}
stop: {grace_s: 2}
name: failing
"""


def newest(trainui: Any) -> Path:
    runs = sorted(p.parent for p in trainui.run_root.glob("*/*/plan.json") if not p.parent.is_symlink())
    return runs[-1]


def status(trainui: Any) -> dict[str, Any]:
    return json.loads(trainui.run("status", "--json").stdout)


def started(terminal: Any, trainui: Any, config: str = TICKER, **size: int) -> Any:
    """A console on a job that ticks."""
    trainui.config(config)
    pane = terminal(**size)
    pane.type("trainui job.yml; echo status=$?")
    pane.wait("tick 0000")
    return pane


def in_order(pane: Any) -> bool:
    """The terminal is as a shell wants it: no alternate screen, no mouse reports, a visible cursor."""
    return (pane.value("alternate_on"), pane.value("mouse_any_flag"), pane.value("cursor_flag")) == ("0", "0", "1")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60)])
def test_a_stranger_sees_the_job_the_ranks_and_a_log(terminal: Any, trainui: Any, width: int, height: int) -> None:
    pane = started(terminal, trainui, width=width, height=height)
    rows = [re.compile(rf"^\W*{rank}\W+running\b", re.MULTILINE) for rank in range(4)]
    text = pane.wait(lambda t: all(row.search(t) for row in rows) and "tick 0000" in t and "Quit" in t)
    assert "ticker" in text and "Help" in text
    assert all(len(line) <= width for line in text.split("\n"))


def test_scrolling_up_pauses_while_it_floods_and_the_end_resumes(terminal: Any, trainui: Any) -> None:
    pane = started(terminal, trainui)
    pane.wait(lambda t: "tick 00006" in t)
    pane.keys("Enter", "PageUp")  # into the log, and up: both arrive in one read
    paused = pane.wait("PAUSED")
    ticks = [line for line in paused.split("\n") if "tick" in line and "of rank 0" in line]
    pane.wait(lambda t: "PAUSED" in t and "new" in t)
    later = pane.wait(lambda t: t.count("tick") >= 1)
    assert ticks[-1].strip() in later
    pane.keys("G")
    pane.wait(lambda t: "FOLLOW" in t and "PAUSED" not in t)
    pane.keys("Tab", "Tab", "PageUp")
    pane.wait("PAUSED")


def test_stop_asks_and_cancel_is_the_default(terminal: Any, trainui: Any) -> None:
    pane = started(terminal, trainui)
    pane.keys("x")
    pane.wait("Stop 4 ranks of ticker?")
    pane.wait(lambda t: "Cancel" in t)
    subprocess.run(["sleep", "0.4"], check=True)  # keys in the first 250 ms are dropped, by contract
    pane.keys("Enter")
    pane.wait(lambda t: "Stop 4 ranks" not in t)
    assert status(trainui)["phase"] == "running"
    pane.keys("x")
    pane.wait("Stop 4 ranks of ticker?")
    subprocess.run(["sleep", "0.4"], check=True)
    pane.keys("y")
    pane.wait(lambda t: "stopped" in t.lower())
    pane.keys("q")
    pane.wait("status=143")
    assert in_order(pane)
    assert status(trainui)["phase"] == "stopped"


def test_type_ahead_does_not_accept_a_dialog(terminal: Any, trainui: Any) -> None:
    pane = started(terminal, trainui)
    pane.keys("x", "y")
    pane.wait("Stop 4 ranks of ticker?")
    assert status(trainui)["phase"] == "running"


def test_detach_attach_restart_and_quit(terminal: Any, trainui: Any) -> None:
    pane = started(terminal, trainui)
    pane.keys("q")
    pane.wait("Detach")
    subprocess.run(["sleep", "0.4"], check=True)
    pane.keys("d")
    pane.wait("status=0")
    pane.wait("detached")
    assert in_order(pane)
    assert status(trainui)["phase"] == "running"
    pane.type("clear; trainui attach; echo again=$?")
    pane.wait("tick 000")
    pane.keys("R")
    pane.wait("Restart 4 ranks of ticker?")
    subprocess.run(["sleep", "0.4"], check=True)
    pane.keys("y")
    pane.wait(lambda t: "attempt 1" in t)
    assert status(trainui)["attempt"] == 1
    pane.keys("C-c")
    pane.wait("Detach")
    subprocess.run(["sleep", "0.4"], check=True)
    pane.keys("x")
    pane.wait("again=143")
    assert in_order(pane)


def test_a_failed_job_shows_who_and_why(terminal: Any, trainui: Any) -> None:
    trainui.config(FAILS)
    pane = terminal()
    pane.type("trainui job.yml; echo status=$?")
    text = pane.wait(lambda t: "the run is over" in t and "ValueError: the reason" in t)
    assert "rank 2" in text
    pane.keys("q")
    pane.wait("status=1")
    assert in_order(pane)


def test_help_lists_the_keys(terminal: Any, trainui: Any) -> None:
    pane = started(terminal, trainui)
    pane.keys("?")
    text = pane.wait("ANYWHERE")
    assert "Stop the job" in text and "Restart the job" in text
    pane.keys("PageDown")
    pane.wait("IN THE LOG")
    pane.keys("Escape")
    pane.wait(lambda t: "IN THE LOG" not in t and "tick" in t)


def console_pid(trainui: Any) -> int:
    """The pid of the console in the pane: `trainui job.yml`, not the engine."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                cwd = (entry / "cwd").readlink()
            except OSError:
                continue
            if any(w.endswith(b"/trainui") for w in words) and b"job.yml" in words and cwd == trainui.cwd:
                return int(entry.name)
    raise AssertionError("no console is running")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_console_gives_the_terminal_back_and_the_job_runs_on(
    terminal: Any, trainui: Any, number: int
) -> None:
    pane = started(terminal, trainui)
    os.kill(console_pid(trainui), number)
    pane.wait("status=0")
    assert in_order(pane)
    assert status(trainui)["phase"] == "running"


def test_kill_9_on_the_console_costs_nothing(terminal: Any, trainui: Any, wait_until: Callable[..., Any]) -> None:
    pane = started(terminal, trainui)
    os.kill(console_pid(trainui), signal.SIGKILL)
    pane.wait("status=137")
    log = newest(trainui) / next(r["log"] for r in status(trainui)["ranks"])
    size = log.stat().st_size
    wait_until(lambda: log.stat().st_size > size, 15, "the log to grow without a console")
    pane.type("reset; trainui attach; echo again=$?")
    pane.wait("tick 000")
    lines = log.read_text().split("\n")[:-1]
    assert lines == [f"tick {i:06d} of rank 0" for i in range(len(lines))]


def test_a_tmux_that_dies_takes_nothing_with_it(
    terminal: Any, trainui: Any, wait_until: Callable[..., Any], alive: Callable[[int], bool]
) -> None:
    pane = started(terminal, trainui)
    pid = console_pid(trainui)
    pane.close()
    wait_until(lambda: not alive(pid), 15, "the console's end")
    assert status(trainui)["phase"] == "running"
    again = terminal()
    again.type("trainui attach; echo again=$?")
    again.wait("tick 000")


def test_an_engine_that_dies_is_told_and_healed(terminal: Any, trainui: Any) -> None:
    pane = started(terminal, trainui)
    first = json.loads((newest(trainui) / "engine.json").read_text())["pid"]
    os.kill(first, signal.SIGKILL)
    pane.wait(lambda t: json.loads((newest(trainui) / "engine.json").read_text())["pid"] != first)
    pane.wait(lambda t: "tick" in t and "running" in t.lower())
    pane.keys("x")
    pane.wait("Stop 4 ranks of ticker?")
    subprocess.run(["sleep", "0.4"], check=True)
    pane.keys("y")
    pane.wait(lambda t: "stopped" in t.lower())


def test_resizing_keeps_everything(terminal: Any, trainui: Any) -> None:
    pane = started(terminal, trainui)
    for width, height in ((200, 60), (40, 10), (20, 5), (120, 40), (80, 24)):
        pane.resize(width, height)
        pane.wait(lambda t: "tick" in t)
    pane.wait(lambda t: "ticker" in t and "Quit" in t)


def test_escapes_in_a_log_stay_text(terminal: Any, trainui: Any) -> None:
    evil = r"printf '\033]0;pwned\007\033[2J\033[Hgone\033[?1049l\n'; while true; do echo tick 0000; sleep 0.2; done"
    trainui.config(f"name: evil\ntask:\n  script: |\n    {evil}\nstop: {{grace_s: 1}}\n")
    pane = terminal()
    pane.type("trainui job.yml")
    text = pane.wait(lambda t: "tick 0000" in t and "gone" in t)
    assert "evil" in text
    assert pane.value("alternate_on") == "1"
    assert "pwned" not in pane.value("pane_title")
