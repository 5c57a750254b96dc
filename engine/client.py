"""Front ends' way to a run: a live engine over its socket, or the folder of a finished run."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from engine.errors import EngineGone, EngineSilent, IntentRefused, RunNotFound
from engine.job.snapshot import RankView, Snapshot, rank_from_json, snapshot_from_json
from engine.rundir import RunPaths
from engine.session import Intent, MoreGrace, RestartJob, Session, StopJob, Update
from engine.whereabouts import EngineInfo, engine_lives, read_info, socket_places
from engine.wire import Decoder, WireError, encode

START_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 10.0
_INTENTS: dict[type[Any], str] = {StopJob: "stop", RestartJob: "restart", MoreGrace: "grace"}


class SocketSession:
    """A run with a live engine."""

    live = True

    def __init__(self, paths: RunPaths, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._paths = paths
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder()
        self._ranks: dict[int, RankView] = {}
        self._snapshot: Snapshot | None = None
        self._queue: asyncio.Queue[Update | None] = asyncio.Queue()
        self._pending: list[dict[str, Any]] = []
        self._fresh = asyncio.Event()
        self._ended: str | None = None  # "end", or "gone"
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._task = asyncio.create_task(self._read())

    @property
    def run_dir(self) -> Path:
        return self._paths.root

    @property
    def snapshot(self) -> Snapshot:
        assert self._snapshot is not None  # `connect` waited for the first one
        return self._snapshot

    async def first(self) -> None:
        """Wait for the first snapshot.

        Raises:
            EngineGone: the engine ended before it sent one.
        """
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while self._snapshot is None and self._ended is None:
                    self._fresh.clear()
                    await self._fresh.wait()
        except TimeoutError as err:
            raise _silent(self._paths) from err
        if self._snapshot is None:
            raise EngineGone("the engine of this run has just ended")
        self._fresh.set()

    async def updates(self) -> AsyncIterator[Update]:
        while True:
            await self._fresh.wait()
            self._fresh.clear()
            if self._ended == "gone":
                raise EngineGone("the engine of this run vanished", "`trainui attach` starts another one")
            events, self._pending = tuple(self._pending), []
            yield Update(self.snapshot, events)
            if self._ended == "end" and not self._pending:
                return

    async def do(self, intent: Intent) -> None:
        if self._ended is not None:
            raise EngineGone("the engine of this run has ended")
        self._next_id += 1
        number = self._next_id
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._writer.write(
                encode({"t": "do", "id": number, "intent": _INTENTS[type(intent)], "args": asdict(intent)})
            )
            await self._writer.drain()
            reply = await asyncio.wait_for(answer, ANSWER_TIMEOUT_S)
        except TimeoutError as err:
            raise _silent(self._paths) from err
        except ConnectionError as err:
            raise EngineGone("the engine of this run vanished") from err
        finally:
            self._answers.pop(number, None)
        if not reply.get("ok"):
            raise IntentRefused(str(reply.get("error", "the engine refused")))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(256 * 1024):
                for frame in self._decoder.feed(data):
                    self._take(frame.head)
        except (ConnectionError, WireError, KeyError, ValueError, TypeError):
            pass  # whatever it was, the engine cannot be understood any more
        finally:
            self._ended = self._ended or "gone"
            self._fresh.set()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(EngineGone("the engine of this run vanished"))

    def _take(self, head: dict[str, Any]) -> None:
        match head.get("t"):
            case "update":
                if head["full"]:
                    self._ranks.clear()
                for rank in head["ranks"]:
                    self._ranks[rank["rank"]] = rank_from_json(rank)
                bare = snapshot_from_json({**head["snapshot"], "ranks": []})
                self._snapshot = replace(bare, ranks=tuple(self._ranks.values()))
                self._pending += head["events"]
                self._fresh.set()
            case "re":
                answer = self._answers.get(head.get("id", -1))
                if answer is not None and not answer.done():
                    answer.set_result(head)
            case "end":
                self._ended = "end"
                self._fresh.set()
            case _:
                pass  # a newer engine may say more


class FinishedSession:
    """A run that nobody looks after: what its folder says."""

    live = False

    def __init__(self, paths: RunPaths, snapshot: Snapshot) -> None:
        self._paths = paths
        self._snapshot = snapshot

    @property
    def run_dir(self) -> Path:
        return self._paths.root

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    async def updates(self) -> AsyncIterator[Update]:
        yield Update(self._snapshot)

    async def do(self, intent: Intent) -> None:
        raise IntentRefused(
            "the run is over; nothing is left to stop"
            if isinstance(intent, StopJob)
            else "no engine looks after this run; `trainui restart` starts the next attempt"
        )

    async def close(self) -> None:
        return


def start_engine(paths: RunPaths, *, restart: bool = False, held: tuple[int, ...] = ()) -> None:
    """Start the detached engine process of a run, and return once it listens.

    Args:
        held: descriptors that it shall have too (`hold_start`).

    Raises:
        EngineGone: it does not come up; the message has the last words of engine.log.
    """
    boot = _boot_script()
    command = [sys.executable, "-P", str(boot), "--engine", str(paths.root), *(["--restart"] * restart)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=held
    )
    assert process.stdout is not None
    assert process.stderr is not None
    os.set_blocking(process.stdout.fileno(), False)
    said = b""
    deadline = time.monotonic() + START_TIMEOUT_S
    while b"\n" not in said and (left := deadline - time.monotonic()) > 0:
        if not select.select([process.stdout], [], [], left)[0]:
            break
        chunk = process.stdout.read()
        if not chunk:
            break
        said += chunk
    process.wait()
    early = process.stderr.read() if not said else b""
    process.stdout.close()
    process.stderr.close()
    if b"ready" not in said:
        told = (early or said).decode("utf-8", "replace").strip()
        words = told or _last_words(paths.engine_log)
        raise EngineGone(f"the engine of this run did not come up: {words or 'it said nothing'}")


def _boot_script() -> Path:
    """trainui_boot.py: beside the packages in a wheel, in tui/boot in a checkout."""
    root = Path(__file__).resolve().parents[1]
    for candidate in (root / "trainui_boot.py", root / "tui" / "boot" / "trainui_boot.py"):
        if candidate.is_file():
            return candidate
    raise EngineGone(f"trainui_boot.py is missing below {root}", "install trainui again")


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().split("\n")
    except OSError:
        return ""
    return lines[-1]


async def connect(paths: RunPaths) -> Session:
    """A session with the run's live engine.

    Raises:
        EngineGone: there is none, or it runs on another machine.
        EngineSilent: it does not answer.
    """
    try:
        reader, writer = await _knock(paths)
    except TimeoutError as err:
        raise _silent(paths) from err
    except OSError as err:
        if engine_lives(paths):
            place = _place(read_info(paths))
            raise EngineGone(f"the engine of this run ({place}) does not answer: {err.strerror or err}") from err
        raise EngineGone("no engine looks after this run") from err
    session = SocketSession(paths, reader, writer)
    try:
        await session.first()
    except BaseException:
        await session.close()
        raise
    return session


async def _knock(paths: RunPaths) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An open socket to the engine, wherever it listens.

    Raises:
        OSError: nobody does; TimeoutError, which is one: it takes nobody in.
    """
    refused: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for place in socket_places(paths):
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await asyncio.open_unix_connection(place)
        except TimeoutError:
            raise
        except OSError as err:
            refused = err
    raise refused


def _place(info: EngineInfo | None) -> str:
    return f"pid {info.pid} on {info.host}" if info else "somewhere"


def _silent(paths: RunPaths) -> EngineSilent:
    info = read_info(paths)
    hint = f"if it is stopped, `kill -CONT {info.pid}` wakes it" if info else "see engine.log in the run directory"
    return EngineSilent(f"the engine of this run ({_place(info)}) does not answer", hint)


def open_finished(paths: RunPaths) -> Session:
    """What the folder says of a run without an engine.

    Raises:
        RunNotFound: the folder does not hold a run.
    """
    snapshot = read_summary(paths)
    if snapshot is None:
        from engine.compose import replayed

        snapshot = replayed(paths)
    return FinishedSession(paths, snapshot)


def read_summary(paths: RunPaths) -> Snapshot | None:
    """summary.json, or None where there is none that can be read."""
    try:
        return snapshot_from_json(json.loads(paths.summary.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


async def attach(paths: RunPaths, *, start: bool = True) -> Session:
    """The live engine; else a new one where the run is not over and `start` is true; else the folder.

    Raises:
        EngineGone: a new engine does not come up.
        RunNotFound: the folder does not hold a run.
    """
    for _ in range(3):
        try:
            return await connect(paths)
        except EngineSilent:
            raise
        except EngineGone:
            if engine_lives(paths):
                # It is coming up or going down at this moment.
                await asyncio.sleep(0.2)
                continue
        if read_summary(paths) is not None or not start:
            return open_finished(paths)
        start_engine(paths)
    return await connect(paths)


async def restart(paths: RunPaths) -> Session:
    """The next attempt of a run: through its live engine, or with a new one.

    Raises:
        EngineGone, IntentRefused, RunNotFound: it cannot be done.
    """
    if not paths.launch.is_file():
        raise RunNotFound(f"{paths.root} has no launch.json, so it cannot be restarted")
    try:
        session = await connect(paths)
    except EngineSilent:
        raise
    except EngineGone:
        start_engine(paths, restart=True)
        return await connect(paths)
    await session.do(RestartJob())
    return session
