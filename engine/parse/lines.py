"""Bytes in any pieces -> whole lines. Pure; memory is bounded whatever a rank writes."""

from __future__ import annotations

from dataclasses import dataclass

from engine.parse.ansi import plain, visible_start

# A longer line is handed out in pieces of this size: a rank that never writes "\n" must not fill our memory.
MAX_LINE_BYTES = 1024 * 1024
# An unfinished line with "\r" in it is cut back to what is visible once it is longer than this.
REDRAWN_BYTES = 64 * 1024
# UTF-8 needs at most 4 bytes, so at most 3 may be missing behind a cut.
UTF8_TAIL = 3


@dataclass(frozen=True, slots=True)
class Line:
    """One line, or a piece of one.

    Attributes:
        number: counts lines that end in "\\n", from 1; the pieces of a broken line share theirs.
        raw: its bytes without the "\\n".
        partial: True where no "\\n" followed: the last words of a file, or a piece of a broken line.
    """

    number: int
    raw: bytes
    partial: bool = False

    @property
    def text(self) -> str:
        """What a terminal would show at last: no escapes, the last state of a `\\r` bar. Tabs stay tabs."""
        if b"\t" not in self.raw:
            return plain(self.raw)
        shown = self.raw[visible_start(self.raw) :]
        return "\t".join(plain(part) for part in shown.split(b"\t"))


class LineAssembler:
    """Cuts a stream of bytes into lines; a line ends at "\\n" only.

    Args:
        first_number: the number of the first line.
    """

    def __init__(self, first_number: int = 1) -> None:
        self._number = first_number
        self._pending = bytearray()
        self._compact_at = REDRAWN_BYTES

    @property
    def pending(self) -> Line | None:
        """The unfinished line as it is now, or None."""
        return Line(self._number, bytes(self._pending), partial=True) if self._pending else None

    @property
    def redrawn(self) -> bool:
        """True while the unfinished line has `\\r` in it: a progress bar."""
        return b"\r" in self._pending

    def feed(self, data: bytes) -> list[Line]:
        """The lines that `data` completes, and the pieces of any that is too long."""
        done: list[Line] = []
        *whole, rest = data.split(b"\n")
        for piece in whole:
            if self._pending or len(piece) > MAX_LINE_BYTES:
                self._grow(piece, done)
                done.append(Line(self._number, bytes(self._pending)))
                self._pending.clear()
            else:
                done.append(Line(self._number, piece))
            self._number += 1
            self._compact_at = REDRAWN_BYTES
        if rest:
            self._grow(rest, done)
        return done

    def flush(self) -> Line | None:
        """The last line where its "\\n" never came, or None. Nothing is pending afterwards."""
        line = self.pending
        self._pending.clear()
        return line

    def _grow(self, piece: bytes, done: list[Line]) -> None:
        self._pending += piece
        if len(self._pending) > self._compact_at:
            if self.redrawn:
                del self._pending[: visible_start(bytes(self._pending))]
            # Twice as long, or a long line without any "\r" would be searched again for each piece.
            self._compact_at = max(REDRAWN_BYTES, 2 * len(self._pending))
        while len(self._pending) > MAX_LINE_BYTES:
            end = _whole_characters(self._pending, MAX_LINE_BYTES)
            done.append(Line(self._number, bytes(self._pending[:end]), partial=True))
            del self._pending[:end]


def _whole_characters(line: bytearray, end: int) -> int:
    """The place at or before `end` that splits no UTF-8 character."""
    for back in range(1, UTF8_TAIL + 1):
        byte = line[end - back]
        if byte & 0xC0 == 0xC0:  # a first byte: does what it announces fit?
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return end if need <= back else end - back
        if byte & 0xC0 != 0x80:
            return end
    return end
