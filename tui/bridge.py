"""From the session to the console: newest snapshot, one message for each update, and healing where it breaks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from textual.message import Message

from engine.errors import EngineGone, TrainUIError
from engine.job.snapshot import Snapshot
from engine.logs.last import last_line
from engine.parse.ansi import clean_label, plain
from engine.session import Intent, Session
from tui.messages import Changed, EngineFound, EngineLost, SessionOver

Reconnect = Callable[[], Awaitable[Session]]
# When to try again after the engine vanished, in seconds: a new one needs a moment to find the agents.
RETRY_S = (0.2, 1.0, 2.0, 4.0, 8.0)
_CACHED = 2048


class Bridge:
    """Follows a session until it ends.

    Args:
        session: the run.
        tell: takes the messages of `tui.messages`.
        reconnect: opens a new session where the engine vanished; None: there is no way.
        retry_s: pauses before each try, in seconds.
    """

    def __init__(
        self,
        session: Session,
        tell: Callable[[Message], object],
        reconnect: Reconnect | None,
        retry_s: Sequence[float] = RETRY_S,
    ) -> None:
        self.snapshot: Snapshot = session.snapshot
        self._session = session
        self._tell = tell
        self._reconnect = reconnect
        self._retry_s = retry_s
        self._ours: Session | None = None  # one that we opened, and have to close

    async def run(self) -> None:
        """Tell what comes, until nothing can come any more."""
        while True:
            try:
                async for update in self._session.updates():
                    self.snapshot = update.snapshot
                    self._tell(Changed(update))
            except EngineGone as fault:
                if self.snapshot.over:  # it had nothing left to do
                    self._tell(SessionOver())
                    return
                if not await self._heal(str(fault)):
                    return
                continue
            self._tell(SessionOver())
            return

    async def do(self, intent: Intent) -> str | None:
        """Ask the engine for something. Returns why it will not, as a sentence, or None."""
        try:
            await self._session.do(intent)
        except TrainUIError as fault:
            return str(fault)
        return None

    async def close(self) -> None:
        """Leave a session that we opened ourselves."""
        if self._ours is not None:
            await self._ours.close()

    async def _heal(self, why: str) -> bool:
        if self._reconnect is None:
            self._tell(EngineLost(why, final=True))
            return False
        self._tell(EngineLost(why, final=False))
        for pause in self._retry_s:
            await asyncio.sleep(pause)
            try:
                session = await self._reconnect()
            except TrainUIError as fault:
                why = str(fault)
                continue
            await self.close()
            self._session = self._ours = session
            self.snapshot = session.snapshot
            self._tell(EngineFound())
            return True
        self._tell(EngineLost(why, final=True))
        return False


class LastLines:
    """The last line of each log, read from its file when it changed and at most once a round.

    Args:
        run_dir: where the logs are.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._round = 0
        self._known: OrderedDict[str, tuple[int, tuple[int, int], str]] = OrderedDict()

    def next_round(self) -> None:
        """Files may be looked at again."""
        self._round += 1

    def text(self, log: str) -> str:
        """The last line of a log (a path relative to the run directory), safe to draw; "" where there is none."""
        known = self._known.get(log)
        if known is not None and known[0] == self._round:
            return known[2]
        path = self._run_dir / log
        try:
            status = path.stat()
            stamp = (status.st_size, status.st_mtime_ns)
            text = known[2] if known is not None and known[1] == stamp else clean_label(plain(last_line(path))).strip()
        except OSError:
            stamp, text = (0, 0), ""  # not written yet, or gone: the log pane says why
        self._known[log] = (self._round, stamp, text)
        self._known.move_to_end(log)
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return text
