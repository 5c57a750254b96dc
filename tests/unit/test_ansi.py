"""What may be drawn of a log line, and what never."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.parse.ansi import PLAIN, Style, apply_sgr, cell_count, clean_label, plain, styled

FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

CASES = [
    (b"hello", "hello"),
    (b"", ""),
    (b"\x1b[31mred\x1b[0m text", "red text"),
    (b"\x1b]0;title\x07after", "after"),
    (b"\x1b]0;title\x1b\\after", "after"),
    (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
    (b"\x1b]52;c;cHduZWQ=\x07x", "x"),
    (b"\x1bPq#0;2;0;0;0\x1b\\x", "x"),
    (b"\x1b_apc\x1b\\x", "x"),
    (b"\x1b^pm\x1b\\x", "x"),
    (b"\x1bXsos\x1b\\x", "x"),
    (b"x\x1b]0;never ends", "x"),
    (b"x\x1b[12;3", "x"),
    (b"x\x1b", "x"),
    (b"\x1b(Bx\x1b7y\x1b=z", "xyz"),
    (b"\x1b[?1049h\x1b[2J\x1b[Hx", "x"),
    ("\x9b31mx".encode(), "x"),
    ("\x9d0;t\x9cx".encode(), "x"),
    (b"\x1b\x1b[0m[31mx", "[31mx"),
    (b"a\tb", "a       b"),
    (b"12345678\tb", "12345678        b"),
    ("界\tb".encode(), "界      b"),
    (b"a\x00b\x07c\x7fd\x08e\x0bf", "abcdef"),
    ("ad\u202emin\u2066x".encode(), "adminx"),
    (b"\xff\xfeok", "\ufffd\ufffdok"),
    (b" 10%|#\r 50%|###\r100%|######", "100%|######"),
    (b"100%|######\r", "100%|######"),
    (b"100%\r\r\r", "100%"),
    (b"100%\r      \r", "100%"),
    (b"100%\r\x1b[K", "100%"),
    (b"windows\r\n", "windows"),
    (b"\r\r", ""),
    (b"  indented", "  indented"),
    (b"[markup] \\[x]", "[markup] \\[x]"),
]


@pytest.mark.parametrize(("raw", "text"), CASES)
def test_what_is_shown(raw: bytes, text: str) -> None:
    assert plain(raw) == text
    assert "".join(piece for piece, _ in styled(raw)) == text


NASTY = b"\x1b|\x1b[|\x1b]|\x1bP|\x1b_|\x1b\\|\x07|\xc2\x9b|\xc2\x9d|\xc2\x9c|31|;|:|m|38;5;|\r|\t|\n|?1049h|0;".split(
    b"|"
)
NASTY += ["界".encode(), "\u202e".encode()]
# Bytes that make escapes likely: a fuzzer that draws from all bytes hardly ever writes one.
nasty = st.lists(
    st.one_of(
        st.binary(max_size=6),
        st.text(max_size=4).map(lambda t: t.encode("utf-8", "surrogatepass")),
        st.sampled_from(NASTY),
    ),
    max_size=30,
).map(b"".join)


@given(nasty)
@example(b"\x1b\x1b\x1b]\x1b[")
def test_nothing_a_terminal_obeys_ever_comes_out(raw: bytes) -> None:
    assert not FORBIDDEN.search(plain(raw))
    pieces = styled(raw)
    assert not any(FORBIDDEN.search(text) for text, _ in pieces)
    assert all(text for text, _ in pieces)
    assert not FORBIDDEN.search(clean_label(raw.decode("utf-8", "surrogateescape")))


@given(nasty, st.integers(0, 40))
def test_a_line_is_cut_where_it_was_asked_for(raw: bytes, cells: int) -> None:
    whole = "".join(text for text, _ in styled(raw))
    cut = "".join(text for text, _ in styled(raw, cells))
    note = re.search(r" \.\.\. [\d,]+ bytes more$", cut)
    if note and whole != cut:
        kept = cut[: note.start()]
        assert whole.startswith(kept)
        assert cell_count(kept) <= cells
    else:
        assert cut == whole


def test_colours() -> None:
    assert styled(b"\x1b[1;31mred\x1b[0mplain") == [("red", Style(fg=1, bold=True)), ("plain", PLAIN)]
    assert styled(b"\x1b[38;5;208mx")[0][1] == Style(fg=208)
    assert styled(b"\x1b[48;2;1;2;3mx")[0][1] == Style(bg=(1, 2, 3))
    assert styled(b"\x1b[38:2::9:8:7mx")[0][1] == Style(fg=(9, 8, 7))
    assert styled(b"\x1b[38:5:9mx")[0][1] == Style(fg=9)
    assert styled(b"\x1b[97;104mx")[0][1] == Style(fg=15, bg=12)
    assert styled(b"\x1b[3;4;7;2mx")[0][1] == Style(italic=True, underline=True, reverse=True, dim=True)
    assert styled(b"\x1b[31m\x1b[mx") == [("x", PLAIN)]
    assert styled(b"\x1b[38;5;300;1mx")[0][1] == Style(bold=True)
    assert styled(b"\x1b[>4;2mx") == [("x", PLAIN)]  # no SGR, though it ends in m


@pytest.mark.parametrize(
    ("on", "off"), [("1", "22"), ("2", "22"), ("3", "23"), ("4", "24"), ("7", "27"), ("35", "39"), ("45", "49")]
)
def test_what_was_switched_on_is_switched_off(on: str, off: str) -> None:
    lit = apply_sgr(PLAIN, on)
    assert lit != PLAIN
    assert apply_sgr(lit, off) == PLAIN


@given(st.text(alphabet="0123456789;:", max_size=40))
def test_any_parameters_make_a_style(codes: str) -> None:
    assert isinstance(apply_sgr(PLAIN, codes), Style)


def test_a_colour_set_before_the_last_redraw_stays() -> None:
    assert styled(b"\x1b[32m 10%\r 50%") == [(" 50%", Style(fg=2))]


def test_a_megabyte_is_cut_with_a_note() -> None:
    pieces = styled(b"x" * 1_000_000)
    assert pieces[0] == ("x" * 4096, PLAIN)
    assert pieces[1][0] == " ... 995,904 bytes more"


def test_a_wide_character_is_never_cut_in_half() -> None:
    assert styled("界界界".encode(), 3)[0][0] == "界"


def test_a_label_is_one_line_of_safe_text() -> None:
    assert clean_label("a\nb\tc\x1b[31md\x1b]0;t\x07e") == "a b cde"
    assert clean_label("bad \udcff name") == "bad ? name"
    assert clean_label("warn \u26a0\ufe0f") == "warn \u26a0"
