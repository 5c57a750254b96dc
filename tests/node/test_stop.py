"""A stop leaves nothing, whatever the ranks are, and says so only when it is true."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

# What a torchrun-like tree leaves when its leader is signalled, and what does not want to die.
HOSTILE = """
import ctypes, os, signal, subprocess, sys, time
def note(name):
    with open(name + ".tmp", "w") as f: f.write(str(os.getpid()))
    os.rename(name + ".tmp", name + ".pid")
def forever():
    while True: time.sleep(1000)
def child(name, prepare=lambda: None):
    if os.fork() == 0:
        prepare(); note(name); forever()
def daemon():
    os.setsid()
    if os.fork(): os._exit(0)
def deaf():
    for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)
def retitle():
    deaf()
    libc = ctypes.CDLL(None)
    libc.prctl(15, b"innocent", 0, 0, 0)
    # What setproctitle does: the title runs over argv into the environment.
    text = open("/proc/self/stat").read().rpartition(")")[2].split()
    start, end = int(text[45]), int(text[48])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, b"innocent", 8)
child("plain")
child("session", os.setsid)
child("double", lambda: (daemon(), deaf()))
child("deaf", lambda: (os.setsid(), deaf()))
child("titled", retitle)
if os.fork() == 0:
    os.setsid()
    os.execve(sys.executable, [sys.executable, "-S", "-c",
        "import os,signal,time\\nsignal.signal(15,signal.SIG_IGN)\\nopen('wiped.tmp','w').write(str(os.getpid()))\\n"
        "os.rename('wiped.tmp','wiped.pid')\\ntime.sleep(1000)"], {})
deaf()
note("leader")
forever()
"""
ROLES = ("plain", "session", "double", "deaf", "titled", "wiped", "leader")

# Ends and starts itself anew some thousand times a second, each time in a session of its own.
REFORKER = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("reforker.pid", "w").write(str(os.getpid()))
if os.fork() == 0:
    end = time.monotonic() + 8
    while time.monotonic() < end:
        if os.fork(): os._exit(0)
        os.setsid()
    open("survived", "w")
    os._exit(0)
time.sleep(1000)
"""


def no_one_lives(client: Any, pids: dict[str, int]) -> bool:
    return not any(client.is_alive(pid) for pid in pids.values())


@pytest.mark.parametrize("grace", [0.5, 0.0])
def test_a_hostile_tree(node: Any, client: Any, grace: float) -> None:
    node.runs(node.python(HOSTILE))
    bridge = node.start()
    pids = node.wait_pids(*ROLES)
    assert bridge.ask("stop", grace_s=grace)["ok"]
    state = bridge.end()
    assert no_one_lives(client, pids) and node.left() == []
    assert state["ranks"][0]["signal"] == signal.SIGKILL and state["ranks"][0]["by_us"]
    assert state["survivors"] == [] and state["error"] is None


def test_one_that_forks_for_ever(node: Any) -> None:
    node.runs(node.python(REFORKER), "sleep 1000")
    bridge = node.start()
    node.wait_pids("reforker")
    started = time.monotonic()
    bridge.ask("stop", grace_s=0.2)
    bridge.end()
    assert not (node.cwd / "survived").exists(), "it must be caught, not waited for"
    # No single look at /proc proves that it is gone: its last generation would have told.
    node.wait_for(lambda: time.monotonic() > started + 9, "the time it had")
    assert not (node.cwd / "survived").exists() and node.left() == []


def test_leftovers_of_ranks_that_ended_by_themselves(node: Any, client: Any) -> None:
    # The leader of the hostile tree ends once all are there, and nobody asks for a stop.
    wait = f"while not all(os.path.exists(n + '.pid') for n in {ROLES}): time.sleep(0.01)\nsys.exit(4)\n"
    node.runs(node.python(HOSTILE.rpartition("forever()")[0] + wait))
    bridge = node.start()
    state = bridge.end()
    assert state["ranks"][0]["code"] == 4 and not state["ranks"][0]["by_us"]
    assert no_one_lives(client, node.wait_pids(*ROLES)) and node.left() == []


def test_term_first_and_time_to_finish(node: Any) -> None:
    node.runs('trap "echo saving; sleep 0.3; echo saved; exit 0" TERM; touch up; while :; do sleep 0.05; done')
    bridge = node.start()
    node.wait_for((node.cwd / "up").exists, "the trap")
    bridge.ask("stop", grace_s=20)
    rank = bridge.end()["ranks"][0]
    assert rank["code"] == 0 and rank["by_us"] and node.log() == "saving\nsaved\n"
    told = bridge.until(lambda f: f["t"] == "phase" and f["phase"] == "stopping", "the deadline")
    assert 0 < told["deadline"] - rank["started_at"] < 60


def test_the_group_is_signalled_where_the_leader_is_a_script(node: Any) -> None:
    # bash waits for its foreground child, and would handle TERM only after it.
    trap = "import signal,sys,time;signal.signal(15,lambda *a:sys.exit(0));open('up','w');time.sleep(1000)"
    node.spec["group_signal"] = True
    node.runs(f'trap "echo script got it; exit 6" TERM\n{node.python(trap)[5:]}\necho child ended\nsleep 5')
    bridge = node.start()
    node.wait_for((node.cwd / "up").exists, "the child")
    bridge.ask("stop", grace_s=20)
    assert bridge.end()["ranks"][0]["code"] == 6
    assert "script got it" in node.log()


def test_a_stopped_process_gets_its_term(node: Any, client: Any) -> None:
    node.runs("echo $$ > it.pid; sleep 1000")
    bridge = node.start()
    pid = node.wait_pids("it")["it"]
    os.kill(pid, signal.SIGSTOP)
    node.wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "the stop")
    bridge.ask("stop", grace_s=20)
    assert bridge.end()["ranks"][0]["signal"] == signal.SIGTERM


def test_a_second_stop_shortens_the_first(node: Any) -> None:
    node.runs("trap '' TERM; touch up; while :; do sleep 0.05; done")
    bridge, other = node.start(), node.open()
    node.wait_for((node.cwd / "up").exists, "the rank")
    assert bridge.ask("stop", grace_s=500)["ok"] and other.ask("stop", grace_s=600)["ok"]
    bridge.phase("stopping")
    assert other.ask("stop", grace_s=0)["ok"]
    assert bridge.end()["ranks"][0]["signal"] == signal.SIGKILL
    assert other.end()["phase"] == "down"
    assert other.ask("stop", grace_s=0)["ok"], "when all is down it is no fault"


def test_more_grace_while_stopping(node: Any) -> None:
    node.runs("trap 'touch termed' TERM; touch up; while ! test -e go; do sleep 0.05; done; exit 8")
    bridge = node.start()
    node.wait_for((node.cwd / "up").exists, "the rank")
    assert not bridge.ask("grace", add_s=5)["ok"], "nothing is being stopped yet"
    bridge.ask("stop", grace_s=1)
    first = bridge.phase("stopping")["deadline"]
    assert bridge.ask("grace", add_s=100)["ok"]
    later = bridge.until(lambda f: f["t"] == "phase" and (f["deadline"] or 0) > first + 50, "a later deadline")
    assert later["deadline"] == pytest.approx(first + 100)
    node.wait_for((node.cwd / "termed").exists, "the trap")
    node.wait_for(lambda: time.time() > first + 0.3, "the first deadline")
    assert [r["ended_at"] for r in bridge.state()["ranks"]] == [None], "it still has its grace"
    (node.cwd / "go").touch()
    assert bridge.end()["ranks"][0]["code"] == 8


def test_stop_and_start_of_one_attempt_in_one_breath(node: Any) -> None:
    node.runs(*["sleep 1000"] * 8)
    bridge = node.open()
    bridge.write(b'{"t":"start","attempt":0}\n{"t":"stop","grace_s":5}\n{"t":"stop","grace_s":4}\n')
    state = bridge.end()
    assert {rank["signal"] for rank in state["ranks"]} == {signal.SIGTERM}
    assert node.left() == []


def test_attempts_follow_each_other(node: Any) -> None:
    node.runs('echo attempt $TRAINUI_ATTEMPT; test "$TRAINUI_ATTEMPT" = 1 || sleep 1000')
    bridge = node.start()
    bridge.until(lambda f: f["t"] == "spawned", "the rank")
    refused = bridge.ask("start", attempt=1)
    assert not refused["ok"] and "must be down first" in refused["error"]
    assert bridge.ask("start", attempt=0)["ok"], "the same again is no fault"
    assert len([f for f in bridge.frames if f["t"] == "spawned"]) == 1
    bridge.ask("stop", grace_s=5)
    bridge.phase("down")
    assert bridge.ask("start", attempt=1)["ok"]
    ended = bridge.until(lambda f: f["t"] == "exit" and f["attempt"] == 1, "the second attempt's end")
    assert ended["code"] == 0 and node.log(attempt=1) == "attempt 1\n"
    assert not bridge.ask("start", attempt=0)["ok"], "it is over"


def test_signals_on_request(node: Any) -> None:
    node.runs("trap 'echo dump' USR1; touch up; while :; do sleep 0.05; done", "exit 0")
    bridge = node.start()
    node.wait_for((node.cwd / "up").exists, "the rank")
    bridge.until(lambda f: f["t"] == "exit", "the other's end")
    assert bridge.ask("signal", ranks=[0], sig="USR1")["ok"]
    node.wait_for(lambda: node.log() == "dump\n", "the dump")
    assert "rank 1" in bridge.ask("signal", ranks=[0, 1], sig="SIGUSR1")["error"]
    assert not bridge.ask("signal", ranks=[0], sig="NOPE")["ok"]
    assert bridge.ask("signal", ranks=[0], sig=9)["ok"]
    rank = bridge.end()["ranks"][0]
    assert rank["signal"] == signal.SIGKILL and rank["by_us"]


def test_sigterm_to_the_agent_is_a_graceful_stop(node: Any, client: Any) -> None:
    node.runs('trap "exit 0" TERM; touch up; while :; do sleep 0.05; done')
    bridge = node.start()
    node.wait_for((node.cwd / "up").exists, "the rank")
    pid = node.agent_pid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1):
        os.kill(pid, number)
    assert bridge.ask("ping")["ok"] and client.is_alive(pid)
    os.kill(pid, signal.SIGTERM)
    bridge.phase("down")
    node.wait_for(lambda: not client.is_alive(pid), "the agent's end")
    assert node.json("attempt_0/rank_00000.exit") | {"by_us": True} == node.json("attempt_0/rank_00000.exit")
    assert node.json("attempt_0/rank_00000.exit")["code"] == 0


def test_a_main_thread_that_ended_is_no_dead_process(node: Any, client: Any) -> None:
    code = """
import ctypes, os, threading, time
def work():
    open("worker.pid", "w").write(str(os.getpid()))
    time.sleep(1000)
if os.fork() == 0:
    os.setsid()
    threading.Thread(target=work).start()
    ctypes.CDLL(None).syscall(60, 0)  # exit of this thread only (x86-64)
time.sleep(0.2)
"""
    if os.uname().machine != "x86_64":
        pytest.skip("the system call's number is that of x86-64")
    node.runs(node.python(code))
    bridge = node.start()
    pid = node.wait_pids("worker")["worker"]
    bridge.end()
    node.wait_for(lambda: not Path(f"/proc/{pid}/task").exists() or not os.listdir(f"/proc/{pid}/task"), "its end")


def test_the_agent_ends_by_itself_when_nobody_needs_it(node: Any, client: Any) -> None:
    node.runs("exit 0")
    bridge = node.start()
    bridge.end()
    pid = node.agent_pid()
    bridge.close()
    node.wait_for(lambda: not client.is_alive(pid), "the agent's end", 25)
    socket = Path(json.loads(node.text("agent.json"))["socket"])
    assert not socket.exists()


def test_stop_by_hand_says_what_it_waits_for(node: Any) -> None:
    node.runs("sleep 1000")
    node.start()
    done = node.stop_by_hand("--grace", "7")
    assert done.returncode == 0
    first, last = done.stdout.strip().split("\n")
    assert first == f"stopping run {node.run_id}: SIGTERM now, SIGKILL after 7 s"
    assert last.startswith(f"nothing of run {node.run_id} is left on ")
    assert "stopping" not in node.stop_by_hand().stdout


def test_stop_by_hand_says_that_the_agent_is_frozen(node: Any) -> None:
    node.runs("sleep 1000")
    bridge = node.start()
    bridge.until(lambda f: f["t"] == "spawned", "the rank")
    pid = node.agent_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        done = node.stop_by_hand("--kill")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.returncode == 1 and f"kill -CONT {pid}" in done.stderr
    bridge.ask("stop", grace_s=0)
    bridge.end()


@pytest.mark.parametrize("words", [["--grce"], ["--grace"], ["--grace", "soon"], ["now"]])
def test_stop_by_hand_with_words_it_does_not_know(node: Any, client: Any, words: list[str]) -> None:
    node.runs("sleep 1000")
    pid = node.start().until(lambda f: f["t"] == "spawned", "the rank")["pid"]
    done = node.stop_by_hand(*words)
    assert done.returncode == 2 and "usage" in done.stderr and client.is_alive(pid)


def test_stop_by_hand_in_a_folder_of_no_run(node: Any, client: Any) -> None:
    node.node_dir.mkdir(parents=True)
    (node.node_dir / "agent.py").write_text(client.AGENT.read_text())
    done = node.stop_by_hand()
    assert done.returncode == 1 and "node.json" in done.stderr and done.stdout == ""


@pytest.mark.root
def test_stop_by_hand_as_another_user(node: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    node.runs("exit 0")
    node.start().end()
    os.chown(node.node_dir, 12345, -1)
    done = node.stop_by_hand()
    os.chown(node.node_dir, 0, -1)
    assert done.returncode == 1 and "uid 12345" in done.stderr
