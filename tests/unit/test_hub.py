"""Front ends get the newest picture at once, each event once, and nobody waits for a slow one."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.hub import MAX_EVENTS, Hub
from engine.job.snapshot import RankView, Snapshot
from engine.model import Phase
from engine.serve import update_frame


def picture(count: int = 2, step: int = 0) -> Snapshot:
    ranks = tuple(RankView(r, r, 0, "n0", f"r{r}.log", step=step if r == 0 else None) for r in range(count))
    return Snapshot("id", "job", "/r", 0, Phase.RUNNING, (), ranks)


async def test_the_first_update_comes_at_once_and_events_come_once() -> None:
    hub = Hub(picture)
    hub.publish({"event": "before anyone came"})
    updates = hub.subscribe().updates()
    assert (await anext(updates)).events == ()
    hub.publish({"event": "a"})
    hub.publish({"event": "b"})
    assert [e["event"] for e in (await anext(updates)).events] == ["a", "b"]


async def test_a_reader_that_sleeps_gets_one_picture_and_bounded_events() -> None:
    made: list[int] = []

    def make() -> Snapshot:
        made.append(1)
        return picture(step=len(made))

    hub = Hub(make)
    updates = hub.subscribe().updates()
    await anext(updates)
    for number in range(3 * MAX_EVENTS):
        hub.publish({"event": number})
    late = await anext(updates)
    assert len(late.events) == MAX_EVENTS and late.events[-1]["event"] == 3 * MAX_EVENTS - 1
    assert len(made) == 2


async def test_close_ends_every_subscription_after_the_last_words() -> None:
    hub = Hub(picture)
    got: list[Any] = []

    async def read() -> None:
        async for update in hub.subscribe().updates():
            got.extend(e["event"] for e in update.events)

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    hub.publish({"event": "last"})
    hub.close()
    await asyncio.wait_for(reader, 5)
    assert got == ["last"]


def test_an_update_names_only_the_ranks_that_changed() -> None:
    first, second = picture(4, step=1), picture(4, step=2)
    assert [r["rank"] for r in update_frame(None, first, (), 0)["ranks"]] == [0, 1, 2, 3]
    assert [r["rank"] for r in update_frame(first, second, (), 0)["ranks"]] == [0]
    assert update_frame(second, second, (), 0)["ranks"] == []
