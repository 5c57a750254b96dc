"""A run without a screen: logs on stdout, life-cycle lines on stderr, a summary last, the job's exit status."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from engine.clock import Clock, SystemClock
from engine.errors import EXIT_OK, EXIT_TERMINATED, EXIT_UNAVAILABLE, EngineGone, EngineSilent, TrainUIError
from engine.job.snapshot import Snapshot
from engine.logs.tail import LogTail, Pace
from engine.model import Phase
from engine.parse.lines import Line, LineAssembler
from engine.session import Session, StopJob
from tui.event_text import Event, Level
from tui.outlet import Outlet
from tui.pump import Feed, LogPump
from tui.render_text import survivor_text
from tui.signals import SignalInbox

# After the end, how long stdout may take nothing at all before we leave without it (seconds).
STUCK_STDOUT_S = 60.0
STUCK_STDERR_S = 2.0
# An engine that vanishes twice within this time is not attached to again (seconds).
RECONNECT_AFTER_S = 5.0
# A third Ctrl-C so long after the second means: whatever it was that should die, I will not wait for it (seconds).
LEAVE_AFTER_S = 2.0

Reconnect = Callable[[], Awaitable[Session]]


class Printer(Protocol):
    """What becomes of lines, events and the end: text or JSON."""

    logs: bool  # whether log lines are wanted at all
    bars: bool  # whether the states of unfinished progress bars are wanted

    def lines(self, feed: Feed, lines: Sequence[Line]) -> None:
        """Lines of a rank's log."""
        ...

    def events(self, batch: Sequence[Event], snapshot: Snapshot) -> None:
        """Life-cycle events, in order."""
        ...

    def say(self, text: str, level: Level = Level.WARNING) -> None:
        """A sentence of our own, on stderr."""
        ...

    def summary(self, snapshot: Snapshot) -> None:
        """The run is over, as far as we look at it."""
        ...

    def left(self, snapshot: Snapshot) -> None:
        """We leave, the job runs on."""
        ...


class EventFeed:
    """The objects of events.jsonl, from its start, as they are appended."""

    def __init__(self, path: Path) -> None:
        self._tail = LogTail(path)
        self._lines = LineAssembler()

    def poll(self) -> list[dict[str, Any]]:
        """What is new."""
        events: list[dict[str, Any]] = []
        while data := self._tail.poll():
            for line in self._lines.feed(data):
                try:
                    event: Any = json.loads(line.raw)
                except (ValueError, RecursionError):
                    continue  # a line torn by a crash of an engine; the next one starts anew
                if isinstance(event, dict):
                    events.append(event)  # pyright: ignore[reportUnknownArgumentType]
        return events

    def close(self) -> None:
        """Let go of the file."""
        self._tail.close()


def exit_status(snapshot: Snapshot) -> int:
    """The status to exit with once a run is over or stuck (contract, section 2)."""
    if snapshot.stuck or not snapshot.phase.final:
        return EXIT_UNAVAILABLE
    if snapshot.exit_status is not None:
        return snapshot.exit_status
    by_phase = {Phase.SUCCEEDED: EXIT_OK, Phase.STOPPED: EXIT_TERMINATED, Phase.FAILED: 1}
    return by_phase.get(snapshot.phase, EXIT_UNAVAILABLE)


class Headless:
    """Follows one run until it is over, or until it is told to leave.

    Args:
        session: the run.
        printer: what becomes of everything.
        out: stdout.
        err: stderr.
        signals: SIGINT and SIGTERM stop the job (the second time at once), SIGHUP leaves it alone.
        reconnect: opens the run again when its engine vanished.
        read_only: SIGINT and SIGTERM leave too.
        clock: injected by tests.
    """

    def __init__(
        self,
        session: Session,
        printer: Printer,
        out: Outlet,
        err: Outlet,
        *,
        signals: SignalInbox,
        reconnect: Reconnect,
        read_only: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._session = session
        self._printer = printer
        self._out = out
        self._err = err
        self._signals = signals
        self._reconnect = reconnect
        self._read_only = read_only
        self._clock = clock or SystemClock()
        self._snapshot = session.snapshot
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()  # asked to leave while only output is left
        self._stops = 0
        self._killed_at = 0.0  # monotonic
        self._given_up = False  # we leave although the stop is not confirmed
        self._owed: StopJob | None = None  # a stop that no engine has accepted yet
        self._leaving: str | None = None  # why we leave a running job
        self._gone = False  # the engine is gone for good
        self._asking: set[asyncio.Task[None]] = set()
        self._events = EventFeed(session.run_dir / "events.jsonl")
        self._pump = LogPump(session.run_dir, printer.lines, self._clock, bars=printer.bars, complain=printer.say)

    async def run(self) -> int:
        """Follow the run; returns the status to exit with."""
        self._signals.listen(asyncio.get_running_loop(), self._on_signal)
        watch = asyncio.create_task(self._watch())
        try:
            await self._print_all(watch)
            return await self._leave() if self._leaving else await self._finish()
        finally:
            self._signals.ignore()
            for task in (watch, *self._asking):
                task.cancel()
            await asyncio.gather(watch, *self._asking, return_exceptions=True)
            self._events.close()
            await self._session.close()

    @property
    def _done(self) -> bool:
        return self._snapshot.over or self._snapshot.stuck or self._gone

    async def _print_all(self, watch: asyncio.Task[None]) -> None:
        pace = Pace()
        while not self._leaving:
            done = self._done  # asked before reading: what is written after it would be missed
            self._wake.clear()
            got_some = await self._print_news()
            if watch.done():
                watch.result()  # a bug of ours surfaces here
            if self._out.error is not None and not done:
                self._leaving = f"stdout is closed ({self._out.error.strerror})"
            if (done and not got_some) or self._hurry.is_set() or self._out.error is not None:
                return
            try:
                async with asyncio.timeout(pace.next(got_some)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _print_news(self) -> bool:
        events = self._events.poll()
        if events:
            self._printer.events(events, self._snapshot)
        if not self._printer.logs:
            return bool(events)
        self._pump.see(self._snapshot)
        return await self._pump.step(self._room) or bool(events)

    async def _room(self) -> bool:
        """Wait until stdout takes more; False when we shall not wait for it."""
        while self._out.full and self._out.error is None:
            if self._leaving or self._hurry.is_set() or (self._done and self._out.stuck_s > STUCK_STDOUT_S):
                self._hurry.set()
                return False
            await asyncio.sleep(0.01)
        # The loop must get its turn even where stdout takes everything at once.
        await asyncio.sleep(0)
        return self._leaving is None

    async def _watch(self) -> None:
        """Keep the snapshot fresh until the run is over."""
        last_loss = float("-inf")
        while True:
            try:
                async for update in self._session.updates():
                    self._show(update.snapshot)
                self._show(self._session.snapshot)
                if self._done:
                    return
                raise EngineGone("the engine ended before the run was over")
            except EngineGone as err:
                now = self._clock.monotonic()
                again = now - last_loss > RECONNECT_AFTER_S
                last_loss = now
                if not again or not await self._heal(err):
                    self._gone = True
                    self._wake.set()
                    return

    def _show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._wake.set()

    async def _heal(self, why: EngineGone) -> bool:
        self._printer.say(f"{why}; attaching again")
        try:
            session = await self._reconnect()
        except TrainUIError as err:
            self._printer.say(str(err), Level.ERROR)
            return False
        old, self._session = self._session, session
        await old.close()
        if self._owed is not None:
            self._ask(self._owed)
        return True

    def _on_signal(self, number: int) -> None:
        self._wake.set()
        if self._done:
            self._hurry.set()
        elif number == signal.SIGHUP:
            self._leaving = "the terminal is gone"
        elif self._read_only or not self._session.live:
            self._leaving = "read-only" if self._read_only else "interrupted"
        else:
            self._stop("sigint" if number == signal.SIGINT else "other")

    def _stop(self, origin: str) -> None:
        """The first time gracefully, the second time at once; asked on, for what cannot be stopped, we leave."""
        self._stops += 1
        now = self._clock.monotonic()
        if self._stops == 1:
            self._printer.say("stopping the job; once more kills it at once")
        elif self._stops == 2:
            self._killed_at = now
        else:
            if now - self._killed_at >= LEAVE_AFTER_S:
                self._given_up = True
                self._leaving = "not everything of it is confirmed to be down"
            return
        self._ask(StopJob(origin=origin, kill=self._stops > 1))

    def _ask(self, intent: StopJob) -> None:
        task = asyncio.create_task(self._do(intent))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _do(self, intent: StopJob) -> None:
        self._owed = intent
        try:
            await self._session.do(intent)
        except EngineSilent as err:
            self._printer.say(str(err))
        except EngineGone:
            return  # `_watch` sees it too, opens the run again and asks once more
        except TrainUIError as err:
            self._printer.say(str(err))
        if self._owed is intent:
            self._owed = None

    async def _leave(self) -> int:
        run_id = self._snapshot.run_id
        if self._given_up:
            self._printer.say(f"left: {self._leaving}: trainui stop {run_id} tries again", Level.ERROR)
        else:
            self._printer.say(f"detached: {self._leaving}; the job runs on: trainui attach {run_id}", Level.ERROR)
        self._printer.left(self._snapshot)
        await self._out.drain(STUCK_STDERR_S, self._hurry)
        await self._err.drain(STUCK_STDERR_S)
        return EXIT_UNAVAILABLE if self._given_up else EXIT_OK

    async def _finish(self) -> int:
        self._pump.finish()
        snapshot = self._snapshot
        if self._gone:
            self._printer.say(
                f"nobody looks after the run any more: trainui attach {snapshot.run_id} tries again", Level.ERROR
            )
        if snapshot.stuck:
            for survivor in snapshot.survivors:
                self._printer.say(f"could not be killed: {survivor_text(survivor)}", Level.ERROR)
        await self._err.drain(STUCK_STDERR_S)  # the summary is what stands last on a terminal
        self._printer.summary(snapshot)
        if not await self._out.drain(STUCK_STDOUT_S, self._hurry):
            self._printer.say(f"not everything could be written to stdout; all of it is in {snapshot.run_dir}")
            await self._err.drain(STUCK_STDERR_S)
        return exit_status(snapshot)
