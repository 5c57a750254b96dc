"""`trainui stop`: stop a run, and stay until nothing of it is left."""

from __future__ import annotations

import asyncio
import math

import click

from engine.clock import SystemClock
from engine.errors import EXIT_OK, EXIT_UNAVAILABLE, EngineGone, EngineSilent, IntentRefused
from engine.job.snapshot import NodeView, Snapshot
from engine.model import NodeState, Phase
from engine.rundir import RunPaths
from engine.session import Session, StopJob
from tui.commands.common import command, found, run_argument, run_root_option, say
from tui.commands.front import attached, never_started

# A node that is out of reach for so long is not waited for (seconds): far above what a restarted agent needs.
OUT_OF_REACH_S = 10.0


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
    if await never_started(paths):
        say(f"{paths.root.name} was never started")
        return EXIT_OK
    session = await attached(paths)
    try:
        return await _stop_with(session, kill)
    except EngineSilent:
        raise
    except EngineGone as fault:
        # It was killed while it stopped the job: another one goes on with it.
        say(f"{fault}; asking again")
    return await _stop_with(await attached(paths), kill)


async def _stop_with(session: Session, kill: bool) -> int:
    try:
        if session.snapshot.over:
            say(f"{session.snapshot.run_id} is over already: {session.snapshot.phase}")
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
    """Tell the progress until it is over, or until it is clear that nobody can tell.

    Raises:
        EngineGone: the engine vanished meanwhile.
    """
    follow = asyncio.create_task(_follow(session))
    give_up = asyncio.create_task(_out_of_reach(session))
    try:
        await asyncio.wait({follow, give_up}, return_when=asyncio.FIRST_COMPLETED)
        if follow.done():
            return follow.result()
        for node in give_up.result():
            say(f"{node.host}: {node.error or 'it does not answer'}; what runs there is not confirmed to be down")
        say(f"stop.sh in {session.run_dir}/nodes tells more; the engine goes on trying")
        return EXIT_UNAVAILABLE
    finally:
        for task in (follow, give_up):
            task.cancel()
        await asyncio.gather(follow, give_up, return_exceptions=True)


async def _out_of_reach(session: Session) -> list[NodeView]:
    """Return once all nodes that are not down have been out of reach for a while, with the grace period over."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    while True:
        snapshot = session.snapshot
        waited_for = [n for n in snapshot.nodes if n.state not in (NodeState.DOWN, NodeState.FAILED, NodeState.LOST)]
        grace = snapshot.stop_deadline is not None and snapshot.stop_deadline > SystemClock().wall()
        if grace or not waited_for or any(n.state is not NodeState.UNREACHABLE for n in waited_for):
            since = loop.time()
        elif loop.time() - since >= OUT_OF_REACH_S:
            return waited_for
        await asyncio.sleep(0.2)


async def _follow(session: Session) -> int:
    """Tell the progress until it is over."""
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
