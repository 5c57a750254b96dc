"""The run directory (contract, section 6): where everything of a run is, and how runs are found."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from engine.errors import RunDirError, RunNotFound

RUN_ID_FORMAT = "%Y%m%d-%H%M%S"


def new_run_id(now: datetime) -> str:
    """`YYYYmmdd-HHMMSS-xxxx` in local time, with four random hex digits."""
    return f"{now.strftime(RUN_ID_FORMAT)}-{secrets.token_hex(2)}"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The paths in one run's directory."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def plan(self) -> Path:
        """The plan as it may be shown."""
        return self.root / "plan.json"

    @property
    def launch(self) -> Path:
        """The plan whole, with secrets (mode 0600): what the engine starts from."""
        return self.root / "launch.json"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def engine(self) -> Path:
        """Which engine looks after the run: pid, start time, boot id, socket."""
        return self.root / "engine.json"

    @property
    def engine_lock(self) -> Path:
        return self.root / "engine.lock"

    @property
    def start_lock(self) -> Path:
        """Locked while the run is being started, before an engine has its own lock."""
        return self.root / "start.lock"

    @property
    def engine_log(self) -> Path:
        return self.root / "engine.log"

    def node(self, folder: str) -> Path:
        return self.root / "nodes" / folder


def rank_log(folder: str, attempt: int, rank: int) -> str:
    """A rank's log, relative to the run directory."""
    return f"nodes/{folder}/attempt_{attempt}/rank_{rank:05d}.log"


@contextmanager
def explained(what: Path) -> Generator[None]:
    """Turn an OSError on `what` into a sentence.

    Raises:
        RunDirError: instead of the OSError.
    """
    try:
        yield
    except OSError as err:
        raise RunDirError(f"{what}: {os_error_text(err)}", os_error_hint(err)) from err


def os_error_text(err: OSError) -> str:
    """`no space left on device`: the system's words, in lower case at the start."""
    text = err.strerror or str(err)
    return text[:1].lower() + text[1:]


def os_error_hint(err: OSError) -> str:
    """What to do about the commonest faults, or ""."""
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space, or choose another place with --run-root"
    if err.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a place you may write to with --run-root"
    return ""


def create_run_dir(run_root: Path, name: str, run_id: str) -> RunPaths:
    """Make `run_root/name/run_id` (mode 0700) and point `latest` at it.

    Raises:
        RunDirError: it cannot be made, or a run of that id is there already.
    """
    root = run_root / name / run_id
    made: list[Path] = []
    with explained(root):
        for parent in reversed([root, *root.parents]):
            if not parent.exists():
                try:
                    parent.mkdir(mode=0o700 if parent == root else 0o777)
                except FileExistsError:
                    continue
                except OSError:
                    for path in reversed(made):
                        path.rmdir()
                    raise
                made.append(parent)
        if root not in made:
            raise RunDirError(f"{root}: a run of that id is there already")
    paths = RunPaths(root)
    point_latest(root)
    return paths


def point_latest(root: Path) -> None:
    """Let `latest` beside the run point at it, in one atomic step; a link that cannot be made is no fault."""
    link = root.parent / "latest"
    temporary = root.parent / f".latest.{os.getpid()}"
    try:
        temporary.symlink_to(root.name)
        temporary.replace(link)
    except OSError:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file so that a reader sees the old one or the new one, and a crash leaves one of both.

    Raises:
        RunDirError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with explained(path):
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(fd, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, data: Mapping[str, Any], mode: int = 0o600) -> None:
    """`write_atomically` for one JSON object, indented for people."""
    write_atomically(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n", mode)


def default_run_root(environ: Mapping[str, str]) -> Path:
    """`$TRAINUI_RUN_ROOT`, else `./runs`."""
    return Path(environ.get("TRAINUI_RUN_ROOT") or "runs")


def absolute(path: Path, cwd: Path) -> Path:
    """`path` as seen from `cwd`, with `~` and links resolved; it need not be there.

    Raises:
        RunDirError: a circle of links, or the home of nobody.
    """
    try:
        return (cwd / path.expanduser()).resolve()
    except RuntimeError as err:  # what pathlib raises for both
        text = str(err).rstrip(".")
        raise RunDirError(f"{path}: {text[:1].lower()}{text[1:]}", "choose another place with --run-root") from err


def list_runs(run_root: Path) -> list[RunPaths]:
    """All runs below `run_root`, newest first.

    By when the plan was written, not by the id alone: that is in local time, which goes back once a year and is another
    one in another time zone, and two runs may begin within a second.
    """
    found: list[tuple[int, str, Path]] = []
    try:
        names = [p for p in run_root.iterdir() if p.is_dir() and not p.is_symlink()]
    except OSError:
        return []
    for name in names:
        try:
            runs = [p for p in name.iterdir() if not p.is_symlink()]
        except OSError:
            continue
        found += [(written, run.name, run) for run in runs if (written := _written(run / "plan.json")) is not None]
    return [RunPaths(path) for _, _, path in sorted(found, reverse=True)]


def _written(plan: Path) -> int | None:
    """When a file was written (nanoseconds), or None where there is no such file."""
    try:
        found = plan.stat()
    except OSError:
        return None
    return found.st_mtime_ns if stat.S_ISREG(found.st_mode) else None


def find_run(run: str | None, run_root: Path) -> RunPaths:
    """The run that `run` names: a directory, an id, a unique prefix of one, or None for the newest.

    Raises:
        RunNotFound: none, or more than one.
    """
    if run and (Path(run) / "plan.json").is_file():
        return RunPaths(Path(run).resolve())
    runs = list_runs(run_root)
    if not run:
        if not runs:
            raise RunNotFound(f"there is no run below {run_root}", "name a run directory, or say --run-root DIR")
        return runs[0]
    exact = [r for r in runs if r.root.name == run]
    matches = exact or [r for r in runs if r.root.name.startswith(run)]
    if not matches:
        by_name = [r for r in runs if r.root.parent.name == run]
        if by_name:
            return by_name[0]
        if Path(run).is_dir():
            raise RunNotFound(f"{run} is a folder, but not a run directory", "`trainui ls` shows what is there")
        raise RunNotFound(f'no run "{run}" below {run_root}', "`trainui ls` shows what is there")
    if len(matches) > 1:
        some = ", ".join(r.root.name for r in matches[:4])
        raise RunNotFound(f'"{run}" could be any of {len(matches)} runs: {some}', "write more of the id")
    return matches[0]
