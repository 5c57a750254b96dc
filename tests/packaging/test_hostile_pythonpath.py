"""The command works where the user's own engine.py, tui.py or signal.py is on PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

MODULES = ("engine", "tui", "signal", "json", "typing", "selectors", "subprocess", "click", "dataclasses")


@pytest.fixture(params=["modules", "packages", "sitecustomize"])
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A user's folder, as nasty as such folders get."""
    folder = tmp_path / "user"
    folder.mkdir()
    for name in MODULES if request.param != "sitecustomize" else ("engine", "tui"):
        text = f"print('the wrong {name}')\n"
        if request.param == "modules":
            (folder / f"{name}.py").write_text(text + f"raise SystemExit('the wrong {name}')\n")
        else:
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(text if request.param == "packages" else "")
    if request.param == "sitecustomize":
        # It runs before the first line of ours, and has the wrong packages in memory by then.
        (folder / "sitecustomize.py").write_text("import engine, tui\n")
    return folder


def run(command: Path, cwd: Path, pythonpath: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": pythonpath, "TRAINUI_RUN_ROOT": str(cwd / "runs"), "HOME": str(cwd)}
    return subprocess.run(
        [command, *words], cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
    )


@pytest.mark.parametrize("pythonpath", [".", ":", "/nonexistent::", "absolute"])
def test_it_runs_our_modules(command: Path, checkout: Path, pythonpath: str) -> None:
    said = run(command, checkout, str(checkout) if pythonpath == "absolute" else pythonpath, "--version")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("trainui ")
    assert said.stdout.count("\n") == 1


def test_a_command_that_imports_much_does_too(command: Path, checkout: Path) -> None:
    said = run(command, checkout, ".", "ls", "--json")
    assert said.returncode == 0, said.stderr
    assert "wrong" not in said.stdout + said.stderr


def test_the_same_job_as_without_and_the_rank_gets_the_users_modules(command: Path, tmp_path: Path) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    for name in ("engine", "tui", "signal", "selectors"):
        (folder / f"{name}.py").write_text(f"WHOSE = 'the user''s {name}'\n")
    (folder / "train.py").write_text("import engine, os; print(engine.WHOSE, os.environ['PYTHONPATH'])\n")
    (folder / "job.yml").write_text(
        "task: {command: [python3, -c, 'import engine, os; print(engine.WHOSE, os.environ[\"PYTHONPATH\"])']}\n"
        "cluster: {nproc_per_node: 1, gpu_binding: none}\n"
    )
    said = run(command, folder, ".", "job.yml", "--no-ui")
    assert said.returncode == 0, said.stdout + said.stderr
    assert "the users engine ." in said.stdout
