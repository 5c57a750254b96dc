"""Decides what is copied from one node, and holds back news of ends until the copies tell of them too.

Who looks at a rank's log because it is said to have failed must find there why. Everything happens on one loop;
what goes to the agent is handed to `send`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.logs.mirror import Key, Mirror, Taken
from engine.wire import Frame

log = logging.getLogger("trainui.engine")

# How long a failure may wait for the last lines of its log (seconds): the others of the job are stopped because of it.
FAILURE_WAIT_S = 2.0
# The same for "this node is down", after which the run may be called over.
DOWN_WAIT_S = 10.0
RETRY_S = 2.0
# Without a byte for so long, the rest of the logs stays on the node when the run is over (seconds): three pings.
GIVE_UP_S = 30.0


@dataclass(frozen=True, slots=True)
class _Held:
    """News that waits: its frame's header, how to pass it on, and when at the latest (loop time)."""

    head: Mapping[str, Any]
    tell: Callable[[], None]
    until: float


class Copier:
    """One node's copies. Where the node shares the disk, it passes everything on at once and copies nothing."""

    def __init__(
        self,
        mirror: Mirror,
        *,
        send: Callable[[dict[str, Any]], None],
        on_fault: Callable[[str | None], None],
        shared: bool | None = None,
    ) -> None:
        """
        Args:
            send: takes requests to the agent, in order.
            on_fault: told when copies cannot be written, and with None when they can again.
            shared: what the config says about the disk; None: the agent finds out.
        """
        self._mirror = mirror
        self._send = send
        self._on_fault = on_fault
        self._forced = shared
        self._copies = shared is False
        self._connected = False
        self._asked: set[Key] = set()  # subscribed on this channel
        self._missing: set[Key] = set()  # not whole yet, as far as is known; outlives the channel
        self._ended: set[Key] = set()  # the agent said that this was all, for now
        self._again: set[Key] = set()  # asked once more because of a gap
        self._held: deque[_Held] = deque()
        self._wake: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._stuck: set[Key] = set()  # unsubscribed, because the copy cannot be written
        self._trying: set[Key] = set()  # subscribed again since, and nothing has come yet
        self._moved = asyncio.Event()
        self._said: str | None = None

    # -- the channel --

    def opened(self) -> None:
        """A new channel: nothing is subscribed on it."""
        self._connected = True
        self._asked.clear()
        self._again.clear()

    def closed(self) -> None:
        """The channel is gone: what waited for it is told as it is."""
        self._connected = False
        self._stuck.clear()
        self._trying.clear()
        self._pass_on(all_of_them=True)

    def close(self) -> None:
        """No more."""
        for timer in (self._wake, self._retry):
            if timer is not None:
                timer.cancel()
        self._wake = self._retry = None
        self._mirror.remove_token()
        self._mirror.close()

    # -- news --

    def offer(self, head: Mapping[str, Any], tell: Callable[[], None]) -> None:
        """Pass news that were looked at on by `tell`, in order, at once or when the copies are as far."""
        if self._copies:
            wait = DOWN_WAIT_S if head.get("phase") == "down" else FAILURE_WAIT_S
            self._held.append(_Held(head, tell, asyncio.get_running_loop().time() + wait))
            self._pass_on()
        else:
            tell()

    def look(self, head: Mapping[str, Any]) -> None:
        """Subscribe to what the news (the header of a frame) are about, and write down ends.

        Raises:
            KeyError, TypeError, ValueError: they are not of our agent.
        """
        kind, attempt = head.get("t"), head.get("attempt")
        if kind == "state":
            shared = head.get("shared") if self._forced is None else self._forced
            self._copies = shared is not True
            if not self._copies:
                self._stop_copying()
        if not self._copies or not isinstance(attempt, int):
            return
        if kind == "spawned":
            self._subscribe((attempt, head["rank"]))
        elif kind == "exit":
            self._record(attempt, head, head["at"])
        elif kind == "state":
            self._look_at_state(attempt, head)

    def _stop_copying(self) -> None:
        """The disk is shared after all: what was asked for is here already."""
        for attempt, rank in self._asked:
            self._send({"t": "unsubscribe", "attempt": attempt, "rank": rank})
        for keys in (self._asked, self._missing, self._stuck, self._trying):
            keys.clear()
        self._pass_on(all_of_them=True)

    def _look_at_state(self, attempt: int, head: Mapping[str, Any]) -> None:
        for rank in head.get("ranks", []):
            if rank.get("pid") is not None:
                self._subscribe((attempt, rank["rank"]))
            if rank.get("ended_at") is not None:
                self._record(attempt, rank, rank["ended_at"])
        logs: Mapping[str, Mapping[str, int]] = head.get("logs") or {}
        for number, sizes in logs.items():
            for rank, size in sizes.items():
                key = (int(number), int(rank))
                if key[0] < attempt and (self._mirror.size(*key) < size or key in self._missing):
                    self._subscribe(key)

    def _record(self, attempt: int, rank: Mapping[str, Any], ended_at: float) -> None:
        self._mirror.record_exit(attempt, rank, ended_at)
        self._after_writing()

    # -- logs --

    def take(self, frame: Frame) -> None:
        """A `log` or `logend` frame.

        Raises:
            KeyError, TypeError: it is not one of our agent.
        """
        head = frame.head
        key: Key = (head["attempt"], head["rank"])
        if key not in self._missing or not self._copies:
            return
        if frame.type == "log":
            self._take_log(key, frame)
        elif key not in self._stuck and self._mirror.size(*key) >= head["size"]:
            self._ended.add(key)
            self._trying.discard(key)
            if head.get("final"):
                self._mirror.end(*key)
                self._missing.discard(key)
                self._asked.discard(key)
            self._pass_on()
        self._moved.set()

    def _take_log(self, key: Key, frame: Frame) -> None:
        if key in self._stuck:
            return
        taken = self._mirror.take(frame.head, frame.payload)
        if taken is Taken.OK:
            self._again.discard(key)
            self._trying.discard(key)
        elif taken is Taken.STUCK:
            # Until the disk takes it, it need not travel.
            self._stuck.add(key)
            self._send({"t": "unsubscribe", "attempt": key[0], "rank": key[1]})
        elif key not in self._again:
            self._again.add(key)
            self._send(self._mirror.subscription(*key))
        self._after_writing()

    def _subscribe(self, key: Key) -> None:
        if key not in self._asked:
            self._asked.add(key)
            self._missing.add(key)
            self._ended.discard(key)
            self._send(self._mirror.subscription(*key))

    def _after_writing(self) -> None:
        """Say, or take back, that something cannot be written; try again later."""
        if not self._stuck and not self._trying and not self._mirror.waiting_records:
            self._mirror.error = None
        if self._mirror.error != self._said:
            self._said = self._mirror.error
            self._on_fault(self._said)
        if self._said is not None and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._mirror.write_records()
        stuck, self._stuck = self._stuck, set()
        if self._connected:
            for key in stuck:
                self._trying.add(key)
                self._send(self._mirror.subscription(*key))
        self._after_writing()

    # -- what waits --

    def _waits(self, head: Mapping[str, Any]) -> bool:
        """True while the copies do not tell yet what the news tell."""
        attempt = head.get("attempt")
        if attempt is None:
            return False
        if head.get("phase") == "down" and any(key[0] == attempt for key in self._missing):
            return True
        ranks = [head] if head.get("t") == "exit" else head.get("ranks", [])
        return any(
            _failed(rank) and (attempt, rank["rank"]) in self._missing and (attempt, rank["rank"]) not in self._ended
            for rank in ranks
        )

    def _pass_on(self, *, all_of_them: bool = False) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        while self._held:
            first = self._held[0]
            loop = asyncio.get_running_loop()
            if not all_of_them and loop.time() < first.until and self._waits(first.head):
                self._wake = loop.call_at(first.until, self._pass_on)
                return
            self._held.popleft()
            first.tell()

    async def whole(self) -> bool:
        """Wait until everything is copied, as long as something comes; False: a part is only on the node."""
        while self._missing:
            self._moved.clear()
            try:
                await asyncio.wait_for(self._moved.wait(), GIVE_UP_S)
            except TimeoutError:
                left = len(self._missing)
                logs = "1 log is" if left == 1 else f"{left} logs are"
                self._on_fault(f"{logs} not copied to the end: the rest is in the node's own folder")
                return False
        return True


def _failed(rank: Mapping[str, Any]) -> bool:
    """True for a rank that ended by itself, and not well."""
    if rank.get("by_us") or rank.get("lost"):
        return False
    return bool(rank.get("code")) or rank.get("signal") is not None
