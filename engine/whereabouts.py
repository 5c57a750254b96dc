"""Where a run's engine is: its lock, its socket, its place in engine.json."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.errors import RunDirError
from engine.rundir import RunPaths, explained, write_json


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What engine.json says of the engine that wrote it."""

    pid: int
    host: str
    socket: str


def runtime_dir(environ: dict[str, str] | None = None) -> Path:
    """A private folder with a short path for sockets (a socket's path may have 107 bytes).

    Raises:
        RunDirError: it belongs to somebody else.
    """
    env = os.environ if environ is None else environ
    base = env.get("XDG_RUNTIME_DIR", "")
    # Only where it is really ours and short: an inherited one may belong to the user before `su`.
    if base and len(base) < 60 and Path(base).is_dir() and Path(base).stat().st_uid == os.getuid():
        path = Path(base) / "trainui"
    else:
        path = Path("/tmp") / f"trainui-{os.getuid()}"  # noqa: S108 (checked below: ours, 0700, no link)
    with explained(path):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RunDirError(
            f"{path} is not a private folder of yours", "remove it, or set XDG_RUNTIME_DIR to a folder of your own"
        )
    return path


def socket_path(paths: RunPaths) -> Path:
    """Where the engine of this run listens on this machine."""
    digest = hashlib.sha256(str(paths.root.resolve()).encode()).hexdigest()[:16]
    return runtime_dir() / f"e-{digest}.sock"


def take_lock(paths: RunPaths) -> int | None:
    """The open descriptor of the engine's lock, or None where another engine holds it.

    Raises:
        RunDirError: the lock file cannot be opened.
    """
    with explained(paths.engine_lock):
        fd = os.open(paths.engine_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def engine_lives(paths: RunPaths) -> bool:
    """True while some engine holds the run's lock."""
    try:
        fd = os.open(paths.engine_lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that those who ask do not disturb each other.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def write_info(paths: RunPaths, where: Path) -> None:
    """Say who looks after the run.

    Raises:
        RunDirError: it cannot be written.
    """
    write_json(paths.engine, asdict(EngineInfo(os.getpid(), socket.gethostname(), str(where))))


def read_info(paths: RunPaths) -> EngineInfo | None:
    """Who said last that it looks after the run, or None."""
    try:
        data: Any = json.loads(paths.engine.read_text(encoding="utf-8"))
        return EngineInfo(int(data["pid"]), str(data["host"]), str(data["socket"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
