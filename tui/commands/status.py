"""`trainui status`: one snapshot."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING

import click

from engine.clock import SystemClock
from engine.errors import EXIT_OK, EngineGone
from engine.rundir import RunPaths
from tui.commands.common import colour_wanted, command, found, run_argument, run_root_option, write

if TYPE_CHECKING:
    from engine.job.snapshot import Snapshot


@command("status", "RUN: a run directory, an id, the beginning of one, or nothing for the newest.")
@run_argument
@click.option("--json", "as_json", is_flag=True, help="The snapshot as one JSON object.")
@run_root_option
@click.option("--no-color", is_flag=True, help="No colours.")
def status(run: str | None, as_json: bool, run_root: str | None, no_color: bool) -> int:
    """Show nodes, ranks, exit codes and the verdict of a run."""
    from tui.render_text import status_text

    snapshot = asyncio.run(look(found(run, run_root)))
    now = SystemClock().wall()
    if as_json:
        write(json.dumps(snapshot.to_json(now), indent=1, ensure_ascii=False) + "\n")
    else:
        write(status_text(snapshot, now, colour_wanted(sys.stdout, no_color, os.environ)))
    return EXIT_OK


async def look(paths: RunPaths) -> Snapshot:
    """The newest snapshot of a run, from its engine or its folder; starts nothing.

    Raises:
        RunNotFound: the folder does not hold a run.
    """
    from engine.client import connect, open_finished

    try:
        session = await connect(paths)
    except EngineGone:
        return open_finished(paths).snapshot
    try:
        return session.snapshot
    finally:
        await session.close()
