"""Where a run's engine is: its lock, its socket, its place in engine.json."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import stat
from contextlib import suppress
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
    if base.startswith("/") and len(os.fsencode(base)) < 60:
        with suppress(OSError):
            path = Path(base) / "trainui"
            if Path(base).stat().st_uid == os.getuid():
                path.mkdir(mode=0o700, exist_ok=True)
                if _is_private(path) and os.access(path, os.W_OK):
                    return path
    path = Path("/tmp") / f"trainui-{os.getuid()}"  # noqa: S108 (checked below: ours, 0700, no link)
    with explained(path):
        path.mkdir(mode=0o700, exist_ok=True)
        private = _is_private(path)
    if not private:
        raise RunDirError(
            f"{path} is not a private folder of yours", "remove it, or set XDG_RUNTIME_DIR to a folder of your own"
        )
    return path


def _is_private(folder: Path) -> bool:
    """True for a folder of ours (no link) that nobody else may enter.

    Raises:
        OSError: it is not there.
    """
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def socket_path(paths: RunPaths) -> Path:
    """Where the engine of this run listens on this machine."""
    digest = hashlib.sha256(str(paths.root.resolve()).encode()).hexdigest()[:16]
    return runtime_dir() / f"e-{digest}.sock"


def socket_places(paths: RunPaths) -> list[Path]:
    """Where the engine of this run may listen, the likeliest place first.

    Whoever looks may have another XDG_RUNTIME_DIR than whoever started it (a desktop, a login over SSH, cron).
    """
    places: list[Path] = []
    info = read_info(paths)
    if info is not None and info.host == socket.gethostname():
        # In a private folder of ours nobody else can listen.
        with suppress(OSError):
            if _is_private(Path(info.socket).parent):
                places.append(Path(info.socket))
    with suppress(RunDirError):
        places.append(socket_path(paths))
    return list(dict.fromkeys(places))


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
    return _is_locked(paths.engine_lock)


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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


def hold_start(paths: RunPaths) -> int:
    """Mark the run as being started. The mark goes with the last process that has the returned descriptor.

    Raises:
        RunDirError: the lock file cannot be made.
    """
    with explained(paths.start_lock):
        fd = os.open(paths.start_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def starts_now(paths: RunPaths) -> bool:
    """True between `hold_start` and the moment when an engine looks after the run."""
    return _is_locked(paths.start_lock)


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
