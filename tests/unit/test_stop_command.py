"""`trainui stop` of nodes that cannot be asked: it does not wait for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.job.snapshot import NodeView, Snapshot
from engine.model import NodeState, Phase
from tui.commands import stop


class Told:
    """A session whose snapshot does not change, and that tells nothing more."""

    run_dir = Path("/runs/job/id")

    def __init__(self, *nodes: NodeState, deadline: float | None = None) -> None:
        views = tuple(NodeView(i, f"n{i}", state, "the agent does not answer") for i, state in enumerate(nodes))
        self.snapshot = Snapshot("id", "job", "", 0, Phase.STOPPING, views, (), stop_deadline=deadline)

    async def updates(self) -> Any:
        import asyncio

        await asyncio.Event().wait()
        yield None


async def test_it_names_what_is_not_confirmed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(stop, "OUT_OF_REACH_S", 0.0)
    session: Any = Told(NodeState.DOWN, NodeState.UNREACHABLE)
    assert await stop._wait(session) == 69  # pyright: ignore[reportPrivateUsage]
    told = capsys.readouterr().err
    assert "n1: the agent does not answer; what runs there is not confirmed to be down" in told
    assert "n0" not in told


@pytest.mark.parametrize(
    "session",
    [
        Told(NodeState.UNREACHABLE, NodeState.STOPPING),
        Told(NodeState.UNREACHABLE, deadline=4e9),
        Told(NodeState.DOWN),
    ],
)
async def test_it_waits_while_somebody_may_still_tell(monkeypatch: pytest.MonkeyPatch, session: Any) -> None:
    import asyncio

    monkeypatch.setattr(stop, "OUT_OF_REACH_S", 0.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stop._wait(session), 0.6)  # pyright: ignore[reportPrivateUsage]
