"""The terminal is given back on every way out; a real pseudo-terminal, a real process."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from textual.drivers._writer_thread import WriterThread

from tui.terminal import output_waits

CHILD = Path(__file__).with_name("pty_child.py")


class Pty:
    """The child in a terminal of 80x24; `output` is all that it wrote."""

    def __init__(self, folder: Path, how: str) -> None:
        self.master, self.slave = pty.openpty()
        ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.output = b""
        env = os.environ | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        env.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), str(folder), how],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )

    def read(self) -> None:
        """Take what is there."""
        while self.master >= 0 and select.select([self.master], [], [], 0)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            if not data:
                return
            self.output += data

    def wait(self, condition: Callable[[], object], what: str, *, reading: bool = True, limit_s: float = 30.0) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            if reading:
                self.read()
            if time.monotonic() > deadline:
                pytest.fail(f"waited for {what}; the terminal got {self.output[-2000:]!r}")
            time.sleep(0.01)

    def wait_for_screen(self) -> None:
        self.wait(lambda: b"RUNNING" in self.output and b"Quit" in self.output, "the first screen")

    def wait_for_end(self, *, reading: bool = True) -> None:
        self.wait(lambda: self.process.poll() is not None, "the end", reading=reading)
        self.read()

    @property
    def restored(self) -> bool:
        """Modes that were switched on are off again, and the line discipline is as before."""
        for mode in (b"1049", b"1003", b"2004"):
            on, off = self.output.rfind(b"\x1b[?" + mode + b"h"), self.output.rfind(b"\x1b[?" + mode + b"l")
            if on < 0 or off < on:
                return False
        cursor = self.output.rfind(b"\x1b[?25h") > self.output.rfind(b"\x1b[?25l")
        return cursor and termios.tcgetattr(self.slave)[:4] == self.before[:4]

    def close_master(self) -> None:
        """The terminal window is closed."""
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        if self.master >= 0:
            self.close_master()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Pty]]:
    opened: list[Pty] = []

    def make(how: str = "") -> Pty:
        opened.append(Pty(tmp_path, how))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def test_detach_gives_it_back(terminal: Callable[..., Pty]) -> None:
    pane = terminal()
    pane.wait_for_screen()
    os.write(pane.master, b"q")
    pane.wait(lambda: b"Leave demo?" in pane.output, "the dialog")
    # Typed while nobody can have read it, `d` is dropped; so it is typed until it works.
    pane.wait(lambda: os.write(pane.master, b"d") and (time.sleep(0.1) or b"left:" in pane.output), "leaving")
    pane.wait_for_end()
    assert b"left: detached" in pane.output
    assert pane.restored


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_gives_it_back(terminal: Callable[..., Pty], number: signal.Signals) -> None:
    pane = terminal()
    pane.wait_for_screen()
    pane.process.send_signal(number)
    pane.wait_for_end()
    assert b"left: terminated" in pane.output
    assert pane.restored
    assert pane.process.returncode == 0


def test_a_bug_of_ours_gives_it_back_and_is_shown(terminal: Callable[..., Pty]) -> None:
    pane = terminal("fault")
    pane.wait_for_end()
    assert pane.restored
    shown = pane.output[pane.output.rfind(b"\x1b[?1049l") :]
    assert b"TypeError" in shown
    assert pane.process.returncode != 0


def test_a_closed_terminal_ends_it(terminal: Callable[..., Pty]) -> None:
    pane = terminal()
    pane.wait_for_screen()
    pane.close_master()
    pane.wait_for_end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_frozen_terminal_cannot_hold_it(terminal: Callable[..., Pty], number: signal.Signals) -> None:
    pane = terminal("flood")
    pane.wait_for_screen()
    # Nobody reads any more; once the pipe to the terminal is full, the child's writes block.
    pane.wait(lambda: not select.select([], [pane.slave], [], 0)[1], "a full terminal", reading=False)
    pane.process.send_signal(number)
    pane.wait_for_end(reading=False)
    assert termios.tcgetattr(pane.slave)[:4] == pane.before[:4]


def test_textual_still_has_the_queue_that_we_look_at() -> None:
    class Driver:
        _writer_thread: Any = None

    driver = Driver()
    assert not output_waits(driver)
    with Path(os.devnull).open("w") as file:
        driver._writer_thread = WriterThread(file)  # not started: nothing takes what is written
        assert not output_waits(driver)
        driver._writer_thread.write("x")
        assert output_waits(driver)
