"""`trainui ls`: the runs below the run root."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from engine.clock import SystemClock
from engine.errors import EXIT_OK, TrainUIError
from engine.rundir import RunPaths, list_runs
from tui.commands.common import command, root_path, run_root_option, say, write

if TYPE_CHECKING:
    from engine.job.snapshot import Snapshot


@command("ls", "Newest first.")
@click.option("--json", "as_json", is_flag=True, help="A JSON array.")
@run_root_option
def ls(as_json: bool, run_root: str | None) -> int:
    """List the runs below the run root."""
    from tui.render_text import run_entry, runs_text

    root = root_path(run_root)
    snapshots = [s for s in map(_read, list_runs(root)) if s is not None]
    now = SystemClock().wall()
    if as_json:
        write(json.dumps([run_entry(s, now) for s in snapshots], indent=1, ensure_ascii=False) + "\n")
    elif snapshots:
        write(runs_text(snapshots, now, _local_time))
    else:
        say(f"there is no run below {root}")
    return EXIT_OK


def _local_time(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _read(paths: RunPaths) -> Snapshot | None:
    """The run as its folder tells it; a folder that cannot be read is told, and does not hide the others."""
    from engine.client import open_finished
    from engine.compose import replayed
    from engine.whereabouts import engine_lives

    try:
        # With an engine at work, a summary is that of an earlier attempt.
        return replayed(paths) if engine_lives(paths) else open_finished(paths).snapshot
    except TrainUIError as fault:
        say(str(fault))
        return None
