"""What is asked of an agent, and which news wait for the copies: no agent, but real files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.logs import copier as module
from engine.logs.copier import Copier
from engine.logs.mirror import Mirror
from engine.wire import Frame

SPAWNED = {"t": "spawned", "attempt": 0, "rank": 0, "pid": 5, "at": 1.0}
FAILED = {"t": "exit", "attempt": 0, "rank": 0, "code": 1, "by_us": False, "lost": False, "started_at": 1.0, "at": 2.0}
DOWN = {"t": "phase", "attempt": 0, "phase": "down"}


def state(shared: bool | None = False, **more: Any) -> dict[str, Any]:
    return {"t": "state", "attempt": 0, "phase": "running", "shared": shared, "ranks": [], "logs": {}, **more}


def piece(text: bytes, offset: int) -> Frame:
    return Frame({"t": "log", "attempt": 0, "rank": 0, "offset": offset, "n": len(text)}, text)


def end(size: int, final: bool) -> Frame:
    return Frame({"t": "logend", "attempt": 0, "rank": 0, "size": size, "final": final})


class World:
    """A copier, what it asked for, and what it passed on."""

    def __init__(self, folder: Path) -> None:
        self.sent: list[dict[str, Any]] = []
        self.told: list[Any] = []
        self.faults: list[str | None] = []
        self.mirror = Mirror(folder, "0_far")
        self.copier = Copier(self.mirror, send=self.sent.append, on_fault=self.faults.append)
        self.log = folder / "nodes/0_far/attempt_0/rank_00000.log"
        self.copier.opened()

    def offer(self, *heads: dict[str, Any]) -> None:
        for head in heads:
            self.copier.look(head)
            self.copier.offer(head, lambda head=head: self.told.append(head["t"]))

    def asked(self, name: str = "subscribe") -> list[tuple[int, int, Any]]:
        return [(h["attempt"], h["rank"], h.get("offset")) for h in self.sent if h["t"] == name]


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    world = World(tmp_path)
    yield world
    world.copier.close()


async def test_a_shared_disk_is_left_alone(world: World) -> None:
    world.offer(state(shared=True), SPAWNED, FAILED, DOWN)
    assert world.told == ["state", "spawned", "exit", "phase"] and world.sent == []
    assert not world.log.parent.exists()
    assert await world.copier.whole()


async def test_a_disk_that_turns_out_to_be_shared(world: World) -> None:
    world.offer(state(shared=None), SPAWNED)
    assert world.asked() == [(0, 0, 0)]
    world.offer(state(shared=True))
    assert world.asked("unsubscribe") == [(0, 0, None)]
    assert await world.copier.whole()


async def test_a_failure_is_told_when_its_last_words_are_here(world: World) -> None:
    world.offer(state(), SPAWNED, FAILED, DOWN)
    assert world.told == ["state", "spawned"]
    world.copier.take(piece(b"last words", 0))
    assert world.told == ["state", "spawned"]
    world.copier.take(end(10, final=False))
    assert world.told == ["state", "spawned", "exit"], "that the node is down waits for the whole log"
    world.copier.take(end(10, final=True))
    assert world.told == ["state", "spawned", "exit", "phase"]
    assert world.log.read_bytes() == b"last words"
    assert await world.copier.whole()


async def test_who_ended_well_or_by_our_hand_waits_for_nothing(world: World) -> None:
    world.offer(state(), SPAWNED, {**FAILED, "code": 0}, {**FAILED, "by_us": True, "code": None, "signal": 15})
    assert world.told == ["state", "spawned", "exit", "exit"]


async def test_no_failure_waits_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAILURE_WAIT_S", 0.05)
    world.offer(state(), SPAWNED, FAILED)
    assert world.told == ["state", "spawned"]
    async with asyncio.timeout(10):
        while len(world.told) < 3:
            await asyncio.sleep(0.01)


async def test_a_cut_ends_the_waiting(world: World) -> None:
    world.offer(state(), SPAWNED, FAILED, DOWN)
    world.copier.closed()
    assert world.told == ["state", "spawned", "exit", "phase"]
    world.copier.opened()
    world.offer(state(ranks=[{**FAILED, "pid": 5, "ended_at": 2.0}]))
    assert world.asked() == [(0, 0, 0), (0, 0, 0)], "asked again on the new channel"


async def test_a_gap_is_asked_for_once(world: World) -> None:
    world.offer(state(), SPAWNED)
    world.copier.take(piece(b"0123", 0))
    for offset in (8, 10, 12):
        world.copier.take(piece(b"xx", offset))
    world.copier.take(end(14, final=False))
    assert world.asked() == [(0, 0, 0), (0, 0, 4)]
    world.copier.take(piece(b"456789", 4))
    world.copier.take(piece(b"??", 20))
    assert world.asked()[2:] == [(0, 0, 10)]
    assert world.log.read_bytes() == b"0123456789"


async def test_only_what_is_missing_of_older_attempts(world: World, tmp_path: Path) -> None:
    for attempt, text in enumerate((b"whole", b"par")):
        path = tmp_path / f"nodes/0_far/attempt_{attempt}/rank_00000.log"
        path.parent.mkdir(parents=True)
        path.write_bytes(text)
    world.offer(state(attempt=2, logs={"0": {"0": 5}, "1": {"0": 7}, "2": {"0": 3}}))
    assert world.asked() == [(1, 0, 3)]


async def test_what_cannot_be_written_is_not_sent_on_and_tried_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    (tmp_path / "nodes").write_text("a file where a folder should be")
    world.offer(state(), SPAWNED)
    world.copier.take(piece(b"text", 0))
    assert world.asked("unsubscribe") == [(0, 0, None)]
    assert world.faults and "cannot be written" in str(world.faults[-1])
    (tmp_path / "nodes").unlink()
    async with asyncio.timeout(10):
        while len(world.asked()) < 2:
            await asyncio.sleep(0.01)
    world.copier.take(piece(b"text", 0))
    assert world.faults[-1] is None and world.log.read_bytes() == b"text"


async def test_a_node_that_stays_away_is_given_up_and_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVE_UP_S", 0.05)
    world.offer(state(), SPAWNED)
    world.copier.closed()
    assert not await world.copier.whole()
    assert "1 log is not copied to the end" in str(world.faults[-1])
