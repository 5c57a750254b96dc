"""How many handshakes are under way at once, and a daemon that takes only two."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.errors import LinkError
from engine.link.ssh_gate import Gate, Limit, Logins
from engine.link.ssh_model import Hop, Kind, Target, fault


async def test_no_more_than_the_limit_at_once_and_in_order() -> None:
    limit = Limit(2)
    order: list[int] = []
    go = asyncio.Event()

    async def one(number: int) -> None:
        async with limit.slot():
            order.append(number)
            await go.wait()

    tasks = [asyncio.create_task(one(i)) for i in range(5)]
    await asyncio.sleep(0)
    assert order == [0, 1]
    go.set()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]
    assert (limit.peak, limit.busy) == (2, 0)


async def test_one_who_gives_up_waiting_costs_nobody_a_place() -> None:
    limit = Limit(1)
    held, done = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with limit.slot():
            held.set()
            await done.wait()

    async def pass_through() -> None:
        async with limit.slot():
            pass

    holder = asyncio.create_task(hold())
    await held.wait()
    early, last = asyncio.create_task(pass_through()), asyncio.create_task(pass_through())
    await asyncio.sleep(0)
    early.cancel()
    done.set()
    await asyncio.gather(holder, early, last, return_exceptions=True)
    # And one that is cancelled in the very moment in which its turn comes.
    held.clear(), done.clear()
    holder = asyncio.create_task(hold())
    await held.wait()
    unlucky = asyncio.create_task(pass_through())
    await asyncio.sleep(0)
    done.set()
    await asyncio.sleep(0)
    unlucky.cancel()
    await asyncio.gather(holder, unlucky, return_exceptions=True)
    assert limit.busy == 0
    await asyncio.wait_for(pass_through(), 5)


async def test_a_narrowed_limit_lets_fewer_in() -> None:
    limit = Limit(6)
    for size in (3, 1, 1):
        limit.narrow()
        assert limit.size == size
    async with limit.slot():
        waiting = asyncio.create_task(asyncio.wait_for(limit.slot().__aenter__(), 5))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


async def test_who_waits_at_an_address_holds_no_common_place() -> None:
    gate = Gate(total=2, per_address=1)
    go = asyncio.Event()

    async def visit(place: str) -> None:
        async with gate.handshake([place]):
            await go.wait()

    tasks = [asyncio.create_task(visit(place)) for place in ("busy", "busy", "busy", "free")]
    await asyncio.sleep(0.01)
    assert gate.limit("free").busy == 1
    go.set()
    await asyncio.gather(*tasks)


def test_a_refusal_stops_the_same_keys_elsewhere_until_a_person_acts() -> None:
    logins = Logins()
    first, second = Hop("a", "a", 22, "ml", ("k",)), Hop("b", "b", 22, "ml", ("k",))
    logins.settled(second, None)
    logins.settled(first, fault(Kind.DROPPED, "x"))
    logins.check(first)
    logins.settled(first, fault(Kind.AUTH, "x"))
    logins.check(second)  # it let us in before
    for refused in (first, Hop("c", "c", 22, "ml", ("k",))):
        with pytest.raises(LinkError, match=r"because a \(a:22\) refused") as caught:
            logins.check(refused)
        assert (caught.value.kind, caught.value.retry) == ("auth", False)
    logins.check(Hop("c", "c", 22, "other", ("k",)))
    logins.check(Hop("c", "c", 22, "ml", ("other",)))
    logins.reset()
    logins.check(first)


async def test_a_throttling_daemon_lets_everybody_in_at_last(world: Any) -> None:
    daemon = world.sshd("node", "MaxStartups 2:100:3")
    world.config("".join(world.alias(f"n{i}", daemon) for i in range(20)))
    pool = world.pool()
    made = await asyncio.gather(*(pool.connect(Target(f"n{i}")) for i in range(20)))
    assert all(connection.usable for connection in made)
    assert pool.gate.limit(f"127.0.0.1:{daemon.port}").peak <= 6
    assert pool.gate.total.peak <= 16
    await asyncio.gather(*(connection.close() for connection in made))
    assert daemon.log().count("Accepted publickey") == 20


async def test_max_parallel_can_make_it_fewer(world: Any) -> None:
    daemons = [world.sshd(f"node{i}") for i in range(4)]
    pool = world.pool(max_parallel=2)
    made = await asyncio.gather(*(pool.connect(world.target(daemon)) for daemon in daemons))
    assert pool.gate.total.peak == 2
    await asyncio.gather(*(connection.close() for connection in made))
