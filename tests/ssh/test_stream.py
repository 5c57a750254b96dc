"""The exec channel as a byte stream: exact, bounded when nobody reads, and honest about how it ended."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from engine.link.ssh_session import open_exec


async def test_bulk_arrives_byte_for_byte(world: Any) -> None:
    connection = await world.pool().connect(world.target(world.sshd("node")))
    file = world.folder / "bulk"
    session = await open_exec(connection.ssh, f"head -c 30000000 /dev/urandom | tee {file}; exit 5")
    digest, size = hashlib.sha256(), 0
    while data := await session.read():
        digest.update(data)
        size += len(data)
    assert size == 30_000_000
    assert digest.digest() == hashlib.sha256(file.read_bytes()).digest()
    assert session.status == 5
    assert connection.ssh.get_extra_info("send_cipher") == "aes128-gcm@openssh.com"
    assert connection.ssh.get_extra_info("send_compression") == "none"
    await connection.close()


async def test_who_does_not_read_is_not_buried(world: Any, lab: Any) -> None:
    connection = await world.pool().connect(world.target(world.sshd("node")))
    file = world.folder / "written"
    # yes >100 MB: far more than the window; the writer must come to a stand.
    session = await open_exec(connection.ssh, f"head -c 200000000 /dev/zero | tee {file} | cat")
    await lab.soon(lambda: session._paused, "the brake")
    await lab.soon(lambda: file.stat().st_size > 8_000_000, "a full window")
    assert session._size < 2_000_000
    size = 0
    while data := await session.read():
        size += len(data)
    assert size == 200_000_000
    await connection.close()


async def test_stderr_is_kept_apart_and_bounded(world: Any) -> None:
    connection = await world.pool().connect(world.target(world.sshd("node")))
    session = await open_exec(connection.ssh, "head -c 1000000 /dev/zero | tr '\\0' e >&2; echo the end >&2; echo out")
    assert await session.read() == b"out\n"
    assert await session.read() == b""
    assert session.errors.endswith(b"the end\n")
    assert len(session.errors) < 10_000
    assert session.status == 0
    await connection.close()


async def test_writing_to_a_channel_that_has_ended_is_an_error(world: Any, lab: Any) -> None:
    connection = await world.pool().connect(world.target(world.sshd("node")))
    for signal, name in (("BUS", "a signal"), ("KILL", "SIGKILL")):
        session = await open_exec(connection.ssh, f"kill -{signal} $$")
        await lab.soon(session.ended.is_set, "the end")
        assert (session.signal, session.status) == (name, None)
    with pytest.raises(OSError):
        await session.write(b"x")
    await connection.close()


async def test_a_large_input_waits_for_a_slow_reader(world: Any) -> None:
    connection = await world.pool().connect(world.target(world.sshd("node")))
    session = await open_exec(connection.ssh, "sleep 0.5; wc -c")
    await session.write(b"x" * 20_000_000)
    session.write_eof()
    assert (await session.read()).strip() == b"20000000"
    await connection.close()
