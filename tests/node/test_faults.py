"""What cannot work is one sentence; what breaks later harms neither the ranks nor what is known of them."""

from __future__ import annotations

import ast
import json
import os
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def refusal(node: Any) -> tuple[dict[str, Any], int]:
    """The fatal frame, and the bootstrap's exit status."""
    bridge = node.dial()
    frame = bridge.until(lambda f: f["t"] == "fatal", "a refusal")
    return frame, bridge.process.wait(10)


def test_a_file_where_the_folder_should_be(node: Any) -> None:
    node.node_dir.parent.mkdir(parents=True)
    node.node_dir.write_text("")
    frame, status = refusal(node)
    assert status == 69 and frame["kind"] == "node_dir" and str(node.node_dir) in frame["error"]


def test_a_relative_folder(node: Any) -> None:
    node.spec["node_dir"] = "runs/x"
    frame, status = refusal(node)
    assert status == 69 and frame["kind"] == "node_dir" and "runs/x" in frame["error"]


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_no_working_directory(node: Any, kind: str) -> None:
    node.spec["cwd"] = str(node.folder / "elsewhere")
    if kind == "file":
        Path(node.spec["cwd"]).write_text("")
    frame, status = refusal(node)
    assert status == 69 and frame["kind"] == "cwd" and node.spec["cwd"] in frame["error"]
    assert "task.cwd" in frame["error"] and node.left() == []


def test_mkdirs(node: Any) -> None:
    node.runs("ls -d checkpoints a/b")
    node.spec["mkdirs"] = ["checkpoints", "a/b"]
    node.start().end()
    assert node.log() == "a/b\ncheckpoints\n"


def test_mkdirs_that_cannot_be_made(node: Any) -> None:
    node.runs("exit 0")
    node.spec["mkdirs"] = ["taken/checkpoints"]
    (node.cwd / "taken").write_text("")
    state = node.start().end()
    assert "taken" in state["error"] and state["ranks"][0]["pid"] is None


def test_a_spec_that_is_none(client: Any, tmp_path: Path) -> None:
    source = client.AGENT.read_bytes()
    command = [client.sys.executable, "-I", "-S", "-c", client.BOOTSTRAP]
    done = subprocess.run(command, input=b"%d\n%b3\n{x}" % (len(source), source), capture_output=True, timeout=20)
    frame = json.loads(done.stdout.splitlines()[1])
    assert done.returncode == 69 and frame["t"] == "fatal" and done.stderr == b""


def test_unknown_requests_and_noise_harm_nobody(node: Any) -> None:
    node.runs("sleep 1000")
    bridge, loud = node.start(), node.open()
    assert not bridge.ask("dance")["ok"]
    assert not bridge.ask("stop", grace_s="soon")["ok"] and not bridge.ask("signal", ranks=3)["ok"]
    assert not bridge.ask("signal", ranks=[0], sig=float("inf"))["ok"]
    assert not bridge.ask("start", attempt=float("inf"))["ok"]
    loud.write(b"GET / HTTP/1.1\r\n\r\n")
    node.wait_for(lambda: (loud.pump(0.1), loud.eof)[1], "the noisy one's end")
    assert bridge.state()["phase"] == "running"
    port = bridge.ask("port")["port"]
    with socket.socket() as sock:
        sock.bind(("", port))
    bridge.ask("stop", grace_s=0)
    bridge.end()


def test_a_folder_that_vanishes_while_ranks_run(node: Any, client: Any) -> None:
    node.runs("trap 'exit 3' TERM; touch up; while :; do sleep 0.02; done")
    bridge = node.start()
    node.wait_for((node.cwd / "up").exists, "the rank")
    pid = node.agent_pid()
    shutil.rmtree(node.node_dir)
    bridge.ask("stop", grace_s=10)
    assert bridge.end()["ranks"][0]["code"] == 3
    bridge.release()
    node.wait_for(lambda: not client.is_alive(pid), "the agent's end")


def test_no_descriptor_left(node: Any) -> None:
    node.runs("trap 'exit 3' TERM; touch up; while :; do sleep 0.02; done")
    bridge = node.start()
    node.wait_for((node.cwd / "up").exists, "the rank")
    info = node.json("agent.json")
    used = len(os.listdir(f"/proc/{info['pid']}/fd"))
    before = resource.prlimit(info["pid"], resource.RLIMIT_NOFILE)
    resource.prlimit(info["pid"], resource.RLIMIT_NOFILE, (used + 3, before[1]))
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(10)]
    for one in crowd:
        one.connect(info["socket"])
    assert bridge.ask("ping")["ok"]
    bridge.ask("stop", grace_s=10)
    for one in crowd:
        one.close()
    state = bridge.end()
    assert state["ranks"][0]["code"] == 3 and node.left() == []
    resource.prlimit(info["pid"], resource.RLIMIT_NOFILE, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    return path


@pytest.mark.root
def test_a_disk_that_is_full_before_the_start(make_node: Any, small_disk: Path) -> None:
    node = make_node(small_disk)
    fill(small_disk)
    frame, status = refusal(node)
    assert status == 69 and frame["kind"] == "disk_full" and "no space" in frame["error"]


@pytest.mark.root
def test_a_disk_that_fills_up_loses_no_exit(make_node: Any, small_disk: Path) -> None:
    node = make_node(small_disk)
    node.runs("while ! test -e go; do sleep 0.02; done; exit 3", "while ! test -e go; do sleep 0.02; done; kill -9 $$")
    bridge = node.start()
    bridge.until(lambda f: f["t"] == "spawned" and f["rank"] == 1, "the ranks")
    filler = fill(small_disk)
    (node.cwd / "go").symlink_to("/")
    ranks = bridge.end()["ranks"]
    assert (ranks[0]["code"], ranks[1]["signal"]) == (3, 9)
    filler.unlink()
    node.wait_for((node.node_dir / "attempt_0/rank_00001.exit").exists, "the record, once there is room")
    node.wait_for((node.node_dir / "attempt_0/rank_00000.exit").exists, "the other record")
    assert node.json("attempt_0/rank_00000.exit")["code"] == 3
    node.wait_for(lambda: node.json("agent.json")["phase"] == "down", "the state, once there is room")
    bridge.close()
    node.clean_up()


@pytest.mark.parametrize("name", ["agent.py", "trainui_heartbeat.py"])
def test_python_3_8_can_read_it(client: Any, name: str) -> None:
    ast.parse((client.AGENT.parent / name).read_text(), feature_version=(3, 8))


def test_only_the_standard_library(client: Any) -> None:
    import sys

    for path in (client.AGENT, client.HEARTBEAT):
        for item in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in item.names] if isinstance(item, ast.Import) else []
            names += [item.module or ""] if isinstance(item, ast.ImportFrom) else []
            assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names)
