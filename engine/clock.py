"""The only reader of time; tests inject a clock of their own."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Two times: one to write down, one to measure with."""

    def wall(self) -> float:
        """Unix time in seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never jumps."""
        ...


class SystemClock:
    """The machine's clock."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves when told to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`."""
        self.now += seconds


def rfc3339(unix_s: float | None) -> str | None:
    """`2026-12-01T03:26:54.123Z` for a Unix time in seconds; None stays None."""
    if unix_s is None:
        return None
    moment = datetime.fromtimestamp(unix_s, tz=UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def from_rfc3339(text: str | None) -> float | None:
    """The Unix time in seconds of what `rfc3339` wrote.

    Raises:
        ValueError: `text` is no RFC 3339 time.
    """
    return None if text is None else datetime.fromisoformat(text).timestamp()
