"""Frames between engine, agent bridge and front ends: a JSON header line, then `n` raw bytes.

`docs/agent-protocol.md` lists the messages. The agent has the same few lines of its own, because it
is one file that must run without this package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# A header is small; a peer that sends more without a newline is not one of ours.
MAX_HEADER_BYTES = 8 * 1024 * 1024


class WireError(Exception):
    """The peer does not speak our protocol."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: its header, and the raw bytes that followed."""

    head: dict[str, Any]
    payload: bytes = b""

    @property
    def type(self) -> str:
        """The message's name."""
        return str(self.head.get("t", ""))


def encode(head: dict[str, Any], payload: bytes = b"") -> bytes:
    """The bytes of one frame."""
    if payload:
        head = {**head, "n": len(payload)}
    return json.dumps(head, separators=(",", ":"), ensure_ascii=True).encode() + b"\n" + payload


@dataclass(slots=True)
class Decoder:
    """Sans-I/O reader: feed bytes in any pieces, take whole frames out."""

    _buffer: bytearray = field(default_factory=bytearray)
    _head: dict[str, Any] | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Frames that `data` completes.

        Raises:
            WireError: a header is not a JSON object, or has no end.
        """
        self._buffer += data
        while True:
            if self._head is None:
                end = self._buffer.find(b"\n")
                if end < 0:
                    if len(self._buffer) > MAX_HEADER_BYTES:
                        raise WireError("a frame header without an end")
                    return
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._head = _parse_head(line)
            size = self._head.get("n", 0)
            if len(self._buffer) < size:
                return
            payload = bytes(self._buffer[:size])
            del self._buffer[:size]
            head, self._head = self._head, None
            yield Frame(head, payload)


def _parse_head(line: bytes) -> dict[str, Any]:
    try:
        head: Any = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise WireError(f"not a frame header: {line[:80]!r}") from err
    if not isinstance(head, dict):
        raise WireError(f"not a frame header: {line[:80]!r}")
    size: Any = head.get("n", 0)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise WireError(f"not a payload size: {size!r}")
    return head  # pyright: ignore[reportUnknownVariableType]
