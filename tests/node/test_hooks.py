"""before_start and after_stop: when they run, what their failure says, and that a stop ends them too."""

from __future__ import annotations

import signal
from typing import Any


def hook_log(node: Any, name: str, attempt: int = 0) -> str:
    return node.text(f"attempt_{attempt}/{name}.log")


def test_before_the_ranks_and_after_everything(node: Any) -> None:
    node.runs(*['echo "rank" >> order; exit 0'] * 2)
    node.hook("before_start", f'echo "before $TRAINUI_ATTEMPT $MORE" >> {node.cwd}/order; echo said')
    node.hook("after_stop", f"echo after >> {node.cwd}/order")
    bridge = node.start(MORE="yes")
    state = bridge.end()
    assert (node.cwd / "order").read_text() == "before 0 yes\nrank\nrank\nafter\n"
    assert state["error"] is None and hook_log(node, "before_start") == "said\n"
    phases = [f["phase"] for f in bridge.frames if f["t"] == "phase" and f["phase"] != "stopping"]
    assert phases == ["before_start", "running", "after_stop", "down"]


def test_a_failing_before_start_fails_the_node(node: Any) -> None:
    node.runs("touch ran")
    node.hook("before_start", "echo first; echo 'module: not found: cuda' >&2; exit 4")
    state = node.start().end()
    assert state["error"] == "hooks.before_start failed with status 4: first | module: not found: cuda"
    assert state["ranks"][0]["pid"] is None and state["ranks"][0]["ended_at"] is None
    assert not (node.cwd / "ran").exists() and node.left() == []


def test_a_stop_during_before_start(node: Any) -> None:
    node.runs("touch ran")
    node.hook("before_start", f"sleep 1000 & (trap '' TERM; setsid sleep 1000) & touch {node.cwd}/up; wait")
    node.hook("after_stop", f"touch {node.cwd}/cleaned")
    bridge = node.start()
    node.wait_for((node.cwd / "up").exists, "the hook")
    bridge.ask("stop", grace_s=1)
    state = bridge.end()
    assert state["error"] is None and not (node.cwd / "ran").exists()
    assert (node.cwd / "cleaned").exists(), "what before_start began is cleaned up"
    assert node.left() == []


def test_a_service_of_before_start_lives_as_long_as_the_ranks(node: Any, client: Any) -> None:
    node.runs(
        'trap "sleep 0.3; kill -0 $(cat service.pid) && echo served; exit 0" TERM\ntouch up\n'
        "while :; do sleep 0.02; done"
    )
    node.hook("before_start", f"setsid sleep 1000 & echo $! > {node.cwd}/service.pid")
    bridge = node.start()
    node.wait_for((node.cwd / "up").exists, "the rank")
    bridge.ask("stop", grace_s=15)
    assert bridge.end()["ranks"][0]["code"] == 0
    assert node.log() == "served\n", "it was there while the rank saved"
    assert not client.is_alive(node.pids()["service"])


def test_a_failing_after_stop_is_told_but_all_is_down(node: Any) -> None:
    node.runs("exit 0")
    node.hook("after_stop", f"sleep 1000 & echo $! > {node.cwd}/rest.pid; echo cannot unmount; exit 2")
    state = node.start().end()
    assert state["error"] == "hooks.after_stop failed with status 2: cannot unmount"
    assert state["ranks"][0]["code"] == 0 and node.left() == [], "also its own leftovers are gone"


def test_a_hanging_after_stop_ends_with_a_kill(node: Any) -> None:
    node.runs("exit 0")
    node.hook("after_stop", f"touch {node.cwd}/up; trap '' TERM; sleep 1000")
    bridge = node.start()
    node.wait_for((node.cwd / "up").exists, "the hook")
    assert bridge.ask("stop", grace_s=5)["ok"]
    assert bridge.state()["phase"] == "after_stop", "a polite stop leaves it its time"
    assert bridge.ask("stop", grace_s=0)["ok"]
    state = bridge.end()
    assert (
        state["error"].startswith(f"hooks.after_stop was ended by signal {int(signal.SIGKILL)}") and node.left() == []
    )


def test_a_missing_hook_is_a_sentence(node: Any) -> None:
    node.runs("touch ran")
    node.hook("before_start", "exit 0")
    bridge = node.open()
    (node.node_dir / "before_start.sh").unlink()
    bridge.ask("start", attempt=0)
    assert "before_start.sh is gone" in bridge.end()["error"]
    assert not (node.cwd / "ran").exists()
