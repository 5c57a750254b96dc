"""Choosing a front end for a run, and leaving it with the right status."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from engine.clock import SystemClock
from engine.errors import EXIT_OK, EXIT_UNAVAILABLE, EngineGone, TrainUIError
from engine.rundir import RunPaths
from tui.commands.common import View, colour_wanted, is_terminal, say

if TYPE_CHECKING:
    from engine.session import Session
    from tui.signals import SignalInbox

Opener = Callable[[], Awaitable["Session"]]


def wants_screen(view: View) -> bool:
    """True where the console can and shall be opened; says on stderr why it is not, where nobody asked for that."""
    if view.no_ui or view.as_json or view.quiet:
        return False
    if not is_terminal(sys.stdout):
        why = "stdout is not a terminal"
    elif os.environ.get("TERM") == "dumb":
        why = "TERM is dumb"
    elif not _terminal_on_stdin():
        why = "stdin is not a terminal"
    else:
        return True
    say(f"{why}, so this runs as with --no-ui")
    return False


def _terminal_on_stdin() -> bool:
    """The console reads keys from stdin; where a config came through it, the terminal takes its place."""
    if is_terminal(sys.stdin):
        return True
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return False
    os.dup2(terminal, 0)
    os.close(terminal)
    return True


def watch(paths: RunPaths, opener: Opener, view: View, *, screen: bool, signals: SignalInbox) -> int:
    """Look at a run until it is over or the user leaves; returns the exit status.

    Args:
        paths: the run.
        opener: opens the session we begin with.
        view: how to look at it.
        screen: whether to open the console.
        signals: open already, where a job was started; the console has handlers of its own.
    """
    if screen:
        return asyncio.run(_console(paths, opener, view, signals))
    signals.open()
    return asyncio.run(_headless(paths, opener, view, signals))


async def _headless(paths: RunPaths, opener: Opener, view: View, signals: SignalInbox) -> int:
    from engine.client import attach, open_finished
    from tui.headless import Headless
    from tui.jsonl import JsonPrinter
    from tui.outlet import Outlet
    from tui.text_lines import Narrator, TextPrinter

    out, err = Outlet(1), Outlet(2)
    clock = SystemClock()
    narrator = Narrator(err, view.level, colour_wanted(sys.stderr, view.no_color, os.environ))
    try:
        session = await opener()
    except EngineGone as fault:
        narrator.say(str(fault))
        await err.drain(2.0)
        if view.as_json:
            JsonPrinter(out, narrator, clock).summary(open_finished(paths).snapshot)
            await out.drain(2.0)
        return EXIT_UNAVAILABLE
    if view.as_json:
        printer = JsonPrinter(out, narrator, clock, quiet=view.quiet)
    else:
        color = colour_wanted(sys.stdout, view.no_color, os.environ)
        printer = TextPrinter(out, narrator, clock, session.snapshot, color=color, quiet=view.quiet)
    follower = Headless(
        session,
        printer,
        out,
        err,
        signals=signals,
        reconnect=lambda: attach(paths),
        read_only=view.read_only,
        clock=clock,
    )
    return await follower.run()


async def _console(paths: RunPaths, opener: Opener, view: View, signals: SignalInbox) -> int:
    from engine.client import attach
    from engine.session import StopJob
    from tui.headless import exit_status
    from tui.render_text import headline, survivor_text, verdict_lines

    session = await opener()
    for number in signals.kept:
        # A Ctrl-C while the job was being started; a hang-up just leaves.
        import signal

        if number != signal.SIGHUP and not view.read_only:
            await session.do(StopJob(origin="sigint" if number == signal.SIGINT else "other"))
    signals.close()
    if view.no_color:
        os.environ["NO_COLOR"] = "1"  # what Textual looks at
    from tui.app import run_console  # ~0.7 s: after the job was started, not before

    try:
        result = await run_console(session, read_only=view.read_only, reconnect=lambda: attach(paths))
    finally:
        await session.close()
    snapshot = result.snapshot
    if snapshot.over or snapshot.stuck:
        say("\n".join([headline(snapshot, SystemClock().wall(), False), *verdict_lines(snapshot, False)]))
        for survivor in snapshot.survivors:
            say(f"could not be killed: {survivor_text(survivor)}")
        return exit_status(snapshot)
    if result.action == "gone":
        say(f"the engine of the run is gone: trainui attach {snapshot.run_id} tries again")
        return EXIT_UNAVAILABLE
    say(f"detached: trainui attach {snapshot.run_id}")
    return EXIT_OK


async def attached(paths: RunPaths) -> Session:
    """A session with the run, with a new engine where it needs one.

    Raises:
        TrainUIError: it cannot be opened, or was never started: an engine would launch it now.
    """
    from engine.client import attach

    if await never_started(paths):
        name = paths.root.name
        raise TrainUIError(f"{name} was rendered (--dry-run) and never started", f"`trainui restart {name}` starts it")
    return await attach(paths)


async def never_started(paths: RunPaths) -> bool:
    """True for what `--dry-run` left: an engine's first act is to write events.jsonl.

    A run that is being started at this moment is waited for.
    """
    from engine.whereabouts import engine_lives, starts_now

    # Polled, because a lock tells nobody when it goes.
    while not paths.events.exists() and not engine_lives(paths) and starts_now(paths):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return not paths.events.exists() and not engine_lives(paths)


def engine_started(paths: RunPaths, held: int, interrupted: Callable[[], bool]) -> bool:
    """Start the run's engine; where none came up, nothing of the run is left behind.

    Args:
        held: what `hold_start` gave; released here.

    Returns:
        False where a signal to us kept it from coming up.

    Raises:
        EngineGone: it did not come up.
    """
    from engine.client import start_engine
    from engine.compose import discard_run
    from engine.whereabouts import engine_lives

    try:
        start_engine(paths, held=(held,))
    except TrainUIError:
        agents = any(paths.root.glob("nodes/*/agent.json"))
        if not engine_lives(paths) and not agents:  # nothing of it has ever run
            discard_run(paths)
        if interrupted():
            return False
        raise
    finally:
        paths.start_lock.unlink(missing_ok=True)
        os.close(held)
    return True
