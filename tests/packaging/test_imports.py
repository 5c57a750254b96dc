"""Commands that are asked often start fast: they import none of what they do not use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Measured on a slow machine: textual and asyncssh 0.7 s each, omegaconf 0.4 s; Python itself 0.01 s.
HEAVY = ("textual", "rich", "asyncssh", "omegaconf", "yaml", "numpy")
SHOW = f"""
import sys, trainui_boot
status = trainui_boot.main()
print(status, *(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)
"""


def imported(cwd: Path, *words: str) -> tuple[str, str, list[str]]:
    """(stdout, exit status, heavy modules) of a command."""
    env = os.environ | {"TRAINUI_RUN_ROOT": str(cwd / "runs")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", SHOW, *words],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    status, *modules = done.stderr.strip().split("\n")[-1].split()
    return done.stdout, status, modules


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("ls",), ("status", "--help")])
def test_it_imports_nothing_heavy(tmp_path: Path, words: tuple[str, ...]) -> None:
    stdout, status, modules = imported(tmp_path, *words)
    assert (status, modules) == ("0", [])
    assert "trainui" in stdout or words == ("ls",)


def test_status_of_no_run_imports_nothing_heavy(tmp_path: Path) -> None:
    _, status, modules = imported(tmp_path, "status")
    assert (status, modules) == ("2", [])


def test_the_engine_process_imports_no_front_end(tmp_path: Path) -> None:
    front = ("tui", "textual", "rich", "click", "asyncssh")
    code = f"import sys, engine.serve; print(*(name for name in {front} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
