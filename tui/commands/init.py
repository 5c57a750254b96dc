"""`trainui init`: a starter config."""

from __future__ import annotations

from pathlib import Path

import click

from engine.errors import EXIT_OK
from tui.commands.common import command, write


@command("init", "PATH is not overwritten where it is there already.")
@click.argument("path", required=False, default="trainui.yml")
def init(path: str) -> int:
    """Write a commented starter config (default: trainui.yml)."""
    from engine.config.starter import write_starter

    write_starter(Path(path))
    write(f"wrote {path}; `trainui {path}` runs it\n")
    return EXIT_OK
