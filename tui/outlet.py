"""Writing to a stdout that may be slow, stuck or closed, without ever waiting for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
import time
from collections import deque

# Above this the reader is behind, and whoever produces should wait; log files are the buffer.
FULL_BYTES = 1024 * 1024
WRITE_BYTES = 64 * 1024


class Outlet:
    """A queue in front of a file descriptor, emptied by a thread of its own.

    The thread is there because writing blocks: `| less` that nobody scrolls, a terminal with Ctrl-S. Signals and
    the engine's news must get through all the same.

    Args:
        fd: where the bytes go; it stays open.
        full_bytes: from how many waiting bytes on it is `full`.
    """

    def __init__(self, fd: int, full_bytes: int = FULL_BYTES) -> None:
        self._fd = fd
        self._full = full_bytes
        self._queue: deque[bytes] = deque()
        self._waiting = 0  # bytes
        self._change = threading.Condition()
        self._moved_at = time.monotonic()
        self._error: OSError | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def error(self) -> OSError | None:
        """Why nothing can be written any more (EPIPE: the reader left), or None."""
        return self._error

    def put(self, text: str | bytes) -> None:
        """Append; never blocks. What comes after an error is dropped."""
        data = _encode(text) if isinstance(text, str) else text
        if not data or self._error is not None:
            return
        with self._change:
            if not self._waiting:
                self._moved_at = time.monotonic()
            self._queue.append(data)
            self._waiting += len(data)
            self._change.notify_all()
        if self._thread is None:
            # A daemon: at the end of the process nobody waits for a reader that does not read.
            self._thread = threading.Thread(target=self._work, name=f"outlet-{self._fd}", daemon=True)
            self._thread.start()

    @property
    def full(self) -> bool:
        """True while the reader is behind: produce no more."""
        return self._waiting > self._full

    @property
    def stuck_s(self) -> float:
        """For how long the reader has taken nothing although something waits, in seconds."""
        return time.monotonic() - self._moved_at if self._waiting else 0.0

    async def drain(self, patience_s: float, give_up: asyncio.Event | None = None) -> bool:
        """Wait until all is written.

        Args:
            patience_s: how long the reader may take nothing at all, in seconds.
            give_up: set from outside to wait no longer.

        Returns:
            False where something is left behind.
        """
        while self._waiting and self._error is None:
            if self.stuck_s > patience_s or (give_up is not None and give_up.is_set()):
                return False
            await asyncio.sleep(0.005)
        return self._error is None

    def close(self) -> None:
        """Let the thread end once it has written what is waiting; does not wait for it."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._queue:
                    if self._closed:
                        return
                    self._change.wait()
                batch = self._take()
            try:
                self._write(batch)
            except OSError as err:
                self._error = err
                with self._change:
                    self._queue.clear()
                    self._waiting = 0
                return

    def _take(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._queue and size < WRITE_BYTES:
            part = self._queue.popleft()
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def _write(self, batch: bytes) -> None:
        view = memoryview(batch)
        while view:
            try:
                count = os.write(self._fd, view[:WRITE_BYTES])
            except BlockingIOError:  # somebody made the shared terminal non-blocking
                with contextlib.suppress(OSError):
                    select.select([], [self._fd], [], 1.0)
                continue
            view = view[count:]
            with self._change:
                self._waiting -= count
                self._moved_at = time.monotonic()


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # a path's bytes as they are
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
