"""Links that come and go: the job does not notice, and what comes back finds the same agent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

from engine.errors import LinkError
from engine.link.base import bootstrap_input
from engine.link.ssh import exec_command
from engine.link.ssh_model import Target
from engine.link.ssh_session import open_exec

COUNT = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); echo $i; sleep 0.05; done"


def lines(job: Any) -> int:
    return job.log().count(b"\n")


async def started(world: Any, job: Any, pool: Any, target: Target) -> tuple[Any, int, int]:
    """The job runs: its conversation, the agent's pid and the rank's."""
    talk = await job.open(pool, target)
    state = await talk.until(lambda f: f["t"] == "state", "a state")
    await talk.start()
    spawned = await talk.until(lambda f: f["t"] == "spawned", "the rank")
    return talk, state["pid"], spawned["pid"]


async def reopened(job: Any, pool: Any, target: Target) -> tuple[Any, dict[str, Any]]:
    """As the keeper does it: again and again, until the node is back."""
    async with asyncio.timeout(40):
        while True:
            try:
                talk = await job.open(pool, target)
            except LinkError as err:
                if not err.retry:
                    raise
                await asyncio.sleep(0.1)
            else:
                return talk, await talk.until(lambda f: f["t"] == "state", "a state")


async def test_a_cut_cable_is_noticed_and_the_job_is_found_again(world: Any, lab: Any, network: Any) -> None:
    host = network.host()
    daemon = network.sshd(world, host)
    pool, target = world.pool(keepalive_s=0.5, connect_timeout_s=3.0), world.target(daemon)
    job = world.job(COUNT)
    talk, agent, rank = await started(world, job, pool, target)

    network.cut(host)
    before = lines(job)
    await asyncio.wait_for(talk.ended.wait(), 20)
    assert talk.channel.ended.kind == "lost"
    assert f"{daemon.address}:{daemon.port} does not answer for 2 s" in str(talk.channel.ended)
    await talk.close()
    await lab.soon(lambda: lines(job) > before + 5, "the rank's progress without a link")
    with pytest.raises(LinkError) as caught:
        await job.open(pool, target)
    assert caught.value.kind in ("no_answer", "no_route")
    assert caught.value.retry

    network.heal(host)
    talk, state = await reopened(job, pool, target)
    assert state["pid"] == agent
    assert [(r["pid"], r["ended_at"]) for r in state["ranks"]] == [(rank, None)]
    assert state["phase"] == "running"
    await talk.stop()
    await job.gone()
    numbers = job.log().split()
    assert numbers == [b"%d" % i for i in range(1, len(numbers) + 1)]


async def test_a_cut_that_is_short_costs_no_connection(world: Any, lab: Any, network: Any) -> None:
    host = network.host()
    daemon = network.sshd(world, host)
    job = world.job(COUNT)
    talk, _, _ = await started(world, job, world.pool(keepalive_s=5.0), world.target(daemon))
    network.cut(host)
    now = lines(job)
    asking = asyncio.create_task(talk.ask("ping"))
    await lab.soon(lambda: lines(job) > now + 20, "the rank's progress")
    assert not asking.done()
    network.heal(host)
    await asking
    assert daemon.connections() == 1
    await talk.stop()


async def test_a_host_that_swallows_everything_does_not_hold_up_the_others(world: Any, network: Any) -> None:
    dead, good = network.host(), network.host()
    daemons = [network.sshd(world, host) for host in (dead, good)]
    network.swallow(dead)
    pool = world.pool(connect_timeout_s=1.0)
    results = await asyncio.gather(*(pool.connect(world.target(d)) for d in daemons), return_exceptions=True)
    assert isinstance(results[0], LinkError)
    assert f"no answer from {daemons[0].address}:{daemons[0].port} in 1 s" in str(results[0])
    assert (results[0].kind, results[0].retry) == ("no_answer", True)
    await results[1].close()


async def test_sshd_is_killed_and_comes_back(world: Any, lab: Any) -> None:
    daemon = world.sshd("node")
    pool, target = world.pool(), world.target(daemon)
    job = world.job(COUNT)
    talk, agent, rank = await started(world, job, pool, target)
    daemon.stop()
    await asyncio.wait_for(talk.ended.wait(), 20)
    assert talk.channel.ended.kind == "lost"
    await talk.close()
    with pytest.raises(LinkError) as caught:
        await job.open(pool, target)
    assert (caught.value.kind, caught.value.retry) == ("refused", True)
    assert lab.alive(rank)

    daemon.start()
    talk, state = await reopened(job, pool, target)
    assert (state["pid"], state["ranks"][0]["pid"]) == (agent, rank)
    await talk.stop()
    await job.gone()


async def test_a_session_that_hangs_is_given_up(world: Any, lab: Any) -> None:
    daemon = world.sshd("node")
    pool, target = world.pool(keepalive_s=0.5), world.target(daemon)
    job = world.job(COUNT)
    talk, agent, _ = await started(world, job, pool, target)
    stopped = daemon.sessions()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.wait_for(talk.ended.wait(), 20)
        assert "does not answer for 2 s" in str(talk.channel.ended)
        await asyncio.wait_for(talk.close(), 10)
        talk, state = await reopened(job, pool, target)
        assert state["pid"] == agent
        await talk.stop()
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


async def test_a_link_that_breaks_in_the_middle_of_the_start_gives_one_agent(world: Any, lab: Any) -> None:
    daemon = world.sshd("node")
    pool, target = world.pool(), world.target(daemon)
    job = world.job(COUNT)
    for _ in range(3):
        connection = await pool.connect(target)
        session = await open_exec(connection.ssh, exec_command(sys.executable))
        await session.write(bootstrap_input(lab.AGENT.read_bytes(), job.spec()))
        connection.ssh.abort()
        await connection.close()
    talks = [await job.open(pool, target) for _ in range(3)]
    states = [await talk.until(lambda f: f["t"] == "state", "a state") for talk in talks]
    assert len({state["pid"] for state in states}) == 1
    for talk in talks:
        await talk.start()
    for talk in talks:
        await talk.until(lambda f: f["t"] == "spawned" or (f["t"] == "state" and f["ranks"]), "the rank")
    await lab.soon(lambda: b"1" in job.log().split(), "output")
    await talks[0].stop()
    for talk in talks[1:]:
        await talk.finish()
    assert job.log().split()[0] == b"1"
    assert job.log().split().count(b"1") == 1
    await job.gone()


async def test_a_bridge_that_is_killed_says_so(world: Any, lab: Any) -> None:
    daemon = world.sshd("node")
    pool, target = world.pool(), world.target(daemon)
    job = world.job(COUNT)
    talk, agent, _ = await started(world, job, pool, target)
    (bridge,) = daemon.commands()
    os.kill(bridge, signal.SIGKILL)
    await asyncio.wait_for(talk.ended.wait(), 20)
    assert "the bridge to the agent ended with SIGKILL" in str(talk.channel.ended)
    await talk.close()
    talk, state = await reopened(job, pool, target)
    assert state["pid"] == agent
    await talk.stop()


async def test_closing_the_channel_leaves_the_job_alone(world: Any, lab: Any) -> None:
    daemon = world.sshd("node")
    pool, target = world.pool(), world.target(daemon)
    job = world.job(COUNT)
    talk, agent, rank = await started(world, job, pool, target)
    await talk.close()
    await lab.soon(lambda: "Disconnected from" in daemon.log() or "Connection closed" in daemon.log(), "the end")
    assert lab.alive(rank)
    talk, state = await reopened(job, pool, target)
    assert (state["pid"], state["ranks"][0]["pid"]) == (agent, rank)
    await talk.stop()
