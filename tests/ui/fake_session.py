"""A session that a test drives: snapshots in, intents out. Logs are real files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import EngineGone
from engine.job.snapshot import Beat, NodeView, RankView, RootCause, Snapshot, Survivor
from engine.model import NodeState, Phase, RankState
from engine.session import Intent, Update

START = 1_800_000_000.0  # when every run of these tests began
_END = object()


def with_ranks(snapshot: Snapshot, changed: dict[int, RankView]) -> Snapshot:
    """The snapshot with the ranks in `changed` (by rank number) replaced."""
    return replace(snapshot, ranks=tuple(changed.get(r.rank, r) for r in snapshot.ranks))


def make_snapshot(run_dir: Path, ranks: int = 4, nodes: int = 1, *, name: str = "demo") -> Snapshot:
    """A run with all ranks running."""
    hosts = ["node01", "node02", "node03", "node04"][:nodes]
    per_node = ranks // nodes
    return Snapshot(
        run_id="20270115-080000-ab12",
        name=name,
        run_dir=str(run_dir),
        attempt=0,
        phase=Phase.RUNNING,
        nodes=tuple(NodeView(i, host, NodeState.RUNNING) for i, host in enumerate(hosts)),
        ranks=tuple(
            RankView(
                rank=r,
                local_rank=r % per_node,
                node_rank=r // per_node,
                host=hosts[r // per_node],
                log=f"nodes/{r // per_node}_{hosts[r // per_node]}/attempt_0/rank_{r:05d}.log",
                pid=31000 + r,
                state=RankState.RUNNING,
                started_at=START,
                step=120 + r,
                beat=Beat("file", START + 60.0),
            )
            for r in range(ranks)
        ),
        started_at=START,
    )


def make_logs(snapshot: Snapshot, lines: int = 100) -> None:
    """A log for every rank: `rank 0 line 1` ..."""
    for rank in snapshot.ranks:
        path = Path(snapshot.run_dir) / rank.log
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"rank {rank.rank} line {i}\n" for i in range(1, lines + 1)))


def failed(snapshot: Snapshot, rank: int = 2, code: int = 3) -> Snapshot:
    """`rank` exited with `code`, the others were stopped."""
    changed = {
        r.rank: replace(r, state=RankState.EXITED, exit_code=code, ended_at=START + 62)
        if r.rank == rank
        else replace(r, state=RankState.SIGNALLED, signal=15, by_us=True, ended_at=START + 63)
        for r in snapshot.ranks
    }
    cause = RootCause(
        rank,
        0,
        snapshot.ranks[rank].host,
        "exit",
        code,
        None,
        f"rank {rank} exited with {code}: ValueError: loss is NaN",
    )
    over = with_ranks(snapshot, changed)
    return replace(over, phase=Phase.FAILED, ended_at=START + 63, exit_status=code, root_cause=cause)


def stopping(snapshot: Snapshot, *, survivors: bool = False) -> Snapshot:
    """SIGTERM was sent; rank 0 is down."""
    changed = {0: replace(snapshot.ranks[0], state=RankState.SIGNALLED, signal=15, by_us=True, ended_at=START + 62)}
    left = (Survivor(0, "node01", 31001, "D", "python train.py"),) if survivors else ()
    return replace(with_ranks(snapshot, changed), phase=Phase.STOPPING, stop_deadline=START + 75, survivors=left)


def stopped(snapshot: Snapshot) -> Snapshot:
    """Everything is down, because somebody wanted it."""
    changed = {
        r.rank: replace(r, state=RankState.SIGNALLED, signal=15, by_us=True, ended_at=START + 63)
        for r in snapshot.ranks
    }
    return replace(
        with_ranks(snapshot, changed), phase=Phase.STOPPED, exit_status=143, ended_at=START + 63, stop_deadline=None
    )


class FakeSession:
    """See `engine.session.Session`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.intents: list[Intent] = []
        self.closed = False
        self.refuse: Exception | None = None
        self.live = True
        self._snapshot = snapshot
        self._queue: asyncio.Queue[object] = asyncio.Queue()

    @property
    def run_dir(self) -> Path:
        return Path(self._snapshot.run_dir)

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    async def updates(self) -> AsyncIterator[Update]:
        yield Update(self._snapshot)
        while True:
            item = await self._queue.get()
            if item is _END:
                return
            if isinstance(item, Exception):
                raise item
            assert isinstance(item, Update)
            yield item

    async def do(self, intent: Intent) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.intents.append(intent)

    async def close(self) -> None:
        self.closed = True

    # The test's side

    def push(self, snapshot: Snapshot, *events: Mapping[str, Any]) -> None:
        """A newer snapshot."""
        self._snapshot = snapshot
        self._queue.put_nowait(Update(snapshot, events))

    def vanish(self, why: str = "the engine does not answer") -> None:
        """The engine is gone."""
        self._queue.put_nowait(EngineGone(why))

    def end(self) -> None:
        """The engine ended in order."""
        self.live = False
        self._queue.put_nowait(_END)
