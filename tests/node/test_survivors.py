"""What SIGKILL cannot end is named, and "down" is not said before it is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Freezer:
    """A control group of version 1 that freezes: its processes are in state D, and no signal reaches them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))

    def freeze(self) -> None:
        (self._folder / "freezer.state").write_text("FROZEN")

    def thaw(self) -> None:
        (self._folder / "freezer.state").write_text("THAWED")


@pytest.fixture
def freezer(node: Any) -> Iterator[Freezer]:
    folder = Path("/sys/fs/cgroup/freezer") / node.run_id
    try:
        folder.mkdir()
        it = Freezer(folder)
        it.thaw()
    except OSError:
        pytest.skip("there is no freezer of version 1 that may be written")
    yield it
    it.thaw()
    node.wait_for(lambda: not (folder / "cgroup.procs").read_text().strip(), "the frozen processes' end")
    folder.rmdir()


@pytest.mark.root
def test_a_process_that_cannot_die_is_named_until_it_does(node: Any, client: Any, freezer: Freezer) -> None:
    node.runs("echo $$ > stuck.pid; exec sleep 1000", "echo $$ > other.pid; exec sleep 1000")
    bridge = node.start()
    pids = node.wait_pids("stuck", "other")
    freezer.take(pids["stuck"])
    freezer.freeze()
    node.wait_for(lambda: _state(pids["stuck"]) == "D", "the frost")
    bridge.ask("stop", grace_s=0.2)
    told = bridge.until(lambda f: f["t"] == "phase" and f["survivors"], "the survivors")
    assert told["phase"] == "stopping"
    assert [(s["pid"], s["state"]) for s in told["survivors"]] == [(pids["stuck"], "D")]
    assert "sleep" in told["survivors"][0]["command"]
    assert not client.is_alive(pids["other"])
    done = node.stop_by_hand("--kill")
    assert done.returncode == 1 and f"pid {pids['stuck']}, state D" in done.stderr
    assert bridge.ask("ping")["ok"], "the agent itself is not stuck"
    freezer.thaw()
    state = bridge.end()
    assert state["survivors"] == [] and state["ranks"][0]["by_us"] and node.left() == []


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.soak
@pytest.mark.timeout(90)
def test_a_bridge_whose_engine_fell_silent_ends(node: Any) -> None:
    node.runs("sleep 1000")
    bridge = node.start()
    bridge.process.wait(60)
    again = node.open()
    assert again.state()["phase"] == "running"
    assert os.getpgid(again.process.pid) == again.process.pid
    again.ask("stop", grace_s=0)
    again.end()
