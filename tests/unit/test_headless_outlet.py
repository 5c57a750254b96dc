"""A stdout that is slow, stuck, closed or full."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tui.outlet import Outlet


@pytest.fixture
def pipe() -> Iterator[tuple[int, Outlet]]:
    reader, writer = os.pipe()
    outlet = Outlet(writer, full_bytes=1000)
    yield reader, outlet
    outlet.close()
    with contextlib.suppress(OSError):
        os.close(reader)  # a write that is stuck ends
    if outlet._thread is not None:
        outlet._thread.join(10)
    os.close(writer)


async def test_everything_arrives_in_order(tmp_path: Path) -> None:
    path = tmp_path / "out"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    outlet = Outlet(fd)
    for i in range(50_000):
        outlet.put(f"line {i}\n")
    assert await outlet.drain(10)
    outlet.close()
    os.close(fd)
    assert path.read_text() == "".join(f"line {i}\n" for i in range(50_000))


async def test_a_reader_that_stalls_is_noticed_and_never_waited_for(pipe: tuple[int, Outlet]) -> None:
    reader, outlet = pipe
    outlet.put(b"x" * 300_000)
    assert outlet.full
    assert not await outlet.drain(0.2)
    assert outlet.stuck_s > 0.1
    got = b""
    async with asyncio.timeout(10):
        while len(got) < 300_000:
            got += await asyncio.to_thread(os.read, reader, 65536)
        assert await outlet.drain(5)
    assert not outlet.full
    assert outlet.stuck_s == 0


async def test_draining_can_be_given_up(pipe: tuple[int, Outlet]) -> None:
    _, outlet = pipe
    outlet.put(b"x" * 300_000)
    give_up = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, give_up.set)
    async with asyncio.timeout(10):
        assert not await outlet.drain(1000, give_up)


async def test_a_reader_that_left_is_an_error_and_not_a_signal(pipe: tuple[int, Outlet]) -> None:
    reader, outlet = pipe
    os.close(reader)
    outlet.put("hello\n")
    assert not await outlet.drain(10)
    assert outlet.error is not None
    assert outlet.error.errno == errno.EPIPE
    outlet.put("more\n")
    assert not outlet.full


async def test_a_full_disk_is_an_error() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    outlet = Outlet(fd)
    outlet.put("hello\n")
    assert not await outlet.drain(10)
    assert outlet.error is not None
    assert outlet.error.errno == errno.ENOSPC
    os.close(fd)


async def test_a_terminal_that_somebody_made_non_blocking_works(pipe: tuple[int, Outlet]) -> None:
    reader, outlet = pipe
    os.set_blocking(outlet._fd, False)
    outlet.put(b"x" * 300_000)
    got = b""
    async with asyncio.timeout(20):
        while len(got) < 300_000:
            got += await asyncio.to_thread(os.read, reader, 65536)
    assert await outlet.drain(5)


async def test_text_that_is_no_text_does_not_stop_the_rest(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    outlet = Outlet(fd)
    outlet.put("\udcff\n")  # a byte of a path
    outlet.put("\ud800\n")  # no byte at all
    outlet.put("end\n")
    assert await outlet.drain(10)
    outlet.close()
    os.close(fd)
    assert (tmp_path / "out").read_bytes() == b"\xff\n?\nend\n"
