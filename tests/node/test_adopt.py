"""What happens when the agent itself is killed: a fresh one takes over, and nothing foreign is touched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# As in test_stop: children that left the session, the parents, the environment; and who ignore SIGTERM.
TREE = """
import os, signal, subprocess, sys, time
def note(name):
    with open(name + ".tmp", "w") as f: f.write(str(os.getpid()))
    os.rename(name + ".tmp", name + ".pid")
def child(name, environ):
    code = ("import os,signal,time\\nsignal.signal(15,signal.SIG_IGN)\\n"
        f"open('{name}.tmp','w').write(str(os.getpid()))\\nos.rename('{name}.tmp','{name}.pid')\\ntime.sleep(1000)")
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        os.execve(sys.executable, [sys.executable, "-S", "-c", code], environ)
child("marked", dict(os.environ))
child("wiped", {})
note("leader")
time.sleep(1000)
"""
ROLES = ("marked", "wiped", "leader")


def ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def in_ledger(node: Any, pids: dict[str, int]) -> bool:
    known = {pid for pid, _ in node.json("ledger.json")["processes"]}
    return set(pids.values()) <= known


def orphan(node: Any, scripts: int = 1) -> tuple[Any, dict[str, int]]:
    """A node whose ranks run, and whose agent was killed."""
    node.runs(*[node.python(TREE)] * scripts)
    bridge = node.start()
    pids = node.wait_pids(*ROLES)
    node.wait_for(lambda: in_ledger(node, pids), "the ledger")
    node.kill_agent()
    return bridge, pids


def test_a_fresh_agent_adopts_and_stops(node: Any, client: Any) -> None:
    first, pids = orphan(node)
    node.wait_for(lambda: (first.pump(0.1), first.eof)[1], "the bridge's end")
    bridge = node.open()
    state = bridge.state()
    assert state["phase"] == "running" and state["attempt"] == 0 and state["adopted"]
    assert state["ranks"][0]["pid"] == pids["leader"] and state["ranks"][0]["ended_at"] is None
    assert bridge.ask("start", attempt=0)["ok"], "it runs already"
    assert client.is_alive(pids["leader"])
    bridge.ask("stop", grace_s=0.5)
    rank = bridge.end()["ranks"][0]
    assert rank["lost"] and rank["by_us"] and rank["code"] is None and rank["signal"] is None
    assert not any(client.is_alive(pid) for pid in pids.values()) and node.left() == []
    assert node.json("attempt_0/rank_00000.exit")["lost"] is True
    assert bridge.ask("start", attempt=1)["ok"], "and the next attempt can begin"
    bridge.until(lambda f: f["t"] == "spawned" and f["attempt"] == 1, "it")
    bridge.ask("stop", grace_s=0)
    bridge.end()


def test_an_adopted_rank_that_ends_is_lost(node: Any, client: Any) -> None:
    node.runs("while ! test -e go; do sleep 0.05; done; exit 3", "exit 5")
    first = node.start()
    first.until(lambda f: f["t"] == "exit" and f["rank"] == 1, "the second rank's end")
    node.kill_agent()
    bridge = node.open()
    (node.cwd / "go").touch()
    state = bridge.end()
    assert state["ranks"][0]["lost"] and not state["ranks"][0]["by_us"]
    assert state["ranks"][1]["code"] == 5 and not state["ranks"][1]["lost"], "this one was recorded"


def test_ranks_that_ended_while_no_agent_lived(node: Any, alive: Callable[[int], bool]) -> None:
    node.runs("echo $$ > it.pid; while ! test -e go; do sleep 0.02; done", "sleep 1000")
    node.start()
    pid = node.wait_pids("it")["it"]
    node.kill_agent()
    (node.cwd / "go").touch()
    node.wait_for(lambda: not alive(pid), "the rank's end")
    bridge = node.open()
    ranks = bridge.state()["ranks"]
    assert ranks[0]["lost"] and ranks[0]["ended_at"] is not None
    assert not ranks[1]["lost"] and ranks[1]["ended_at"] is None
    bridge.ask("stop", grace_s=5)
    bridge.end()


def test_an_exit_record_is_believed_where_the_state_was_not_written(node: Any, alive: Callable[[int], bool]) -> None:
    node.runs("echo $$ > it.pid; while ! test -e go; do sleep 0.02; done")
    node.start()
    pid = node.wait_pids("it")["it"]
    node.kill_agent()
    (node.cwd / "go").touch()
    node.wait_for(lambda: not alive(pid), "the rank's end")
    record = {"code": 12, "started_at": None, "ended_at": None, "by_us": False, "error": None}
    (node.node_dir / "attempt_0/rank_00000.exit").write_text(json.dumps(record))
    rank = node.open().end()["ranks"][0]
    assert rank["code"] == 12 and not rank["lost"]


@pytest.mark.parametrize("words", [["--grace", "0.3"], ["--kill"]])
def test_stop_by_hand_without_an_agent(node: Any, client: Any, words: list[str]) -> None:
    _, pids = orphan(node)
    done = node.stop_by_hand(*words)
    assert done.returncode == 0, done.stderr
    assert "nothing of run" in done.stdout
    assert not any(client.is_alive(pid) for pid in pids.values()) and node.left() == []


def test_stop_by_hand_without_an_agent_or_any_of_its_files(node: Any, client: Any) -> None:
    node.runs("echo $$ > it.pid; sleep 1000")
    node.start()
    pids = node.wait_pids("it")
    node.kill_agent()
    for name in ("agent.json", "ledger.json", "agent.lock"):
        (node.node_dir / name).unlink(missing_ok=True)
    assert node.stop_by_hand("--grace", "5").returncode == 0
    assert not client.is_alive(pids["it"]) and node.left() == []


def test_stop_by_hand_of_one_that_forks_for_ever(node: Any) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("forker.pid", "w").write(str(os.getpid()))
if os.fork() == 0:
    end = time.monotonic() + 8
    while time.monotonic() < end:
        if os.fork(): os._exit(0)
        os.setsid()
    open("survived", "w")
    os._exit(0)
time.sleep(1000)
"""
    node.runs(node.python(code))
    node.start()
    node.wait_pids("forker")
    node.kill_agent()
    started = time.monotonic()
    assert node.stop_by_hand("--kill").returncode == 0
    assert not (node.cwd / "survived").exists(), "it must be caught, not waited for"
    # No single look at /proc proves that it is gone: its last generation would have told.
    node.wait_for(lambda: time.monotonic() > started + 9, "the time it had")
    assert not (node.cwd / "survived").exists() and node.left() == []


def test_stop_by_hand_through_the_living_agent(node: Any, client: Any) -> None:
    node.runs("sleep 1000")
    bridge = node.start()
    bridge.until(lambda f: f["t"] == "spawned", "the rank")
    done = node.stop_by_hand("--grace", "5")
    assert done.returncode == 0, done.stderr
    rank = bridge.end()["ranks"][0]
    assert rank["signal"] == signal.SIGTERM and rank["by_us"]
    assert node.stop_by_hand().returncode == 0, "again: there is nothing left to do"
    assert client.is_alive(node.agent_pid()), "the engine may still want to know"


def test_a_live_foreign_pid_in_stale_files_is_left_alone(node: Any, client: Any) -> None:
    _stale(node, client, boot_id=None, shift=1)


def test_files_of_another_boot_signal_nobody(node: Any, client: Any) -> None:
    state = _stale(node, client, boot_id="11111111-2222-3333-4444-555555555555", shift=0)
    assert "booted" in state["error"]


def _stale(node: Any, client: Any, boot_id: str | None, shift: int) -> Any:
    """Let the files of a dead agent name a process that has nothing to do with it."""
    node.runs("echo $$ > it.pid; while ! test -e go; do sleep 0.02; done")
    node.start()
    node.wait_pids("it")
    node.kill_agent()
    (node.cwd / "go").touch()
    node.wait_for(lambda: node.left() == [], "the rank's end")
    foreign = subprocess.Popen(["sleep", "1000"])
    try:
        start = ticks(foreign.pid) + shift
        info, ledger = node.json("agent.json"), node.json("ledger.json")
        info["ranks"][0].update(pid=foreign.pid, start_ticks=start)
        ledger["processes"] = [[foreign.pid, start]]
        if boot_id:
            info["boot_id"] = ledger["boot_id"] = boot_id
        (node.node_dir / "agent.json").write_text(json.dumps(info))
        (node.node_dir / "ledger.json").write_text(json.dumps(ledger))
        bridge = node.open()
        bridge.ask("stop", grace_s=0)
        state = bridge.end()
        assert state["ranks"][0]["lost"]
        assert foreign.poll() is None and client.is_alive(foreign.pid)
        return state
    finally:
        foreign.kill()
        foreign.wait()


def test_nobody_elses_process_is_taken_for_ours(make_node: Any, client: Any) -> None:
    one, other = make_node(), make_node()
    other.run_id = other.spec["run_id"] = one.run_id  # two nodes of one run on one machine
    for it in (one, other):
        it.runs("echo $$ > it.pid; sleep 1000")
        it.start()
    mine, theirs = one.wait_pids("it")["it"], other.wait_pids("it")["it"]
    one.kill_agent()
    assert one.stop_by_hand("--kill").returncode == 0
    assert not client.is_alive(mine) and client.is_alive(theirs)
    other.bridges[0].ask("stop", grace_s=0)
    other.bridges[0].end()


def test_killed_while_stopping(node: Any) -> None:
    node.runs("trap '' TERM; touch up; while :; do sleep 0.05; done")
    bridge = node.start()
    node.wait_for((node.cwd / "up").exists, "the rank")
    bridge.ask("stop", grace_s=3)
    bridge.phase("stopping")
    node.wait_for(lambda: node.json("agent.json")["phase"] == "stopping", "the state on disk")
    node.kill_agent()
    state = node.open().end()
    assert state["ranks"][0]["lost"] and node.left() == []


def test_killed_during_a_hook(node: Any) -> None:
    node.runs("exit 0")
    node.hook("before_start", "touch up; sleep 1000")
    node.start()
    node.wait_for((node.cwd.parent / "run/nodes/0_here/up").exists, "the hook")
    node.kill_agent()
    state = node.open().end()
    assert "hooks.before_start" in state["error"] and state["ranks"][0]["pid"] is None
    assert node.left() == []


def test_killed_again_and_again(node: Any, client: Any) -> None:
    _, pids = orphan(node)
    for _ in range(3):
        node.open()
        node.kill_agent()
    assert all(client.is_alive(pid) for pid in pids.values())
    bridge = node.open()
    bridge.ask("stop", grace_s=0.2)
    bridge.end()
    assert node.left() == []


def test_the_past_is_known_to_a_fresh_agent(node: Any, client: Any) -> None:
    node.runs("exit 6")
    first = node.start()
    first.end()
    first.release()
    node.wait_for(lambda: not client.is_alive(node.agent_pid()), "the agent's end")
    bridge = node.open()
    state = bridge.state()
    assert state["phase"] == "down" and state["ranks"][0]["code"] == 6 and not state["adopted"]
    assert bridge.ask("start", attempt=0)["ok"]
    assert bridge.state()["phase"] == "down", "an attempt is never started twice"
    assert not [f for f in bridge.frames if f["t"] == "spawned"]


def test_started_twice_at_once(node: Any) -> None:
    node.runs("echo here; sleep 1000")
    bridges = [node.dial() for _ in range(4)]
    for bridge in bridges:
        bridge.send("start", attempt=0)
    states = [bridge.until(lambda f: f["t"] == "state", "a state") for bridge in bridges]
    assert len({state["pid"] for state in states}) == 1
    pids = {
        b.until(lambda f: f["t"] in ("spawned", "state") and _pid(f), "the rank") and b.state()["ranks"][0]["pid"]
        for b in bridges
    }
    assert len(pids) == 1
    node.wait_for(node.log, "output")
    bridges[1].ask("stop", grace_s=5)
    ends = [bridge.end()["ranks"][0]["ended_at"] for bridge in bridges]
    assert len(set(ends)) == 1 and node.log() == "here\n"


def _pid(frame: dict[str, Any]) -> Any:
    return frame.get("pid") if frame["t"] == "spawned" else frame["ranks"] and frame["ranks"][0]["pid"]


def test_a_bridge_that_leaves_takes_nothing_with_it(node: Any, client: Any) -> None:
    node.runs("sleep 1000")
    first = node.start()
    pid = first.until(lambda f: f["t"] == "spawned", "the rank")["pid"]
    first.close()
    assert first.process.returncode == 0
    second = node.open()
    os.kill(second.process.pid, signal.SIGKILL)
    second.process.wait()
    third = node.open()
    assert third.state()["ranks"][0]["pid"] == pid and client.is_alive(pid)
    third.ask("stop", grace_s=5)
    third.release()


def test_who_does_not_read_does_not_hold_up_the_others(node: Any) -> None:
    node.runs(*["sleep 1000"] * 32)
    bridge = node.start()
    bridge.until(lambda f: f["t"] == "spawned" and f["rank"] == 31, "the last rank")
    deaf = socket.socket(socket.AF_UNIX)
    deaf.connect(node.json("agent.json")["socket"])
    deaf.settimeout(0.5)
    asked, deadline = 0, time.monotonic() + 20
    try:
        while time.monotonic() < deadline:
            deaf.sendall(b'{"t":"hello"}\n' * 50)
            asked += 50
            assert asked < 100_000
    except OSError:
        pass  # dropped, as it must be
    else:
        pytest.fail("its backlog grew for ever")
    finally:
        deaf.close()
    assert bridge.ask("ping")["ok"]
    bridge.ask("stop", grace_s=5)
    bridge.end()


def test_killed_between_a_ranks_start_and_its_entry(node: Any) -> None:
    node.runs("echo $$ > it.pid; sleep 1000")
    node.start()
    pid = node.wait_pids("it")["it"]
    node.kill_agent()
    info = node.json("agent.json")
    info["ranks"][0].update(pid=None, start_ticks=None, started_at=None)
    (node.node_dir / "agent.json").write_text(json.dumps(info))
    (node.node_dir / "ledger.json").unlink(missing_ok=True)
    bridge = node.open()
    assert bridge.state()["ranks"][0]["pid"] == pid
    bridge.ask("stop", grace_s=5)
    bridge.end()


@pytest.mark.parametrize(
    "text", ["", "[]", "\0\0", '{"attempt": "x", "ranks": 5}', '{"attempt": 0, "ranks": [3], "phase": 1}']
)
def test_spoiled_files(node: Any, client: Any, text: str) -> None:
    node.runs("echo $$ > it.pid; sleep 1000")
    node.start()
    pid = node.wait_pids("it")["it"]
    node.kill_agent()
    (node.node_dir / "agent.json").write_text(text)
    (node.node_dir / "ledger.json").write_text('{"processes": [["a"], 3]}')
    bridge = node.open()
    state = bridge.state()
    assert state["phase"] == "running" and state["ranks"][0]["pid"] == pid
    bridge.ask("stop", grace_s=5)
    bridge.end()
    assert not client.is_alive(pid)


def test_heartbeats_go_on_after_adoption(node: Any) -> None:
    node.runs("echo $$ > it.pid; sleep 1000")
    node.start()
    pid = node.wait_pids("it")["it"]
    path = node.node_dir / "attempt_0/heartbeat/rank_0.jsonl"

    def write(iteration: int) -> None:
        with path.open("a") as file:
            record = {"event": "heartbeat", "run_id": node.run_id, "rank": 0, "pid": pid, "iteration": iteration}
            file.write(json.dumps(record) + "\n")

    write(1)
    os.utime(path, (1000, 1000))
    node.kill_agent()
    bridge = node.open()
    old = node.wait_for(lambda: bridge.state()["beats"].get("0"), "the old beat")
    assert old["iteration"] == 1 and old["at"] == 1000, "what was written long ago is no sign of life"
    write(2)
    assert bridge.until(lambda f: f["t"] == "beat" and f["iteration"] == 2, "a new one")["at"] > 1_000_000
    bridge.ask("stop", grace_s=0)
    bridge.end()


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A private folder with a short path: a socket's has 108 bytes at most."""
    folder = Path(tempfile.mkdtemp(prefix="t"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_runtime_folder_is_taken_away(node: Any, runtime: Path) -> None:
    node.runs("sleep 1000")
    bridge = node.open(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    bridge.ask("start", attempt=0)
    pid = bridge.state()["pid"]
    assert runtime in Path(node.json("agent.json")["socket"]).parents
    shutil.rmtree(runtime)  # as the last logout does
    again = node.open()
    assert again.state()["pid"] == pid
    assert bridge.ask("ping")["ok"], "the old channel still works"
    again.ask("stop", grace_s=0)
    again.end()


def test_a_socket_folder_that_others_may_enter_is_refused(node: Any, runtime: Path) -> None:
    (runtime / "trainui").mkdir()
    (runtime / "trainui").chmod(0o755)
    bridge = node.dial(env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    told = bridge.until(lambda f: f["t"] == "fatal", "a refusal")
    assert f"{runtime}/trainui must be a folder of yours with mode 0700" in told["error"]
    assert bridge.process.wait(10) == 69


def test_requests_that_came_with_the_spec(node: Any) -> None:
    node.runs("exit 2")
    bridge = node.dial(extra=b'{"t":"start","attempt":0}\n')
    assert bridge.end()["ranks"][0]["code"] == 2
