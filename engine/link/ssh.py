"""A node over SSH: one connection and one exec channel, in which the agent's bridge speaks."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import asyncssh

from engine.errors import LinkError
from engine.link.base import BOOTSTRAP, HANDSHAKE, Channel, bootstrap_input
from engine.link.ssh_dial import Connection
from engine.link.ssh_errors import Context, ShellEnd, Stage, clean, explain, explain_shell, lost
from engine.link.ssh_model import Kind, Target, fault
from engine.link.ssh_pool import SshPool
from engine.link.ssh_session import ExecSession, open_exec
from engine.wire import Decoder, Frame, WireError, encode

# From the login to the agent's first line (seconds): a login shell with its rc files, and a Python start.
HANDSHAKE_TIMEOUT_S = 10.0
# What a login shell may print before the agent's first line; the end of it is kept.
_MAX_NOISE = 16 * 1024
_PATH_TIMEOUT_S = 3.0
# bash, dash, fish and csh all take a word of these as it stands.
_SAFE_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./~-]+")


def exec_command(python: str) -> str:
    """The constant command that starts the agent with `python`: the same under every login shell.

    Raises:
        LinkError: a shell might not take the path as it stands.
    """
    if not _SAFE_WORD.fullmatch(python) or python.startswith(("-", "=", "%")):
        raise fault(
            Kind.CONFIG,
            f'task.agent_python "{python}" has characters that login shells may not take as they stand',
            "use a path of letters, digits and _ @ % + = : , . / ~ -",
        )
    return f'exec {python} -I -S -c "{BOOTSTRAP}"'


class SshChannel:
    """The bridge at the other end of an exec channel. `ended` says why it is gone, once it is."""

    def __init__(self, connection: Connection, session: ExecSession, rest: bytes) -> None:
        """`rest` is what came after the handshake line with the same bytes."""
        self._connection = connection
        self._session = session
        self._rest = rest
        self._decoder = Decoder()
        self.ended: LinkError | None = None

    async def send(self, head: dict[str, Any], payload: bytes = b"") -> None:
        try:
            await self._session.write(encode(head, payload))
        except OSError as err:
            raise LinkError(
                f"{self._connection.hop.label}: the channel to the agent is closed", kind=Kind.LOST.value
            ) from err

    async def frames(self) -> AsyncIterator[Frame]:
        data, self._rest = self._rest or await self._session.read(), b""
        try:
            while data:
                for frame in self._decoder.feed(data):
                    yield frame
                data = await self._session.read()
        except WireError as err:
            self.ended = fault(Kind.OTHER, f"{self._connection.hop.label}: what came is not from our agent: {err}")
            return
        reason = self._connection.lost.result() if self._connection.lost.done() else self._session.lost
        if reason is not None:
            self.ended = lost(self._connection.hop, reason)
        elif self._session.signal or self._session.status:
            how = self._session.signal or f"status {self._session.status}"
            said = clean(self._session.errors.decode("utf-8", "replace")) or "it printed nothing"
            self.ended = fault(
                Kind.OTHER, f"{self._connection.hop.label}: the bridge to the agent ended with {how}: {said}"
            )

    async def close(self) -> None:
        self._session.write_eof()
        await self._connection.close()


class SshLink:
    """Starts agents on one host, or finds them, through the run's pool."""

    def __init__(self, pool: SshPool, target: Target, agent_python: str) -> None:
        """
        Args:
            agent_python: the node's task.agent_python.

        Raises:
            LinkError: `agent_python` cannot be given to every shell.
        """
        self._pool = pool
        self._target = target
        self._python = agent_python
        self._command = exec_command(agent_python)

    async def open(self, agent_source: bytes, spec: dict[str, Any]) -> Channel:
        connection = await self._pool.connect(self._target)
        try:
            data = bootstrap_input(agent_source, spec)
            session, rest = await self._start(connection, data, str(spec["nonce"]))
        except BaseException:
            # Whatever ended the handshake, a cancelled task too: the connection must not stay behind.
            await connection.close()
            raise
        return SshChannel(connection, session, rest)

    async def _start(self, connection: Connection, data: bytes, nonce: str) -> tuple[ExecSession, bytes]:
        """The session, and what followed the handshake line with the same bytes."""
        noise = bytearray()
        session: ExecSession | None = None
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                session = await open_exec(connection.ssh, self._command)
                # All of it is in the channel's buffer at once; only waiting for the shell to take it is given up.
                writing = asyncio.create_task(_send(session, data))
                try:
                    rest = await _await_handshake(session, nonce, noise)
                finally:
                    writing.cancel()
        except TimeoutError as err:
            errors = session.errors if session else b""
            end = self._end(connection, noise, errors, waited_s=HANDSHAKE_TIMEOUT_S)
            raise explain_shell(end) from err
        except (OSError, asyncssh.Error) as err:
            raise explain(err, Context(connection.hop, Stage.SESSION)) from err
        if rest is not None:
            return session, rest
        if session.status is None and not session.signal:
            reason = connection.lost.result() if connection.lost.done() else session.lost
            raise lost(connection.hop, reason)
        path = await _path_of(connection) if session.status else ""
        raise explain_shell(
            self._end(connection, noise, session.errors, status=session.status, signal=session.signal, path=path)
        )

    def _end(self, connection: Connection, noise: bytearray, errors: bytes, **more: Any) -> ShellEnd:
        printed, said = noise.decode("utf-8", "replace"), errors.decode("utf-8", "replace")
        return ShellEnd(connection.hop, self._python, more.pop("status", None), printed=printed, errors=said, **more)


async def _send(session: ExecSession, data: bytes) -> None:
    with contextlib.suppress(OSError):
        await session.write(data)


async def _await_handshake(session: ExecSession, nonce: str, noise: bytearray) -> bytes | None:
    """What followed the agent's first line; None: the channel ended before. `noise` takes what came before it.

    The line is looked for anywhere: a ~/.bashrc may print without a newline at the end.
    """
    wanted = HANDSHAKE + nonce.encode() + b"\n"
    while data := await session.read():
        noise += data
        at = noise.find(wanted)
        if at >= 0:
            rest = bytes(noise[at + len(wanted) :])
            del noise[at:]
            return rest
        del noise[: -_MAX_NOISE - len(wanted)]
    return None


async def _path_of(connection: Connection) -> str:
    """PATH as our command would have found it, or "". The account may allow no second command; never mind."""
    with contextlib.suppress(OSError, asyncssh.Error, TimeoutError):
        async with asyncio.timeout(_PATH_TIMEOUT_S):
            session = await open_exec(connection.ssh, "printenv PATH")
            session.write_eof()
            said = b""
            while (data := await session.read()) and len(said) < _MAX_NOISE:
                said += data
            lines = said.decode("utf-8", "replace").split("\n")
            return lines[-2].strip() if session.status == 0 and len(lines) > 1 else ""
    return ""
