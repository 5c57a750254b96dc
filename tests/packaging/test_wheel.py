"""What is in the wheel."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def tracked(*patterns: str) -> set[str]:
    """Files of the checkout that git knows or would add."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    said = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return {line for line in said.stdout.split("\n") if line and (REPOSITORY / line).exists()}


def test_every_file_of_both_packages_is_in_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    # Not only .py: a stylesheet that is left out breaks the console of those who installed the wheel, and only theirs.
    assert tracked("engine", "tui", ":!tui/boot") <= names
    assert {f"engine/_{name}" for name in tracked("configs")} <= names
    assert "trainui_boot.py" in names


def test_nothing_else_is_in_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"engine", "tui", "trainui_boot.py"}
    assert not [name for name in names if name.endswith(".pyc") or "/runs/" in name]
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_the_wheel_answers(wheel_command: Path, tmp_path: Path) -> None:
    said = subprocess.run([wheel_command, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("trainui ")
    assert said.stderr == ""
