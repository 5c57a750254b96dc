"""`trainui stop`: stop a run, and stay until nothing of it is left."""

from __future__ import annotations

import asyncio
import math

import click

from engine.clock import SystemClock
from engine.errors import EXIT_OK, EXIT_UNAVAILABLE, EngineGone, IntentRefused
from engine.job.snapshot import Snapshot
from engine.model import Phase
from engine.rundir import RunPaths
from engine.session import Session, StopJob
from tui.commands.common import command, found, run_argument, run_root_option, say
from tui.commands.front import attached, never_started


@command("stop", "RUN: a run directory, an id, the beginning of one, or nothing for the newest.")
@run_argument
@click.option("--kill", is_flag=True, help="SIGKILL at once.")
@run_root_option
@click.option("--yes", is_flag=True, help="Never ask.")
def stop(run: str | None, kill: bool, run_root: str | None, yes: bool) -> int:
    """Stop a run; returns when nothing of it is left alive, or says what is."""
    del yes
    return asyncio.run(_stop(found(run, run_root), kill))


async def _stop(paths: RunPaths, kill: bool) -> int:
    try:
        return await _stop_once(paths, kill)
    except EngineGone as fault:
        # It was killed while it stopped the job: another one goes on with it.
        say(f"{fault}; asking again")
        return await _stop_once(paths, kill)


async def _stop_once(paths: RunPaths, kill: bool) -> int:

    if never_started(paths):
        say(f"{paths.root.name} was never started")
        return EXIT_OK
    session = await attached(paths)
    try:
        if session.snapshot.over:
            say(f"{paths.root.name} is over already: {session.snapshot.phase}")
            return EXIT_OK
        try:
            await session.do(StopJob(origin="other", kill=kill))
        except IntentRefused:
            if not session.snapshot.over:
                raise
        return await _wait(session)
    finally:
        await session.close()


async def _wait(session: Session) -> int:
    """Tell the progress until it is over.

    Raises:
        EngineGone: the engine vanished meanwhile.
    """
    from tui.render_text import survivor_text

    told = ""
    async for update in session.updates():
        snapshot = update.snapshot
        if snapshot.over:
            break
        if snapshot.stuck:
            for survivor in snapshot.survivors:
                say(f"could not be killed: {survivor_text(survivor)}")
            return EXIT_UNAVAILABLE
        text = progress_text(snapshot, SystemClock().wall())
        if text != told:
            told = text
            say(text)
    snapshot = session.snapshot
    if not snapshot.over:
        raise EngineGone("the engine ended before everything was down")
    lost = snapshot.phase is Phase.LOST
    say(f"{snapshot.run_id}: {snapshot.phase}" + ("" if lost else ", nothing of it is left"))
    return EXIT_UNAVAILABLE if lost else EXIT_OK


def progress_text(snapshot: Snapshot, now: float) -> str:
    """`waiting for ranks 0-3, SIGKILL in 12 s`."""
    from tui.render_text import ranks_text

    alive = [r.rank for r in snapshot.ranks if not r.state.final]
    who = ranks_text(alive) if alive else "what the ranks left behind"
    if snapshot.stop_deadline is None or snapshot.stop_deadline <= now:
        return f"waiting for {who}"
    return f"waiting for {who}, SIGKILL in {math.ceil(snapshot.stop_deadline - now)} s"
