"""All that a front end sees of a run. Implemented over the engine's socket and over a finished run's folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine.job.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Update:
    """What changed: the newest snapshot, and the life-cycle events since the last update.

    `events` are objects as they stand in events.jsonl: `{"at": ..., "event": "rank_exited", ...}`.
    """

    snapshot: Snapshot
    events: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class StopJob:
    """SIGTERM, grace, SIGKILL (`kill`: at once). `origin`: "sigint" here, "other" elsewhere (section 2)."""

    origin: str = "other"
    kill: bool = False


@dataclass(frozen=True, slots=True)
class RestartJob:
    """Stop what runs, then start the next attempt."""


@dataclass(frozen=True, slots=True)
class MoreGrace:
    """While stopping: SIGKILL comes `seconds` later."""

    seconds: float = 30.0


Intent = StopJob | RestartJob | MoreGrace


class Session(Protocol):
    """A run as a front end sees it. Log text is read from files (`engine.logs`), not through here."""

    @property
    def run_dir(self) -> Path:
        """Where the run's files are."""
        ...

    @property
    def live(self) -> bool:
        """True while an engine looks after the run; False: the run is over, `do` refuses."""
        ...

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        ...

    def updates(self) -> AsyncIterator[Update]:
        """The current snapshot first, then each change, at most 10 a second; slow readers skip, never wait.

        Ends when the engine has ended in order (the run is over).

        Raises:
            EngineGone: the engine vanished.
        """
        ...

    async def do(self, intent: Intent) -> None:
        """Ask the engine to do something; returns once it has accepted.

        Raises:
            IntentRefused: it will not; the message says why.
            EngineGone: nobody is there.
        """
        ...

    async def close(self) -> None:
        """Leave. The run goes on."""
        ...
