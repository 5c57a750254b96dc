"""The console's front door: takes a session, gives the screen back when the user leaves."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from engine.clock import Clock, SystemClock
from engine.errors import TrainUIError
from engine.job.snapshot import Snapshot
from engine.session import Session
from tui.terminal import ExitSignals, screen_on_stdout

Action = Literal["detached", "ended", "stopped", "terminated", "gone"]


@dataclass(frozen=True, slots=True)
class ConsoleResult:
    """How the console was left.

    Attributes:
        action: detached (the job runs on), ended (it was over), stopped (stopped from here, and quit),
            terminated (a signal to the console; the job runs on), gone (the engine is, and was not found again).
        snapshot: the last one that was seen.
    """

    action: Action
    snapshot: Snapshot


class ConsoleFault(TrainUIError):
    """A bug in the console itself."""

    exit_status = 70  # EX_SOFTWARE of sysexits.h


async def run_console(
    session: Session,
    *,
    read_only: bool = False,
    mouse: bool = True,
    reconnect: Callable[[], Awaitable[Session]] | None = None,
    clock: Clock | None = None,
) -> ConsoleResult:
    """Show a run until the user leaves. The terminal is as before afterwards, also after a signal or a fault.

    Args:
        session: the run; the caller closes it.
        read_only: the console cannot stop, kill or restart.
        mouse: whether to take the mouse.
        reconnect: opens a new session where the engine vanished.
        clock: for ages; the machine's by default.

    Raises:
        ConsoleFault: a bug of ours; the terminal is as before, and the traceback is on it.
    """
    with ExitSignals() as signals, screen_on_stdout():
        # Read once, at Textual's import: we pace our own drawing, and its timer would only hold frames back.
        os.environ.setdefault("TEXTUAL_FPS", "240")
        from tui.console import Console  # 0.3 s

        console = Console(session, read_only=read_only, reconnect=reconnect, clock=clock or SystemClock())
        if signals.received is None:
            signals.on_exit(console.terminate)
            try:
                result = await console.run_async(mouse=mouse)
            finally:
                await console.bridge.close()
            if result is not None:
                return result
            if console.return_code:  # a bug of ours; Textual printed where
                raise ConsoleFault(
                    "the console failed, the job is not touched by that",
                    f"trainui attach {session.snapshot.run_id} opens it again, with --no-ui it works without a screen",
                )
        return ConsoleResult("terminated", console.bridge.snapshot)
