"""Nodes behind bastions: one connection to each bastion, and faults that say which of the two it was."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from engine.errors import LinkError
from engine.link.ssh_model import Target


def behind(world: Any, jump: str, nodes: int, daemon: Any) -> str:
    return "".join(world.alias(f"n{i}", daemon, f"ProxyJump {jump}") for i in range(nodes))


async def failing(attempt: Any) -> LinkError:
    with pytest.raises(LinkError) as caught:
        await attempt
    print(caught.value)
    return caught.value


@pytest.mark.parametrize("how", ["config", "cluster.ssh.jump"])
async def test_all_nodes_share_one_connection_to_the_bastion(world: Any, how: str) -> None:
    bastion = world.sshd("bastion", "MaxStartups 3:100:3", "MaxSessions 1")
    node = world.sshd("node")
    text = world.alias("jump", bastion)
    text += (
        behind(world, "jump", 20, node) if how == "config" else "".join(world.alias(f"n{i}", node) for i in range(20))
    )
    world.config(text)
    pool = world.pool(jump=None if how == "config" else "jump")
    made = await asyncio.gather(*(pool.connect(Target(f"n{i}")) for i in range(20)))
    assert bastion.connections() == 1
    assert node.log().count("Accepted publickey") == 20
    assert pool.gate.limit(f"through 127.0.0.1:{bastion.port}").peak <= 6
    await asyncio.gather(*(connection.close() for connection in made))


async def test_a_job_behind_two_bastions(world: Any) -> None:
    outer, inner, node = world.sshd("outer"), world.sshd("inner"), world.sshd("node")
    text = world.alias("outer", outer) + world.alias("inner", inner, "ProxyJump outer")
    world.config(text + behind(world, "inner", 2, node))
    pool = world.pool()
    for host in ("n0", "n1"):
        job = world.job("echo through two")
        talk = await job.open(pool, Target(host))
        await talk.start()
        await talk.finish()
        assert job.log() == b"through two\n"
    assert (outer.connections(), inner.connections(), node.connections()) == (1, 1, 2)


async def test_a_bastions_own_fault_names_the_bastion(world: Any, lab: Any) -> None:
    node = world.sshd("node")
    port = lab.free_port()
    world.config(f"Host jump\n HostName 127.0.0.1\n Port {port}\n" + behind(world, "jump", 3, node))
    pool = world.pool()
    errors = [await failing(pool.connect(Target(f"n{i}"))) for i in range(3)]
    for error in errors:
        assert str(error).startswith(f"bastion jump: nothing listens on 127.0.0.1:{port}")
    assert node.connections() == 0


async def test_a_bastion_whose_key_is_new(world: Any) -> None:
    bastion, node = world.sshd("bastion", known=False), world.sshd("node")
    world.config(world.alias("jump", bastion) + behind(world, "jump", 1, node))
    pool = world.pool()
    error = await failing(pool.connect(Target("n0")))
    assert (error.kind, error.retry) == ("host_key_unknown", False)
    assert str(error).startswith("bastion jump: ")
    pool.accept_host_key(error.offer)  # type: ignore[attr-defined]
    await (await pool.connect(Target("n0"))).close()


async def test_a_bastion_that_refuses_the_login_is_asked_once(world: Any) -> None:
    bastion = world.sshd("bastion", "AuthorizedKeysFile /nonexistent")
    node = world.sshd("node")
    world.config(world.alias("jump", bastion) + behind(world, "jump", 5, node))
    pool = world.pool()
    errors = await asyncio.gather(*(failing(pool.connect(Target(f"n{i}"))) for i in range(5)))
    assert {error.kind for error in errors} == {"auth"}
    assert bastion.connections() == 1


async def test_what_lies_behind_a_bastion_is_named(world: Any, lab: Any) -> None:
    bastion = world.sshd("bastion")
    port = lab.free_port()
    world.config(
        world.alias("jump", bastion) + f"Host n0\n HostName 127.0.0.1\n Port {port}\n ProxyJump jump\n"
        "Host n1\n HostName gone.invalid\n ProxyJump jump\n"
    )
    pool = world.pool()
    error = await failing(pool.connect(Target("n0")))
    assert f'n0: bastion "jump" cannot reach 127.0.0.1:{port} (connection refused)' in str(error)
    assert (error.kind, error.retry) == ("bastion", True)
    error = await failing(pool.connect(Target("n1")))
    assert 'n1: bastion "jump" cannot reach gone.invalid:22' in str(error)
    assert bastion.connections() == 1


async def test_a_bastion_that_forwards_nothing(world: Any) -> None:
    bastion, node = world.sshd("bastion", "AllowTcpForwarding no"), world.sshd("node")
    world.config(world.alias("jump", bastion) + behind(world, "jump", 1, node))
    error = await failing(world.pool().connect(Target("n0")))
    assert "it forwards no TCP" in str(error)


async def test_a_bastion_that_hangs_holds_nobody_longer_than_the_time_limit(world: Any, lab: Any) -> None:
    bastion, node = world.sshd("bastion"), world.sshd("node")
    world.config(world.alias("jump", bastion) + behind(world, "jump", 2, node))
    pool = world.pool(keepalive_s=0.5, connect_timeout_s=1.0)
    first = await pool.connect(Target("n0"))
    sessions = bastion.sessions()
    for pid in sessions:
        os.kill(pid, signal.SIGSTOP)
    try:
        error = await asyncio.wait_for(failing(pool.connect(Target("n1"))), 10)
        assert error.retry
        assert 'n1: bastion "jump" got no answer from' in str(error)
        await asyncio.wait_for(first.lost, 10)
        assert not first.usable
        # What hangs is given up, and another connection made.
        again = await asyncio.wait_for(pool.connect(Target("n1")), 20)
        assert bastion.connections() == 2
        await again.close()
    finally:
        for pid in sessions:
            os.kill(pid, signal.SIGCONT)


async def test_after_the_bastions_restart_the_nodes_are_reached_again(world: Any, lab: Any) -> None:
    bastion, node = world.sshd("bastion"), world.sshd("node")
    world.config(world.alias("jump", bastion) + behind(world, "jump", 2, node))
    pool = world.pool()
    first = await pool.connect(Target("n0"))
    bastion.stop()
    await lab.soon(lambda: not first.usable, "the loss")
    bastion.start()
    made = await asyncio.gather(*(pool.connect(Target(f"n{i}")) for i in range(2)))
    assert bastion.connections() == 2
    await asyncio.gather(*(connection.close() for connection in made))


async def test_a_proxy_command_with_quotes_and_words_on_stderr(world: Any, lab: Any) -> None:
    node = world.sshd("node")
    relay = world.folder / "my relay.py"
    relay.write_text(
        "import os, socket, sys, threading\n"
        "print('relay: a remark that must not reach the connection', file=sys.stderr, flush=True)\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): s.sendall(data)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    world.config(world.alias("n0", node, f"ProxyCommand python3 '{relay}' %h %p"))
    job = world.job("echo relayed")
    talk = await job.open(world.pool(), Target("n0"))
    await talk.start()
    await talk.finish()
    assert job.log() == b"relayed\n"


async def test_a_proxy_command_that_ends(world: Any) -> None:
    world.config(
        "Host n0\n ProxyCommand sh -c 'echo no tunnel today >&2; exit 1'\nHost n1\n ProxyCommand no-such-program\n"
    )
    error = await failing(world.pool().connect(Target("n0")))
    assert error.kind == "proxy"
    assert 'ended before SSH started; it said "no tunnel today"' in str(error)
    error = await failing(world.pool().connect(Target("n1")))
    assert "no-such-program: not found" in str(error)


async def test_warnings_are_said_once_for_all_nodes(world: Any) -> None:
    node = world.sshd("node")
    world.config("Host *\n ControlMaster auto\n" + "".join(world.alias(f"n{i}", node) for i in range(3)))
    pool = world.pool()
    for i in range(3):
        await (await pool.connect(Target(f"n{i}"))).close()
    assert len(pool.warnings) == 1
    assert "ControlMaster auto is not followed" in pool.warnings[0]
