"""Headless on a pseudo-terminal that is its controlling one: keys reach the whole process group, closing hangs up."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import termios
import threading
from collections.abc import Iterator
from typing import Any

import pytest

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"


class Terminal:
    """A terminal window with one command in it."""

    def __init__(self, desk: Any, words: list[str]) -> None:
        self.desk = desk
        self.ours, theirs = os.openpty()
        self.process = subprocess.Popen(
            [desk.trainui.command, *words],
            cwd=desk.cwd,
            env=desk.trainui.env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.shown = b""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self.ours, 65536):
                self.shown += data
        except OSError:
            pass  # EIO: the other side is closed

    def until(self, words: bytes, count: int = 1) -> None:
        self.desk.until(lambda: self.shown.count(words) >= count, f"{words!r} on {self.shown!r}")

    def press(self, key: bytes) -> None:
        os.write(self.ours, key)


@pytest.fixture
def windows(desk: Any) -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for window in opened:
        if window.process.poll() is None:
            window.process.kill()
        window.process.wait(10)
        window.reader.join(10)
        os.close(window.ours)


def test_ctrl_c_reaches_the_whole_group_and_stops_in_order(desk: Any, windows: list[Terminal]) -> None:
    windows.append(window := Terminal(desk, [desk.job(SLEEPER), "--no-ui"]))
    window.until(b"| up", 2)
    window.press(b"\x03")
    assert desk.ends(window.process) == 130
    desk.until(lambda: b"run directory:" in window.shown, "the summary")
    assert json.loads((desk.the_run() / "summary.json").read_text())["phase"] == "stopped"
    desk.nothing_lives()


@pytest.mark.parametrize("moment", [b"trainui: run 2", b"attempt 0 starts"])
def test_ctrl_c_while_it_starts(desk: Any, windows: list[Terminal], moment: bytes) -> None:
    windows.append(window := Terminal(desk, [desk.job(SLEEPER), "--no-ui"]))
    window.until(moment)
    window.press(b"\x03")
    assert desk.ends(window.process) == 130
    assert b"Traceback" not in window.shown
    desk.nothing_lives()


def test_a_stop_of_output_with_ctrl_s_does_not_hold_up_the_stop(desk: Any, windows: list[Terminal]) -> None:
    code = "import time\nwhile True:\n    print('up' * 500, flush=True); time.sleep(0.001)"
    windows.append(window := Terminal(desk, [desk.job(code), "--no-ui"]))
    window.until(b"| up", 2)
    window.press(b"\x13")
    desk.until(lambda: sum(p.stat().st_size for p in desk.the_run().rglob("rank_*.log")) > 3_000_000, "output")
    assert desk.run("stop").returncode == 0
    assert desk.status()["phase"] == "stopped"
    window.press(b"\x11")
    assert desk.ends(window.process) == 143
    desk.nothing_lives()


def test_a_window_that_is_closed_leaves_the_job_running(desk: Any) -> None:
    cfg = desk.job(SLEEPER)
    window = subprocess.Popen(
        ["script", "-qec", f"{desk.trainui.command} {cfg} --no-ui", "typescript"],
        cwd=desk.cwd,
        env=desk.trainui.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    desk.until(lambda: desk.runs() and desk.run("status").stdout.count("running") >= 3, "the ranks")
    window.kill()
    window.wait(10)
    desk.until(lambda: not fronts(desk), f"the front end to leave: {fronts(desk)}")
    assert desk.status()["phase"] == "running"
    assert desk.run("stop").returncode == 0
    desk.nothing_lives()


def fronts(desk: Any) -> list[int]:
    """Front ends of this test that still live."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            same = os.readlink(f"/proc/{entry}/cwd") == str(desk.cwd)
            with open(f"/proc/{entry}/stat") as file:
                zombie = file.read().rpartition(")")[2].split()[0] in "ZX"
        except (OSError, ValueError):
            continue
        if same and not zombie and b"--no-ui" in words and b"script" not in words[0]:
            found.append(int(entry))
    return found
