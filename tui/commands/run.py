"""`trainui CFG`: check, launch, look."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED, EXIT_UNAVAILABLE
from tui.commands.common import (
    View,
    colour_wanted,
    command,
    level_of,
    look_options,
    run_root_option,
    say,
    view_options,
    write,
)
from tui.commands.front import engine_started, wants_screen, watch
from tui.event_text import Level

if TYPE_CHECKING:
    from engine.compose import Prepared
    from engine.preflight import Finding


@dataclass(frozen=True, slots=True)
class Request:
    """What to launch, as it was asked for."""

    config: str
    overrides: tuple[str, ...]
    run_root: Path | None
    name: str | None


@command("run", "KEY=VALUE overrides a key of the config; CFG may be - for stdin.")
@click.argument("config", metavar="CFG")
@click.argument("overrides", metavar="[KEY=VALUE ...]", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Render everything into the run directory, start nothing.")
@click.option("--check", "check_only", is_flag=True, help="Preflight only; exit status 0 or 69.")
@view_options
@run_root_option
@click.option("--name", metavar="NAME", help="The run's name (default: the config's).")
@click.option("--read-only", is_flag=True, help="The console and Ctrl-C cannot stop the job.")
@click.option("--yes", is_flag=True, help="Never ask.")
@look_options
def run(
    config: str,
    overrides: tuple[str, ...],
    dry_run: bool,
    check_only: bool,
    no_ui: bool,
    as_json: bool,
    quiet: bool,
    run_root: str | None,
    name: str | None,
    read_only: bool,
    yes: bool,
    no_color: bool,
    log_level: str,
) -> int:
    """Launch the job that the config CFG describes, and open the console."""
    del yes  # nothing asks yet; scripts may say it all the same
    if dry_run and check_only:
        raise click.UsageError("--dry-run and --check exclude each other")
    if as_json and (dry_run or check_only):
        raise click.UsageError(f"--json does not go with {'--dry-run' if dry_run else '--check'}")
    root = Path(run_root) if run_root else None
    request = Request(config, overrides, root, name)
    view = View(no_ui, as_json, quiet, no_color, level_of(log_level), read_only)
    return launch(request, view, dry_run=dry_run, check_only=check_only)


def launch(request: Request, view: View, *, dry_run: bool, check_only: bool) -> int:
    """Launch a job and look at it; returns the exit status.

    Raises:
        TrainUIError: the config, this machine or the run directory will not do; nothing was started.
    """
    from engine.compose import describe, write_run

    prepared = _prepare(request)
    for warning in prepared.warnings:
        _tell(view, f"warning: {warning}", Level.WARNING)
    if dry_run:
        write(describe(prepared, write_run(prepared)).rstrip("\n") + "\n")
        return EXIT_OK
    if not _passes(prepared, view, show=check_only):
        return EXIT_UNAVAILABLE
    return EXIT_OK if check_only else _start(prepared, view)


def _prepare(request: Request) -> Prepared:
    from engine.compose import prepare

    return prepare(
        request.config,
        request.overrides,
        run_root=request.run_root,
        name=request.name,
        environ=os.environ,
        cwd=_working_directory(),
        stdin=sys.stdin,
    )


def _working_directory() -> Path:
    from engine.errors import TrainUIError

    try:
        return Path.cwd()
    except FileNotFoundError:
        raise TrainUIError("the current directory does not exist any more", "cd to one that does") from None


def _passes(prepared: Prepared, view: View, *, show: bool) -> bool:
    """The preflight. `show`: the whole table on stdout; else only what is wrong, on stderr."""
    from engine.compose import check
    from engine.preflight import format_findings

    findings = check(prepared)
    failed = [f for f in findings if f.level == "fail"]
    if show:
        write(format_findings(findings, colour_wanted(sys.stdout, view.no_color, os.environ)).rstrip("\n") + "\n")
    else:
        for finding in [*failed, *(f for f in findings if f.level == "warn")]:
            _tell(view, _finding_text(finding), Level.ERROR if finding.level == "fail" else Level.WARNING)
    if failed and not show:
        _tell(view, "nothing was started", Level.INFO)
    return not failed


def _tell(view: View, text: str, level: Level) -> None:
    if level >= view.level:
        say(text)


def _finding_text(finding: Finding) -> str:
    hint = f" ({finding.hint})" if finding.hint else ""
    return f"{'' if finding.level == 'fail' else 'warning: '}{finding.what}: {finding.text}{hint}"


def _start(prepared: Prepared, view: View) -> int:
    from engine.client import connect
    from engine.compose import write_run
    from engine.whereabouts import hold_start
    from tui.signals import SignalInbox

    screen = wants_screen(view)
    signals = SignalInbox()
    signals.open()  # from here on a Ctrl-C must stop what was started
    held: list[int] = []  # from now on others know that it is being started
    paths = write_run(prepared, lambda made: held.append(hold_start(made)))
    if screen:
        write(f"starting {prepared.plan.name}, run {prepared.plan.run_id}\n")
    elif not view.as_json:
        _tell(view, f"run {prepared.plan.run_id} in {paths.root}", Level.INFO)
    if not engine_started(paths, held[0], lambda: bool(signals.kept)):
        import signal

        return EXIT_TERMINATED if signal.SIGTERM in signals.kept else EXIT_INTERRUPTED
    return watch(paths, lambda: connect(paths), view, screen=screen, signals=signals)
