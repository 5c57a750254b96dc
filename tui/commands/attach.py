"""`trainui attach`: look at a run that is there already."""

from __future__ import annotations

import click

from tui.commands.common import (
    View,
    command,
    found,
    level_of,
    look_options,
    run_argument,
    run_root_option,
    say,
    view_options,
)
from tui.commands.front import attached, wants_screen, watch


@command("attach", "RUN: a run directory, an id, the beginning of one, or nothing for the newest.")
@run_argument
@view_options
@run_root_option
@click.option("--read-only", is_flag=True, help="The console and Ctrl-C cannot stop the job.")
@look_options
def attach(
    run: str | None,
    no_ui: bool,
    as_json: bool,
    quiet: bool,
    run_root: str | None,
    read_only: bool,
    no_color: bool,
    log_level: str,
) -> int:
    """Open the console on a running or finished run; the exit status is the job's."""
    from engine.whereabouts import engine_lives
    from tui.signals import SignalInbox

    paths = found(run, run_root)
    view = View(no_ui, as_json, quiet, no_color, level_of(log_level), read_only)
    screen = wants_screen(view)
    if not screen and not as_json and engine_lives(paths):
        say(f"run {paths.root.name} in {paths.root}; Ctrl-C {'leaves' if read_only else 'stops'} it")
    return watch(paths, lambda: attached(paths), view, screen=screen, signals=SignalInbox())
