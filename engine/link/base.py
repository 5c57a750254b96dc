"""What a way to reach a node offers: start or find the agent there, and open its channel. Nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Protocol

from engine.wire import Frame

# Works under bash, dash, fish and csh and with a noisy ~/.bashrc; carries files of any size on stdin.
BOOTSTRAP = "import sys;b=sys.stdin.buffer;exec(b.read(int(b.readline())))"
HANDSHAKE = b"TRAINUI1 "


class Channel(Protocol):
    """An open channel to a node's agent."""

    async def send(self, head: dict[str, Any], payload: bytes = b"") -> None:
        """Send one frame.

        Raises:
            LinkError: the channel is gone.
        """
        ...

    def frames(self) -> AsyncIterator[Frame]:
        """The agent's frames; ends when the channel does."""
        ...

    async def close(self) -> None:
        """Leave the agent; it goes on."""
        ...


class Link(Protocol):
    """A way to one node."""

    async def open(self, agent_source: bytes, spec: dict[str, Any]) -> Channel:
        """Start the agent, or find the one that runs, and return its channel after the handshake.

        Raises:
            LinkError: it could not be done; the message is a sentence.
        """
        ...


def bootstrap_input(agent_source: bytes, spec: dict[str, Any]) -> bytes:
    """What the exec string reads: length and agent, length and spec."""
    body = json.dumps(spec, ensure_ascii=True).encode()
    return b"%d\n%b%d\n%b" % (len(agent_source), agent_source, len(body), body)
