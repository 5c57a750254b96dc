"""One exec channel as a pair of byte streams: what arrives is kept for the reader, who may be slow."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import asyncssh

# Bounds one channel to window / round trip: 8 MiB still give 80 MB/s at 100 ms. Also what a stopped reader can pile up.
WINDOW_BYTES = 8 * 1024 * 1024
# Beyond this the reader is behind, and asyncssh is told to wait.
_HIGH_WATER = 1024 * 1024
# RFC 4254, section 5.2: SSH_EXTENDED_DATA_STDERR.
_STDERR = 1
# What is kept of stderr: the end, where the reason stands.
_KEPT_ERRORS = 8 * 1024


class ExecSession(asyncssh.SSHClientSession[bytes]):
    """The session of one command."""

    def __init__(self) -> None:
        self.errors = b""
        self.status: int | None = None
        self.signal = ""
        self.lost: Exception | None = None
        self.ended = asyncio.Event()  # nothing more will arrive
        self._chan: asyncssh.SSHClientChannel[bytes] | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._paused = False
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._chan = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if datatype == _STDERR:
            self.errors = (self.errors + data)[-_KEPT_ERRORS:]
            return
        self._pieces.append(data)
        self._size += len(data)
        self._arrived.set()
        if self._size > _HIGH_WATER and not self._paused and self._chan is not None:
            self._paused = True
            self._chan.pause_reading()

    def eof_received(self) -> bool:
        self._arrived.set()
        return True  # the other direction stays open: the exit status is still to come

    def exit_status_received(self, status: int) -> None:
        self.status = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        # OpenSSH names only the common ones; for SIGBUS and others it says "SIG@openssh.com".
        self.signal = "a signal" if "@" in signal else f"SIG{signal}"

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc
        self.ended.set()
        self._arrived.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def read(self) -> bytes:
        """All that has arrived, at least one byte; b"" once the channel has ended."""
        while not self._pieces:
            if self.ended.is_set():
                return b""
            self._arrived.clear()
            await self._arrived.wait()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._paused and self._chan is not None:
            self._paused = False
            self._chan.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send, and wait while the peer takes nothing.

        Raises:
            OSError: the channel is closed.
        """
        if self.ended.is_set() or self._chan is None or self._chan.is_closing():
            raise BrokenPipeError("the channel is closed")
        cast(Any, self._chan).write(data)
        await self._writable.wait()
        if self.ended.is_set():
            raise BrokenPipeError("the channel is closed")

    def write_eof(self) -> None:
        """No more will be written: the agent's bridge ends on it."""
        if self._chan is not None and not self._chan.is_closing():
            self._chan.write_eof()


async def open_exec(conn: asyncssh.SSHClientConnection, command: str) -> ExecSession:
    """Run `command` on a channel of its own, without a terminal.

    Raises:
        asyncssh.Error: the server refuses it.
    """
    made: Any = await cast(Any, conn).create_session(
        ExecSession, command, request_pty=False, x11_forwarding=False, encoding=None, window=WINDOW_BYTES
    )
    session: ExecSession = made[1]
    return session
