"""What tests share: the installed command in a world of its own, waiting, and proof that nothing is left."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


def state_of(pid: int) -> str | None:
    """The state letter of a process, or None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()[0]


def is_alive(pid: int) -> bool:
    """False for a zombie too: some machines reap late."""
    return state_of(pid) not in (None, "Z", "X")


def _processes_of(mark: bytes, folder: bytes) -> list[str]:
    """`pid: command line` of every living process that this session started, through however many others.

    They all inherit `mark` in their environment. One that cleared it is still known by a path of the session's
    temporary folder in its command line.
    """
    found: list[str] = []
    skip = _self_and_ancestors()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) in skip:
            continue
        try:
            command, environ = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            continue  # gone, or another user's
        if (mark in environ.split(b"\0") or folder in command) and is_alive(int(process.name)):
            found.append(f"{process.name}: {command.replace(bytes(1), b' ').decode('utf-8', 'replace').strip()}")
    return found


def _self_and_ancestors() -> set[int]:
    pids, pid = {os.getpid()}, os.getppid()
    while pid > 1:
        pids.add(pid)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(fields[1])
    return pids


def wait_for(condition: Callable[[], object], timeout: float = 15.0, what: str = "") -> object:
    """Poll until `condition()` is true and return what it said; fail with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout:g} s for {what or condition}")
        time.sleep(0.02)


@pytest.fixture(scope="session", autouse=True)
def nothing_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the session when a process of ours outlives it. Several sessions may run on one machine at once."""
    mark = f"{os.getpid()}-{time.time_ns()}"
    folder = os.fsencode(tmp_path_factory.getbasetemp()) + b"/"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINUI_TEST", mark)
        yield

    def left() -> list[str]:
        return _processes_of(f"TRAINUI_TEST={mark}".encode(), folder)

    deadline = time.monotonic() + 15.0  # an engine lingers for a moment after its last visitor
    while left() and time.monotonic() < deadline:
        time.sleep(0.1)
    if survivors := left():
        pytest.fail("these processes outlived the tests:\n" + "\n".join(survivors))


@pytest.fixture
def wait_until() -> Callable[..., object]:
    """`wait_until(condition, timeout, what)`: see `wait_for`."""
    return wait_for


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """`alive(pid)`: see `is_alive`."""
    return is_alive


@dataclass(frozen=True)
class TrainUI:
    """The installed command, with a home, a run root and a working directory of this test alone."""

    command: str
    cwd: Path
    env: dict[str, str]

    @property
    def run_root(self) -> Path:
        return Path(self.env["TRAINUI_RUN_ROOT"])

    def run(
        self, *words: str | Path, timeout: float = 45.0, stdin: str | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end; output is text, with invalid UTF-8 as surrogates."""
        return subprocess.run(
            [self.command, *map(str, words)],
            cwd=self.cwd,
            env=self.env | (env or {}),
            stdin=subprocess.DEVNULL if stdin is None else None,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=timeout,
            check=False,
        )

    def start(self, *words: str | Path, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start it with pipes; the test ends it."""
        return subprocess.Popen(
            [self.command, *map(str, words)],
            cwd=self.cwd,
            env=self.env | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def config(self, text: str, name: str = "job.yml") -> Path:
        """Write a config into the working directory."""
        path = self.cwd / name
        path.write_text(text, encoding="utf-8")
        return path


@pytest.fixture
def trainui(tmp_path: Path) -> Iterator[TrainUI]:
    """`trainui` as it is installed beside this Python; what it started is stopped after the test."""
    command = Path(sys.executable).parent / "trainui"
    if not command.exists():
        pytest.fail(f"{command} is missing: pip install -e .")
    home, cwd = tmp_path / "home", tmp_path / "cwd"
    home.mkdir()
    cwd.mkdir()
    dropped = ("PYTHONPATH", "NO_COLOR", "COLUMNS", "LINES", "VIRTUAL_ENV")
    env = {k: v for k, v in os.environ.items() if k not in dropped and not k.startswith(("XDG_", "PYTEST_"))}
    env |= {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "TRAINUI_RUN_ROOT": str(tmp_path / "runs"),
        "LC_ALL": "C.UTF-8",
        "TERM": "xterm-256color",
    }
    it = TrainUI(str(command), cwd, env)
    yield it
    for run in _unfinished(it.run_root):
        it.run("stop", "--kill", run)


def _unfinished(run_root: Path) -> list[Path]:
    found = [path.parent for path in run_root.glob("*/*/engine.lock") if not path.parent.is_symlink()]
    return [run for run in found if not (run / "summary.json").exists() or _engine_lives(run)]


def _engine_lives(run: Path) -> bool:
    with (run / "engine.lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
