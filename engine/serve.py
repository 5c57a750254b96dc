"""The engine process of one run: detached from every terminal, reached over a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import socket
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.clock import SystemClock
from engine.compose import build_supervisor
from engine.errors import IntentRefused, RunDirError, TrainUIError
from engine.job.snapshot import RankView, Snapshot, rank_to_json
from engine.rundir import RunPaths
from engine.session import MoreGrace, RestartJob, StopJob
from engine.supervisor import Supervisor
from engine.whereabouts import socket_path, take_lock, write_info
from engine.wire import Decoder, WireError, encode

log = logging.getLogger("trainui.engine")

# After the run is over and the last front end has left, the engine waits so long for another one (seconds).
LINGER_S = 1.0
# A front end that has just started us needs this long at the most to connect (seconds).
FIRST_VISIT_S = 10.0
LOCK_TRIES = 60
LOCK_PAUSE_S = 0.05
READY = b"ready\n"
# Front ends that wait to be taken in.
BACKLOG = 100
# Open files: for the engine itself, kept free from front ends, and in all where a shell allows very few.
FEWEST_FILES, SPARE_FILES, WANTED_FILES = 32, 16, 256


def main(argv: list[str]) -> int:
    """Entry of the engine process: `RUN_DIR [--restart]`. Says `ready` on stdout once it listens."""
    paths = RunPaths(Path(argv[0]))
    _detach(paths)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        return asyncio.run(_serve(paths, restart="--restart" in argv[1:]))
    except TrainUIError as err:
        print(err, file=sys.stderr, flush=True)
        # Also to whoever started us: on a full disk engine.log says nothing.
        with contextlib.suppress(OSError):
            os.write(1, f"{err}\n".encode("utf-8", "replace"))
        return 1


def _detach(paths: RunPaths) -> None:
    """Own session, no terminal, output to engine.log; stdout stays open until `ready` was said."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        errors = os.open(paths.engine_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        errors = null  # a full disk must not keep the engine from its work
    os.dup2(errors, 2)


async def _serve(paths: RunPaths, *, restart: bool) -> int:
    limit = _enough_files()
    lock = await _lock(paths)
    if lock is None:
        # Somebody else was quicker; whoever started us finds that one.
        _say_ready()
        return 0
    where = socket_path(paths)
    where.unlink(missing_ok=True)
    engine = Engine(paths, build_supervisor(paths, SystemClock()), limit - SPARE_FILES)
    # asyncio tries `backlog` times in a row to take somebody in, and where no file can be opened any more it plans
    # as many tries for a second later, each of them the same: one is enough. The real backlog is set afterwards.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(where))
    server = await asyncio.start_unix_server(engine.welcome, sock=listener, backlog=1)
    listener.listen(BACKLOG)
    where.chmod(0o600)
    try:
        write_info(paths, where)
    except RunDirError as err:
        # A full disk: whoever looks for us finds the socket by the run's path too, and a job needs looking after.
        log.warning("%s", err)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, engine.terminate)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    engine.supervisor.start(restart=restart)
    _say_ready()
    try:
        await engine.until_idle()
    finally:
        # First no new front ends, then the last words to those who are there.
        server.close()
        await engine.close()
        where.unlink(missing_ok=True)
    return 0


def _enough_files() -> int:
    """How many files this process may have open, raised where a shell's `ulimit -S` is very low.

    Raises:
        TrainUIError: too few to look after a run.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    if soft < FEWEST_FILES:
        raise TrainUIError(f"it may open only {soft} files, and needs {FEWEST_FILES}", "see `ulimit -n`")
    return soft


async def _lock(paths: RunPaths) -> int | None:
    # Either an engine lives, or somebody is only asking whether one does.
    for _ in range(LOCK_TRIES):
        if (fd := take_lock(paths)) is not None:
            return fd
        await asyncio.sleep(LOCK_PAUSE_S)
    return None


def _say_ready() -> None:
    try:
        os.write(1, READY)
    except OSError:
        pass  # whoever started us has gone; the run goes on
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)


class Engine:
    """The supervisor, and the front ends that watch it."""

    def __init__(self, paths: RunPaths, supervisor: Supervisor, highest_file: int) -> None:
        """`highest_file`: a front end whose descriptor is above it finds no room."""
        self._highest_file = highest_file
        self.paths = paths
        self.supervisor = supervisor
        self._visitors: set[asyncio.Task[None]] = set()
        self._visited = False
        self._terminated = False
        self._left = asyncio.Event()

    def terminate(self) -> None:
        """SIGTERM to the engine: stop the job, then go, whoever is watching."""
        self._terminated = True
        if not self.supervisor.state.phase.final:
            self.supervisor.do(StopJob())
        self._left.set()

    async def until_idle(self) -> None:
        """Return when the run is over and nobody is attached."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            await self.supervisor.over.wait()
            if self._terminated:
                return
            self._left.clear()
            wait = LINGER_S if self._visited else max(LINGER_S, FIRST_VISIT_S - (loop.time() - started))
            try:
                await asyncio.wait_for(self._left.wait(), None if self._visitors else wait)
            except TimeoutError:
                if not self._visitors and self.supervisor.over.is_set():
                    return

    async def close(self) -> None:
        """Tell every front end that this is an orderly end, and leave."""
        self.supervisor.hub.close()
        if self._visitors:
            _, slow = await asyncio.wait(set(self._visitors), timeout=2.0)
            for task in slow:
                task.cancel()
        await self.supervisor.close()

    async def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One front end, from its coming to its leaving."""
        task = asyncio.current_task()
        assert task is not None
        if not _same_user(writer) or writer.get_extra_info("socket").fileno() > self._highest_file:
            # Without descriptors of our own we could neither reach the nodes nor write anything down.
            writer.close()
            return
        self._visited = True
        self._visitors.add(task)
        try:
            await self._visit(reader, writer)
        except (ConnectionError, WireError, asyncio.CancelledError):
            pass  # a front end that vanished costs nothing
        finally:
            self._visitors.discard(task)
            self._left.set()
            writer.close()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        teller = asyncio.create_task(self._tell(writer))
        listener = asyncio.create_task(self._listen(reader, writer))
        try:
            await asyncio.wait({teller, listener}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            teller.cancel()
            listener.cancel()
            await asyncio.gather(teller, listener, return_exceptions=True)

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        subscription = self.supervisor.hub.subscribe()
        sent: Snapshot | None = None
        try:
            async for update in subscription.updates():
                writer.write(encode(update_frame(sent, update.snapshot, update.events, time.time())))
                sent = update.snapshot
                await writer.drain()
            writer.write(encode({"t": "end"}))
            await writer.drain()
        finally:
            self.supervisor.hub.leave(subscription)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = Decoder()
        while data := await reader.read(64 * 1024):
            for frame in decoder.feed(data):
                if frame.type == "do":
                    writer.write(encode({"t": "re", "id": frame.head.get("id"), **self._do(frame.head)}))
        # A front end may close its sending side only when it leaves.

    def _do(self, head: dict[str, Any]) -> dict[str, Any]:
        kinds = {"stop": StopJob, "restart": RestartJob, "grace": MoreGrace}
        try:
            intent = kinds[head["intent"]](**head.get("args", {}))
            self.supervisor.do(intent)
        except IntentRefused as err:
            return {"ok": False, "error": err.message}
        except (KeyError, TypeError):
            return {"ok": False, "error": f"this engine does not know the request {json.dumps(head)[:200]}"}
        return {"ok": True}


def update_frame(sent: Snapshot | None, snapshot: Snapshot, events: tuple[Any, ...], now: float) -> dict[str, Any]:
    """One update: the snapshot without ranks, and those ranks that changed since `sent` (None: all)."""
    known: dict[int, RankView] = {} if sent is None else {r.rank: r for r in sent.ranks}
    changed = [r for r in snapshot.ranks if known.get(r.rank) is not r and known.get(r.rank) != r]
    return {
        "t": "update",
        "full": sent is None,
        "snapshot": replace(snapshot, ranks=()).to_json(now),
        "ranks": [rank_to_json(r, now) for r in changed],
        "events": list(events),
    }


def _same_user(writer: asyncio.StreamWriter) -> bool:
    peer: socket.socket = writer.get_extra_info("socket")
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return uid in (os.getuid(), 0)
