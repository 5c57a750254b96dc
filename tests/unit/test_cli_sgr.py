"""Colours of a rank's line on a terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parse.ansi import plain
from tui.sgr import coloured


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"no colour", "no colour"),
        (b"\x1b[31mred\x1b[0m plain", "\x1b[31mred\x1b[0m plain"),
        (b"\x1b[1;97;44mx", "\x1b[1;97;44mx\x1b[0m"),
        (b"\x1b[38;5;200mx", "\x1b[38;5;200mx\x1b[0m"),
        (b"\x1b[48;2;1;2;3mx", "\x1b[48;2;1;2;3mx\x1b[0m"),
        (b"\x1b]0;title\x07\x1b[2J\x1b[5;5Hx", "x"),
        (b"\x1b[32m 10%\r 20%", "\x1b[32m 20%\x1b[0m"),
    ],
)
def test_colours_survive_and_nothing_else(raw: bytes, shown: str) -> None:
    assert coloured(raw) == shown


@given(st.binary(max_size=80).map(lambda b: b"\x1b[31m" + b))
def test_whatever_a_rank_writes_only_colours_come_out(raw: bytes) -> None:
    rest = re.sub(r"\x1b\[[0-9;]*m", "", coloured(raw))
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", rest)


def test_a_long_line_is_whole() -> None:
    raw = b"\x1b[31m" + b"x" * 100_000
    assert coloured(raw).count("x") == len(plain(raw)) == 100_000
