"""The wheel, built and installed once, and the two ways in which the command can be installed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(REPOSITORY),
    ]
    built = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def wheel_command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`trainui` from the wheel in an environment of its own; its dependencies are borrowed from this one."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    # A folder named in a .pth file has its own .pth files ignored: the editable install does not come along.
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "trainui"


@pytest.fixture(params=["editable", "wheel"])
def command(request: pytest.FixtureRequest) -> Path:
    """The installed command: of the checkout, and of the wheel."""
    if request.param == "wheel":
        return request.getfixturevalue("wheel_command")
    return Path(sys.executable).parent / "trainui"
