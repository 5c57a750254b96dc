"""What the commands share: options, the terminal, sentences on stderr, finding runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import click

from engine.rundir import RunPaths, absolute, default_run_root, find_run
from tui.event_text import Level

LEVELS = ("debug", "info", "warning", "error")
_HELP = {"help_option_names": ["-h", "--help"]}

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def command(name: str, usage: str) -> Callable[[Callable[..., int]], click.Command]:
    """A click command whose function returns the exit status."""

    def declare(function: Callable[..., int]) -> click.Command:
        return click.command(name, context_settings=_HELP, options_metavar="[OPTIONS]", epilog=usage)(function)

    return declare


def options(*declared: Decorator) -> Decorator:
    """Several options at once."""

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(declared):
            function = one(function)
        return function

    return apply


run_root_option = click.option(
    "--run-root", metavar="DIR", help="Where runs are kept (default: $TRAINUI_RUN_ROOT or ./runs)."
)
run_argument = click.argument("run", metavar="[RUN]", required=False)
view_options = options(
    click.option("--no-ui", is_flag=True, help="No screen: log lines on stdout, a summary last."),
    click.option("--json", "as_json", is_flag=True, help="JSON Lines on stdout; implies --no-ui."),
    click.option("--quiet", is_flag=True, help="Without a screen: no log lines."),
)
look_options = options(
    click.option("--no-color", is_flag=True, help="No colours (also: NO_COLOR, TERM=dumb)."),
    click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="info",
        show_default=True,
        help="The least important of our own lines on stderr that is shown.",
    ),
)


@dataclass(frozen=True, slots=True)
class View:
    """How a run is looked at."""

    no_ui: bool = False
    as_json: bool = False
    quiet: bool = False
    no_color: bool = False
    level: Level = Level.INFO
    read_only: bool = False


def level_of(name: str) -> Level:
    """The level that `--log-level` names."""
    return Level[name.upper()]


def colour_wanted(stream: TextIO | None, no_color: bool, environ: Mapping[str, str]) -> bool:
    """True on a terminal, unless --no-color, NO_COLOR (not empty) or TERM=dumb says otherwise."""
    if no_color or environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    return is_terminal(stream)


def is_terminal(stream: TextIO | None) -> bool:
    """True for an open stream on a terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def say(text: str) -> None:
    """Sentences on stderr, each on a line of its own; a stderr that is gone is no fault."""
    from tui.render_text import clean

    try:
        for line in text.split("\n"):
            print(f"trainui: {clean(line)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def write(text: str) -> None:
    """Data on stdout.

    Raises:
        BrokenPipeError: the reader left; `tui.cli` ends quietly.
    """
    stream = sys.stdout
    data = text.encode("utf-8", "surrogateescape")
    stream.flush()
    stream.buffer.write(data)
    stream.buffer.flush()


def root_path(run_root: str | None) -> Path:
    """The run root: the option, else the environment's, else ./runs."""
    if not run_root:
        return default_run_root(os.environ)
    path = Path(run_root)
    return absolute(path, Path()) if run_root.startswith("~") else path


def found(run: str | None, run_root: str | None) -> RunPaths:
    """The run that the user names.

    Raises:
        RunNotFound: none, or more than one.
    """
    paths = find_run(run, root_path(run_root))
    return RunPaths(paths.root.resolve())
