"""Fan-out of snapshots and events to front ends: a slow one skips, and is never waited for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from engine.job.snapshot import Snapshot
from engine.session import Update

# Updates a second for each front end: people read no faster.
MAX_HZ = 10.0
# Events kept for a front end that does not read; beyond that the oldest go (events.jsonl has them all).
MAX_EVENTS = 4096


class Subscription:
    """One front end's view. The first update comes at once; then each change, at most `MAX_HZ` a second."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._changed = asyncio.Event()
        self._changed.set()
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._sent_at = float("-inf")

    def push(self, event: dict[str, Any] | None) -> None:
        """Note that something changed."""
        if event is not None:
            self._events.append(event)
        self._changed.set()

    async def updates(self) -> AsyncIterator[Update]:
        """The current state, then changes, until `close` of the hub."""
        loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            pause = self._sent_at + 1.0 / MAX_HZ - loop.time()
            if pause > 0 and not self._hub.closed:
                await asyncio.sleep(pause)
            self._changed.clear()
            events = tuple(self._events)
            self._events.clear()
            self._sent_at = loop.time()
            yield Update(self._hub.snapshot(), events)
            if self._hub.closed and not self._changed.is_set():
                return


class Hub:
    """All subscriptions of a run."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._make = snapshot
        self._cached: Snapshot | None = None
        self._subscriptions: set[Subscription] = set()
        self.closed = False

    def snapshot(self) -> Snapshot:
        """The newest snapshot; made once for all who ask between two changes."""
        if self._cached is None:
            self._cached = self._make()
        return self._cached

    def publish(self, event: dict[str, Any] | None = None) -> None:
        """Something changed: `event` is a line of events.jsonl, or None where only figures moved."""
        self._cached = None
        for subscription in self._subscriptions:
            subscription.push(event)

    def subscribe(self) -> Subscription:
        """A new subscription; snapshot and subscription are one step, so nothing falls between."""
        subscription = Subscription(self)
        self._subscriptions.add(subscription)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Forget a subscription."""
        self._subscriptions.discard(subscription)

    def close(self) -> None:
        """Let every `updates()` end after what is still to be told."""
        self.closed = True
        self.publish()
