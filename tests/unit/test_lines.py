"""The line assembler: any bytes, in any pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parse.lines import MAX_LINE_BYTES, REDRAWN_BYTES, Line, LineAssembler


def assemble(*pieces: bytes) -> list[Line]:
    lines = LineAssembler()
    found = [line for piece in pieces for line in lines.feed(piece)]
    last = lines.flush()
    return found + ([last] if last else [])


def test_lines_are_numbered_from_one_by_newline() -> None:
    assert [(x.number, x.text) for x in assemble(b"a\n\nb\n")] == [(1, "a"), (2, ""), (3, "b")]


def test_a_last_line_without_newline_is_kept_and_marked() -> None:
    *_, last = assemble(b"a\nb")
    assert (last.number, last.text, last.partial) == (2, "b", True)


def test_nothing_is_left_after_a_final_newline() -> None:
    assert [x.partial for x in assemble(b"a\nb\n")] == [False, False]


def test_only_newline_ends_a_line() -> None:
    # What str.splitlines() would take for ends: VT, FF, FS, NEL, LINE SEPARATOR.
    raw = "a\x0b\x0c\x1c\x85\u2028b".encode()
    assert [x.raw for x in assemble(raw + b"\n")] == [raw]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b" 10%\r 20%\r 30%\n", " 30%"),
        (b" 10%\r 20%\r\n", " 20%"),
        (b"windows\r\n", "windows"),
        (b"\r\r\r\n", ""),
    ],
)
def test_a_bar_is_its_last_state(raw: bytes, text: str) -> None:
    assert [x.text for x in assemble(raw)] == [text]


def test_a_character_split_between_reads_survives() -> None:
    data = "é漢🙂\n".encode()
    assert [x.text for x in assemble(*(data[i : i + 1] for i in range(len(data))))] == ["é漢🙂"]


def test_invalid_utf8_is_replaced_not_dropped() -> None:
    (line,) = assemble(b"a\xffb\n")
    assert line.text == "a\ufffdb"
    assert line.raw == b"a\xffb"


def test_escapes_are_not_in_the_text() -> None:
    (line,) = assemble(b"\x1b]0;evil\x07\x1b[31mred\x1b[0m\x1b[2J\n")
    assert line.text == "red"


def test_tabs_are_data() -> None:
    (line,) = assemble(b"10%\ta\r20%\t\x1b[31mb\x1b[0m\tc\n")
    assert line.text == "20%\tb\tc"


def test_a_line_without_end_is_handed_out_in_pieces() -> None:
    lines = LineAssembler()
    total = 3 * MAX_LINE_BYTES + 10
    pieces: list[Line] = []
    for _ in range(total // 4096):
        pieces += lines.feed(b"x" * 4096)
        waiting = lines.pending
        assert waiting is None or len(waiting.raw) <= MAX_LINE_BYTES
    pieces += lines.feed(b"x" * (total % 4096) + b"\nnext\n")
    assert b"".join(p.raw for p in pieces[:-1]) == b"x" * total
    assert {p.number for p in pieces[:-1]} == {1}
    assert [p.partial for p in pieces[:-1]] == [True] * (len(pieces) - 2) + [False]
    assert (pieces[-1].number, pieces[-1].text) == (2, "next")


def test_a_long_line_is_not_broken_inside_a_character() -> None:
    for shift in range(4):
        data = b"x" * shift + "🙂".encode() * (MAX_LINE_BYTES // 4 + 10) + b"\n"
        assert "\ufffd" not in "".join(x.text for x in assemble(data))


def test_a_bar_that_runs_for_hours_needs_no_memory() -> None:
    lines = LineAssembler()
    for step in range(50_000):
        assert lines.feed(b"\rstep %d of 50000 " % step) == []
        waiting = lines.pending
        assert waiting is not None
        assert len(waiting.raw) <= REDRAWN_BYTES + 100
    (line,) = lines.feed(b"\n")
    assert (line.number, line.text.strip(), line.partial) == (1, "step 49999 of 50000", False)


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_how_the_bytes_are_cut_changes_nothing(data: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    assert assemble(*pieces) == assemble(data)


@given(st.binary(max_size=400))
def test_no_byte_is_lost(data: bytes) -> None:
    assert b"".join(x.raw + (b"" if x.partial else b"\n") for x in assemble(data)) == data
