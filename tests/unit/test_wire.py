"""Frames survive any cutting of the byte stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.wire import Decoder, WireError, encode

HEADS = st.dictionaries(st.text(max_size=8).filter(lambda k: k != "n"), st.integers() | st.text(), max_size=4)


@given(st.lists(st.tuples(HEADS, st.binary(max_size=200)), max_size=8), st.data())
def test_any_cut_gives_the_same_frames(frames: list[tuple[dict[str, object], bytes]], data: st.DataObject) -> None:
    stream = b"".join(encode(dict(head), payload) for head, payload in frames)
    decoder, got, rest = Decoder(), [], stream
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        got += [(f.head, f.payload) for f in decoder.feed(rest[:size])]
        rest = rest[size:]
    assert [({k: v for k, v in h.items() if k != "n"}, p) for h, p in got] == frames


@pytest.mark.parametrize("junk", [b"hello\n", b"[1]\n", b'{"n":-1}\n', b'{"n":true}\n', b'{"n":"4"}\n', b"\xff\n"])
def test_a_foreign_peer_is_named(junk: bytes) -> None:
    with pytest.raises(WireError):
        list(Decoder().feed(junk))


def test_a_header_without_an_end_does_not_eat_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.wire.MAX_HEADER_BYTES", 1000)
    with pytest.raises(WireError):
        list(Decoder().feed(b"x" * 1001))
