"""The boot module by itself, in front of packages of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BOOT = Path(__file__).parents[2] / "tui" / "boot" / "trainui_boot.py"
SHOW = """
import json, os, sys
def main(argv=None):
    import signal
    pythonpath = os.environ.get("PYTHONPATH")
    print(json.dumps({"argv": argv, "path": sys.path, "signal": signal.__file__, "pythonpath": pythonpath}))
    return 7
"""


@pytest.fixture(params=["wheel", "checkout"])
def boot(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the boot module in both layouts, with an engine and a CLI that show where they run."""
    root = tmp_path / "installed"
    for file in ("engine/__init__.py", "engine/errors.py", "tui/__init__.py"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    (root / "engine" / "serve.py").write_text(SHOW)
    (root / "tui" / "cli.py").write_text(SHOW)
    folder = root if request.param == "wheel" else root / "tui" / "boot"
    folder.mkdir(exist_ok=True)
    shutil.copy(BOOT, folder)
    return folder / BOOT.name


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's folder that must not be imported from."""
    folder = tmp_path / "user"
    folder.mkdir()
    for name in ("engine", "tui", "signal"):
        (folder / f"{name}.py").write_text("raise SystemExit('wrong')\n")
    return folder


def python(boot: Path, *words: str, pythonpath: str, cwd: Path, safe: bool = True) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": pythonpath}
    command = [sys.executable, *(["-P"] * safe), str(boot), *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize("safe", [True, False])
def test_the_engine_starts_with_its_own_words(boot: Path, user: Path, safe: bool) -> None:
    done = python(boot, "--engine", "/the/run", "--restart", pythonpath=".", cwd=user, safe=safe)
    assert (done.returncode, done.stderr) == (7, "")
    said = json.loads(done.stdout)
    assert said["argv"] == ["/the/run", "--restart"]
    assert said["signal"] == __import__("signal").__file__


def test_foreign_folders_come_last_and_the_environment_stays(boot: Path, user: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    written = f"{user}::{other}"
    done = python(boot, pythonpath=written, cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    said = json.loads(done.stdout)
    assert said["pythonpath"] == written
    assert said["path"][-3:] == [str(user), str(tmp_path), str(other)]
    root = str(tmp_path / "installed")
    stdlib = os.path.dirname(os.__file__)
    assert said["path"].count(root) == 1
    assert said["path"].index(stdlib) < said["path"].index(root)
    assert all("site-packages" not in path for path in said["path"][: said["path"].index(root)])


def test_our_own_folder_or_the_standard_library_on_pythonpath_does_no_harm(
    boot: Path, user: Path, tmp_path: Path
) -> None:
    written = os.pathsep.join([str(user), os.path.dirname(os.__file__), str(tmp_path / "installed")])
    done = python(boot, pythonpath=written, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (7, "")
    assert json.loads(done.stdout)["path"][-1] == str(user)


def test_a_working_directory_that_is_gone(boot: Path, user: Path, tmp_path: Path) -> None:
    # With a relative entry Python itself gives up there, so ours is absolute.
    gone = tmp_path / "gone"
    gone.mkdir()
    words = ["bash", "-c", 'rmdir "$PWD"; exec "$@"', "bash", sys.executable, "-P", str(boot)]
    done = subprocess.run(
        words,
        cwd=gone,
        env=os.environ | {"PYTHONPATH": str(user)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, "")


def test_ctrl_c_before_the_cli_is_up_shows_no_traceback(boot: Path, tmp_path: Path) -> None:
    (tmp_path / "installed" / "tui" / "cli.py").write_text("raise KeyboardInterrupt\n")
    done = python(boot, pythonpath="", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
