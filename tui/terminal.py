"""Leaving the terminal as it was found, however we leave; and not drowning one that is slow."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# A frozen terminal takes nothing any more: after this many seconds we go without asking it.
LAST_RESORT_S = 3.0
# Mouse and paste modes off, normal screen, cursor on, colours off.
_RESTORE = b"\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[?1004l\x1b[<u\x1b[?1049l\x1b[?25h\x1b[0m"
_WATCHED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class ExitSignals:
    """While open, SIGTERM, SIGHUP and SIGINT make the console leave in order.

    The job is not asked for anything: it runs on without us. A signal that was ignored when we came (nohup) stays so.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._leave: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[int, Any] = {}
        self._modes = _terminal_modes()
        self._done = threading.Event()

    def __enter__(self) -> ExitSignals:
        self._loop = asyncio.get_running_loop()
        for number in _WATCHED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                # Not through the loop: it may be blocked in a write to a terminal that does not read.
                self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._modes is not None:
            try:
                termios.tcsetattr(0, termios.TCSANOW, self._modes)
            except termios.error:
                pass  # the terminal is gone
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def on_exit(self, leave: Callable[[], None]) -> None:
        """Whom to tell, in the loop. A signal that came before is told at once."""
        self._leave = leave
        if self.received is not None:
            leave()

    def _caught(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            threading.Thread(target=self._last_resort, args=(number,), daemon=True).start()
        self.received = number
        if number == signal.SIGHUP and _terminal_modes() is None:
            _let_go()
        if self._loop is not None and self._leave is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._leave)

    def _last_resort(self, number: int) -> None:
        if self._done.wait(LAST_RESORT_S):
            return
        try:
            if self._modes is not None:
                termios.tcsetattr(0, termios.TCSANOW, self._modes)
            # A file description of our own: non-blocking must not stick to the shell's.
            fd = os.open("/dev/tty", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            os.write(fd, _RESTORE)
        except (OSError, termios.error):
            pass  # it takes nothing: that is why we are here
        os._exit(128 + number)


def _terminal_modes() -> Any | None:
    """The terminal's settings; None where stdin is none, or none any more."""
    try:
        return termios.tcgetattr(0)
    except (OSError, termios.error):
        return None


def _let_go() -> None:
    """The terminal is gone: whatever is still written or read goes nowhere instead of failing or blocking."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


@contextmanager
def screen_on_stdout() -> Generator[None]:
    """Textual draws on stderr. Where that is no terminal (`2> file`), let it draw on stdout."""
    stderr = sys.__stderr__
    if (stderr is not None and stderr.isatty()) or not os.isatty(1):
        yield
        return
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace") as file:
        setattr(sys, "__stderr__", file)  # noqa: B010  "final" to the type checker; Textual reads it as it starts
        try:
            yield
        finally:
            setattr(sys, "__stderr__", stderr)  # noqa: B010


def output_waits(driver: object) -> bool:
    """True while the terminal has not taken the last frames: drawing more would block the whole console.

    Reaches into Textual (8.x), which does not say it otherwise; where that changes, the answer is False.
    """
    queue: Any = getattr(getattr(driver, "_writer_thread", None), "_queue", None)
    size: Any = getattr(queue, "qsize", None)
    return bool(size is not None and size() > 0)
