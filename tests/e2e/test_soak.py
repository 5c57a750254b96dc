"""What only shows after a while: memory that grows, descriptors that stay open."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MIB = 2**20
FLOOD = """
name: flood
task:
  command:
    - python3
    - -c
    - |
      import os, time, trainui_heartbeat
      end, i = time.time() + 75, 0
      while time.time() < end:
          rank = os.environ["RANK"]
          print("\\n".join(f"step {i} line {k} of rank {rank} " + "x" * 60 for k in range(200)), flush=True)
          trainui_heartbeat.step(i)
          i += 1
          time.sleep(0.1)
cluster: {nproc_per_node: 8, gpu_binding: none}
"""


def memory(pid: int) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_a_flood_does_not_grow_anybody(trainui: Any, wait_until: Callable[..., Any]) -> None:
    front = trainui.start(trainui.config(FLOOD), "--no-ui", "--quiet")

    def run() -> Path | None:
        found = [p.parent for p in trainui.run_root.glob("*/*/engine.json") if not p.parent.is_symlink()]
        return found[0] if found else None

    folder = wait_until(run, 30, "the run")
    agent = wait_until(lambda: list(folder.glob("nodes/*/agent.json")), 30, "the agent")[0]
    log = wait_until(lambda: list(folder.glob("nodes/*/attempt_0/rank_00000.log")), 30, "a log")[0]
    pids = [front.pid, *(json.loads(p.read_text())["pid"] for p in (folder / "engine.json", agent))]
    wait_until(lambda: log.stat().st_size > 2 * MIB, 60, "the flood to be under way")
    before = [(memory(pid), descriptors(pid)) for pid in pids]
    wait_until(lambda: log.stat().st_size > 10 * MIB, 90, "much more of it")
    after = [(memory(pid), descriptors(pid)) for pid in pids]
    front.communicate(timeout=90)
    assert front.returncode == 0
    for (small, few), (large, many) in zip(before, after, strict=True):
        assert large - small < 8 * MIB and many <= few + 2, (before, after)
