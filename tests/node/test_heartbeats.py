"""Records in the heartbeat directory become beats; whatever else lies there does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHELL = """
export TRAINUI_HEARTBEAT_DIR="$TRAINUI_NODE_DIR/attempt_$TRAINUI_ATTEMPT/heartbeat" RANK=$LOCAL_RANK
export TRAINUI_HEARTBEAT_INTERVAL_S=0.1 PYTHONPATH="$TRAINUI_NODE_DIR/lib"
"""


def with_client(node: Any, client: Any, *codes: str) -> None:
    node.file("lib/trainui_heartbeat.py", client.HEARTBEAT.read_text(), 0o600)
    node.runs(*(SHELL + node.python(code) for code in codes))


def beat(rank: int, **wanted: Any) -> Any:
    return lambda f: f["t"] == "beat" and f["rank"] == rank and all(f[k] == v for k, v in wanted.items())


def test_steps_phases_and_checkpoints(node: Any, client: Any) -> None:
    code = """
import os, time
import trainui_heartbeat as hb
hb.phase("loading")
def wait(name):
    while not os.path.exists(name): time.sleep(0.01)
wait("go1")
hb.step(41); hb.step()
wait("go2")
with hb.checkpoint(42):
    wait("go3")
hb.step(43)
wait("go4")
"""
    with_client(node, client, code)
    bridge = node.start()
    bridge.until(beat(0, phase="loading", iteration=None), "the first beat")
    for go, wanted in (
        ("go1", {"iteration": 42, "progress_seq": 2}),
        ("go2", {"checkpoint_active": True}),
        ("go3", {"iteration": 43, "checkpoint_active": False}),
    ):
        (node.cwd / go).touch()
        found = bridge.until(beat(0, attempt=0, **wanted), f"a beat with {wanted}")
        assert bridge.state()["beats"]["0"]["iteration"] in (found["iteration"], 43)
    (node.cwd / "go4").touch()
    bridge.end()
    lines = [json.loads(s) for s in next((node.node_dir / "attempt_0/heartbeat").iterdir()).read_text().splitlines()]
    events = [line["event"] for line in lines if line["event"] != "heartbeat"]
    assert events == ["process_start", "checkpoint_start", "checkpoint_end", "process_end"]
    assert {line["run_id"] for line in lines} == {node.run_id}


def test_a_child_of_a_rank_speaks_for_it(node: Any, client: Any) -> None:
    # In per_node mode the leader is a launcher, and its workers number themselves.
    code = """
import os, subprocess, sys, time
subprocess.run([sys.executable, "-S", "-c", "import trainui_heartbeat as hb, time; hb.step(7); time.sleep(3)"],
               env={**os.environ, "RANK": "5"})
"""
    with_client(node, client, code)
    node.spec["ranks"] = [{"rank": 3, "local_rank": 0}]
    bridge = node.start()
    bridge.until(beat(3, iteration=7), "the worker's beat")
    bridge.ask("stop", grace_s=0)
    bridge.end()


def test_garbage_is_passed_over(node: Any, client: Any) -> None:
    node.runs("echo $$ > it.pid; sleep 1000")
    bridge = node.start()
    pid = node.wait_pids("it")["it"]
    good = {"event": "heartbeat", "run_id": node.run_id, "rank": 0, "pid": pid, "progress_seq": 1, "phase": "training"}
    folder = node.node_dir / "attempt_0" / "heartbeat"
    path = folder / f"rank_0_pid_{pid}.heartbeat.jsonl"

    def line(**changes: Any) -> bytes:
        return json.dumps({**good, **changes}).encode() + b"\n"

    foreign = (
        line(iteration=666, run_id="another") + line(iteration=667, pid=os.getpid()) + line(iteration=668, pid="1")
    )
    noise = b"\xff\xfe\0garbage\n[]\n17\n{\n" + b"[" * 3000 + b"\n" + b"\n\n" + foreign
    path.write_bytes(noise + line(iteration=1))
    bridge.until(beat(0, iteration=1), "the beat behind the noise")
    with path.open("ab") as file:
        file.write(b'{"iteration": 5' + b"5" * 300_000)
        file.flush()
        file.write(b"}\n" + line(iteration=2)[:-20])
    (folder / "x.jsonl").mkdir()
    os.mkfifo(folder / "y.jsonl")
    bridge.ask("ping")
    with path.open("ab") as file:
        file.write(line(iteration=2)[-20:])
    bridge.until(beat(0, iteration=2), "the beat behind a line of 300 kB")
    path.write_bytes(line(iteration=3))
    bridge.until(beat(0, iteration=3), "the beat after a truncation")
    seen = {f["iteration"] for f in bridge.frames if f["t"] == "beat"}
    assert seen == {1, 2, 3}
    bridge.ask("stop", grace_s=0)
    bridge.end()


def run_alone(client: Any, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(client.HEARTBEAT.parent), "TRAINUI_RUN_ID": "r", **env}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=30)


def test_without_the_environment_it_does_nothing(client: Any, tmp_path: Path) -> None:
    code = """
import threading, trainui_heartbeat as hb
hb.step(1); hb.phase("x")
with hb.checkpoint(1): pass
assert threading.active_count() == 1
"""
    done = run_alone(client, code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null/x", "/dev/full"])
def test_a_folder_that_cannot_be_written_harms_nothing(client: Any, folder: str) -> None:
    code = """
import trainui_heartbeat as hb
for i in range(1000): hb.step(i)
hb.step("no number"); hb.step(object())
try:
    with hb.checkpoint(object()): raise KeyError("mine")
except KeyError: print("passed on")
"""
    done = run_alone(client, code, TRAINUI_HEARTBEAT_DIR=folder, TRAINUI_HEARTBEAT_INTERVAL_S="soon", RANK="x")
    assert (done.returncode, done.stdout, done.stderr) == (0, "passed on\n", "")


def test_a_forked_child_has_a_file_of_its_own(client: Any, tmp_path: Path) -> None:
    code = """
import os, sys, trainui_heartbeat as hb
hb.step(1)
if os.fork() == 0:
    sys.exit(0)
os.wait()
if os.fork() == 0:
    hb.step(100)
    sys.exit(0)
os.wait()
hb.step(2)
"""
    done = run_alone(client, code, TRAINUI_HEARTBEAT_DIR=str(tmp_path), RANK="4")
    assert (done.returncode, done.stderr) == (0, "")
    files = [[json.loads(s) for s in path.read_text().splitlines()] for path in tmp_path.iterdir()]
    assert len(files) == 2, "the child that said nothing has no file"
    for lines in files:
        assert len({line["pid"] for line in lines}) == 1 and {line["rank"] for line in lines} == {4}
        assert lines[0]["event"] == "process_start" and lines[-1]["event"] == "process_end"
    assert {lines[-1]["iteration"] for lines in files} == {2, 100}
