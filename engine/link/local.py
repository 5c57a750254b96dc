"""This machine: the agent is started by a short-lived subprocess, which then is the bridge to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import IO, Any

from engine.errors import LinkError
from engine.link.base import BOOTSTRAP, HANDSHAKE, Channel, bootstrap_input
from engine.wire import Decoder, Frame, WireError, encode

# How long the agent may take to answer (seconds): a Python start and a lock; far above what a loaded machine needs.
HANDSHAKE_TIMEOUT_S = 30.0
_READ_BYTES = 256 * 1024


class LocalChannel:
    """The bridge's stdin and stdout."""

    def __init__(self, process: asyncio.subprocess.Process, decoder: Decoder) -> None:
        self._process = process
        self._decoder = decoder
        self._reading = False

    async def send(self, head: dict[str, Any], payload: bytes = b"") -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(encode(head, payload))
            await stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as err:
            raise LinkError("the channel to the agent is closed") from err

    async def frames(self) -> AsyncIterator[Frame]:
        stdout = self._process.stdout
        assert stdout is not None
        while True:
            self._reading = True
            try:
                data = await stdout.read(_READ_BYTES)
            finally:
                self._reading = False
            if not data:
                return
            try:
                for frame in self._decoder.feed(data):
                    yield frame
            except WireError:
                return

    async def close(self) -> None:
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 5.0)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        stdout = self._process.stdout
        if stdout is not None and not self._reading:
            # Left unread, it would keep the pipe open until the loop is gone.
            while await stdout.read(_READ_BYTES):
                pass


class LocalLink:
    """Starts agents on this machine with `agent_python`."""

    def __init__(self, agent_python: str, errors: IO[bytes]) -> None:
        """`errors` takes what the bootstrap prints on stderr (the engine's log)."""
        self._python = agent_python
        self._errors = errors

    async def open(self, agent_source: bytes, spec: dict[str, Any]) -> Channel:
        try:
            process = await asyncio.create_subprocess_exec(
                self._python,
                "-I",
                "-S",
                "-c",
                BOOTSTRAP,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as err:
            raise LinkError(
                f"the agent's python ({self._python}) cannot be started: {(err.strerror or str(err)).lower()}",
                "set task.agent_python",
            ) from err
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                return await self._shake_hands(process, bootstrap_input(agent_source, spec), str(spec["nonce"]))
        except BaseException as err:
            # Whatever ended the handshake, a cancelled task too: the bridge must not stay behind.
            if process.returncode is None:
                process.kill()
            await process.wait()
            if isinstance(err, TimeoutError):
                raise LinkError(f"the agent did not answer within {HANDSHAKE_TIMEOUT_S:.0f} s") from err
            raise

    async def _shake_hands(self, process: asyncio.subprocess.Process, data: bytes, nonce: str) -> Channel:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(data)
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it ended early; what it printed, or its status, says why
        noise: list[bytes] = []
        while True:
            line = await process.stdout.readline()
            if not line:
                status = await process.wait()
                said = b" ".join(noise).decode("utf-8", "replace").strip()
                raise LinkError(
                    f"the agent's python ({self._python}) ended with status {status} before it answered"
                    + (f"; it printed: {said[-300:]}" if said else ""),
                    "see engine.log in the run directory",
                )
            if line.rstrip() == HANDSHAKE + nonce.encode():
                return LocalChannel(process, Decoder())
            noise.append(line.rstrip())
