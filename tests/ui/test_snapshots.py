"""Pictures of the console. After a wanted change: `pytest tests/ui/test_snapshots.py --snapshot-update`, and look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from engine.clock import ManualClock
from engine.job.snapshot import Snapshot
from tui.console import Console

SIZES = [(80, 24), (120, 40), (200, 60)]
LOG = b"".join(
    b"\x1b[2m08:0%d:%02d\x1b[0m step \x1b[1m%d\x1b[0m loss \x1b[33m%.4f\x1b[0m lr 3.0e-4 tok/s %d\n"
    % (i // 60, i % 60, i + 1, 4 / (i + 1) + 1.9, 41_000 + i * 37 % 400)
    for i in range(90)
)
TRACEBACK = b'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n    loss = step(batch)\n'
TRACEBACK += b"\x1b[31mValueError: loss is NaN at step 91\x1b[0m\n"
BAR = b"\r 10%|#         | 9/90\r 71%|#######   | 64/90"


def prepared(snapshots: Any, folder: Path, state: str) -> Any:
    snapshot: Snapshot = replace(snapshots.make_snapshot(folder), run_dir=str(folder))
    snapshots.make_logs(snapshot, 0)
    for rank in snapshot.ranks:
        tail = TRACEBACK if state == "failed" and rank.rank == 2 else BAR if state == "running" else b""
        (folder / rank.log).write_bytes(LOG + tail)
    shown = snapshot if state == "running" else getattr(snapshots, state)(snapshot)
    return snapshots.FakeSession(shown)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("state", ["running", "failed", "stopping"])
def test_looks(snap_compare: Any, snapshots: Any, plain_env: None, tmp_path: Path, state: str, size: Any) -> None:
    console = Console(prepared(snapshots, tmp_path, state), clock=ManualClock(snapshots.START + 64.0))

    async def settle(pilot: Pilot[Any]) -> None:
        await pilot.pause()
        await pilot.pause(0.3)  # a table tick, so that nothing is in the middle of being drawn

    assert snap_compare(console, terminal_size=size, run_before=settle)


@pytest.mark.parametrize("keys", ["x", "q", "question_mark"])
def test_dialogs(snap_compare: Any, snapshots: Any, plain_env: None, tmp_path: Path, keys: str) -> None:
    console = Console(prepared(snapshots, tmp_path, "running"), clock=ManualClock(snapshots.START + 64.0))
    assert snap_compare(console, terminal_size=(80, 24), press=[keys])


def test_no_color(
    snap_compare: Any, snapshots: Any, plain_env: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(prepared(snapshots, tmp_path, "failed"), clock=ManualClock(snapshots.START + 64.0))
    assert snap_compare(console, terminal_size=(80, 24))
