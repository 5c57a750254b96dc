"""A real engine, a real agent and real ranks, driven through the Session that front ends use."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engine import client, compose
from engine.errors import IntentRefused, TrainUIError
from engine.rundir import RunPaths
from engine.session import Session, StopJob
from engine.whereabouts import read_info

PATIENCE_S = 30.0


class Lab:
    """Launches runs below one folder, and leaves nothing of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: list[RunPaths] = []
        self.sessions: list[Session] = []

    def write(self, config: dict[str, Any]) -> RunPaths:
        """The run directory of a config, without an engine yet. JSON is YAML."""
        file = self.folder / "job.yml"
        file.write_text(json.dumps(config))
        prepared = compose.prepare(
            str(file), [], run_root=self.folder / "runs", name=None, environ=os.environ, cwd=self.folder, stdin=None
        )
        paths = compose.write_run(prepared)
        self.runs.append(paths)
        return paths

    async def attach(self, paths: RunPaths) -> Session:
        session = await client.attach(paths)
        self.sessions.append(session)
        return session

    async def launch(self, code: str, ranks: int = 2, **config: Any) -> tuple[RunPaths, Session]:
        """Run `python -c code` on `ranks` ranks."""
        task = {"command": [sys.executable, "-c", code]}
        cluster = {"nproc_per_node": ranks, "gpu_binding": "none"}
        paths = self.write({"task": task, "cluster": cluster, "stop": {"grace_s": 1}, **config})
        client.start_engine(paths)
        return paths, await self.attach(paths)

    async def until(self, session: Session, condition: Callable[[Any], bool], what: str = "condition") -> Any:
        """The first snapshot for which `condition` holds."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for update in session.updates():
                    if condition(update.snapshot):
                        return update.snapshot
        except TimeoutError:
            pass
        raise AssertionError(f"{what} did not come; the run: {json.dumps(session.snapshot.to_json(0), indent=1)}")

    async def running(self, session: Session) -> Any:
        return await self.until(session, lambda s: s.phase == "running", "running")

    async def over(self, session: Session) -> Any:
        return await self.until(session, lambda s: s.phase.final, "the end")

    async def close(self) -> None:
        for session in self.sessions:
            await session.close()
        for paths in self.runs:
            await self._end(paths)
            await eventually(lambda p=paths: not engine_pid(p), "the engine's end")

    async def _end(self, paths: RunPaths) -> None:
        try:
            session = await client.attach(paths)
        except TrainUIError:
            return  # there is nothing to end
        try:
            if session.live and not session.snapshot.phase.final:
                # It may end by itself at this moment.
                with suppress(IntentRefused):
                    await session.do(StopJob(kill=True))
                await self.over(session)
        finally:
            await session.close()


def engine_pid(paths: RunPaths) -> int | None:
    """The pid of the run's engine while it lives."""
    info = read_info(paths)
    return info.pid if info and alive(info.pid) else None


def agent_pid(paths: RunPaths) -> int:
    """The pid that the node's agent wrote down."""
    return int(json.loads(next(paths.root.glob("nodes/*/agent.json")).read_text())["pid"])


def alive(pid: int) -> bool:
    """True for a process that is not a zombie (pid 1 may reap late)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def of_run(paths: RunPaths) -> list[int]:
    """Living processes that carry the run's id in their environment."""
    mark = f"TRAINUI_RUN_ID={paths.root.name}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0") and alive(int(entry.name)):
                    found.append(int(entry.name))
    return found


async def eventually(condition: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
    """Poll until `condition` is true."""
    try:
        async with asyncio.timeout(limit_s):
            while not (value := condition()):
                await asyncio.sleep(0.02)
            return value
    except TimeoutError:
        raise AssertionError(f"{what} did not come within {limit_s:.0f} s") from None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    await lab.close()


@pytest.fixture
def tools() -> Any:
    """The helpers of this file (test modules cannot import each other)."""
    import types

    return types.SimpleNamespace(
        engine_pid=engine_pid, agent_pid=agent_pid, alive=alive, of_run=of_run, eventually=eventually, kill=kill
    )
