"""`trainui restart`: the next attempt of the same run."""

from __future__ import annotations

import asyncio

import click

from engine.errors import EXIT_OK, EXIT_UNAVAILABLE, EngineGone
from engine.rundir import RunPaths
from engine.session import Session
from tui.commands.common import View, command, found, level_of, look_options, run_argument, run_root_option, say, write
from tui.commands.front import attached, watch


@command("restart", "RUN: a run directory, an id, the beginning of one, or nothing for the newest.")
@run_argument
@click.option("--no-ui", is_flag=True, help="Follow the new attempt: log lines on stdout, a summary last.")
@click.option("--json", "as_json", is_flag=True, help="Follow it with JSON Lines on stdout.")
@click.option("--quiet", is_flag=True, help="Follow it without log lines.")
@run_root_option
@click.option("--yes", is_flag=True, help="Never ask.")
@look_options
def restart(
    run: str | None,
    no_ui: bool,
    as_json: bool,
    quiet: bool,
    run_root: str | None,
    yes: bool,
    no_color: bool,
    log_level: str,
) -> int:
    """Stop what runs, then start the next attempt of the same run."""
    from tui.signals import SignalInbox

    del yes
    paths = found(run, run_root)
    follow = no_ui or as_json or quiet
    attempt = asyncio.run(_restart(paths))
    if attempt is None:
        return EXIT_UNAVAILABLE
    if not follow:
        write(f"{paths.root.name} attempt {attempt}\n")
        return EXIT_OK
    view = View(True, as_json, quiet, no_color, level_of(log_level))
    return watch(paths, lambda: attached(paths), view, screen=False, signals=SignalInbox())


async def _restart(paths: RunPaths) -> int | None:
    """The number of the new attempt, or None where the old one cannot be stopped."""
    from engine import client
    from tui.commands.status import look

    known = await look(paths)
    # A run that was only rendered has no attempt yet: number 0 is its next one.
    before = -1 if known.started_at is None else known.attempt
    session = await client.restart(paths)
    try:
        return await _next_attempt(session, before)
    finally:
        await session.close()


async def _next_attempt(session: Session, before: int) -> int | None:
    from tui.render_text import survivor_text

    async for update in session.updates():
        if update.snapshot.attempt > before and update.snapshot.started_at is not None:
            return update.snapshot.attempt
        if update.snapshot.stuck:
            for survivor in update.snapshot.survivors:
                say(f"could not be killed: {survivor_text(survivor)}")
            return None
    raise EngineGone("the engine ended before the next attempt began", "engine.log in the run directory says more")
