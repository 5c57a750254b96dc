"""Signals from the first moment on: kept while nobody listens, told to the loop once it does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import FrameType

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalInbox:
    """Takes SIGINT, SIGTERM and SIGHUP over from the moment it is opened.

    A Ctrl-C between "the engine is started" and "we are connected" must stop the job like any other. Signals that
    were ignored when we were started (nohup, a shell's background job) stay ignored.
    """

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = [n for n in WATCHED if signal.getsignal(n) is not signal.SIG_IGN]

    def open(self) -> None:
        """Keep what arrives from now on."""
        for number in self._numbers:
            signal.signal(number, self._keep)

    @property
    def kept(self) -> tuple[int, ...]:
        """What arrived and was told to nobody yet."""
        return tuple(self._kept)

    def listen(self, loop: asyncio.AbstractEventLoop, told: Callable[[int], None]) -> None:
        """Tell the loop's owner from now on, beginning with what was kept."""
        self._loop = loop
        for number in self._numbers:
            loop.add_signal_handler(number, told, number)
        kept, self._kept = self._kept, []
        for number in kept:
            told(number)

    def ignore(self) -> None:
        """Swallow them from now on: we are leaving anyway."""
        for number in self._numbers:
            if self._loop is not None:
                self._loop.remove_signal_handler(number)
            signal.signal(number, self._keep)

    def close(self) -> None:
        """The defaults again."""
        for number in self._numbers:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    def _keep(self, number: int, _frame: FrameType | None) -> None:
        self._kept.append(number)
