"""How a rank ended is told exactly, and written down before it is told."""

from __future__ import annotations

import json
import signal
import stat
from typing import Any

import pytest

ENDS = [
    ("exit 0", {"code": 0}),
    ("exit 3", {"code": 3}),
    ("exit 137", {"code": 137}),
    ("exit 300", {"code": 44}),
    ("kill -KILL $$", {"signal": signal.SIGKILL}),
    ("kill -BUS $$", {"signal": signal.SIGBUS}),
    ("kill -SEGV $$", {"signal": signal.SIGSEGV}),
    ("kill -PIPE $$", {"signal": signal.SIGPIPE}),
    ("exec no-such-command-anywhere", {"code": 127}),
]


def test_every_way_to_end_is_told_exactly(node: Any) -> None:
    node.runs(*(script for script, _ in ENDS))
    state = node.start().end()
    for rank, (script, wanted) in zip(state["ranks"], ENDS, strict=True):
        got = {key: rank[key] for key in ("code", "signal") if rank[key] is not None}
        assert got == wanted, script
        assert not rank["by_us"] and not rank["lost"]
        record = node.json(f"attempt_0/rank_{rank['rank']:05d}.exit")
        assert {key: record[key] for key in ("code", "signal") if key in record} == wanted, script
        assert record["started_at"] <= record["ended_at"] and record["started_at"].endswith("Z")


def test_the_record_is_there_when_the_end_is_told(node: Any) -> None:
    node.runs("exit 5")
    bridge = node.start()
    told = bridge.until(lambda f: f["t"] == "exit", "the end")
    assert told["code"] == 5 and told["rank"] == 0 and told["attempt"] == 0
    assert node.json("attempt_0/rank_00000.exit")["code"] == 5


def test_output_goes_to_the_log_byte_for_byte(node: Any) -> None:
    node.runs(r"printf 'a\xff\x00b\r'; printf 'err no newline' >&2")
    node.start().end()
    assert (node.node_dir / "attempt_0/rank_00000.log").read_bytes() == b"a\xff\x00b\rerr no newline"


def test_the_leaders_end_counts_even_if_a_worker_lives_on(node: Any, client: Any) -> None:
    node.runs("sleep 1000 & echo $! > worker.pid; exit 7", "sleep 1000")
    bridge = node.start()
    assert bridge.until(lambda f: f["t"] == "exit", "the leader's end")["code"] == 7
    assert client.is_alive(node.wait_pids("worker")["worker"]), "it runs on while the job does"
    bridge.ask("stop", grace_s=5)
    state = bridge.end()
    assert [rank["by_us"] for rank in state["ranks"]] == [False, True]
    assert node.left() == []


def test_what_a_rank_finds(node: Any) -> None:
    code = """
import json, os, signal, sys
print(json.dumps({
    "env": dict(os.environ), "umask": os.umask(0), "session": os.getsid(0) == os.getpid(),
    "stdin": os.readlink("/proc/self/fd/0"), "fds": sorted(os.listdir("/proc/self/fd")),
    "masked": [l for l in open("/proc/self/status") if l.startswith(("SigBlk", "SigIgn"))],
}))
"""
    node.runs(node.python(code))
    bridge = node.open(umask=0o027, env={"PATH": "/usr/bin:/bin", "MINE": "a b\n$x", "LANG": "C"})
    bridge.ask("start", attempt=4, env={"MASTER_PORT": "1234", "MINE2": "ü"})
    bridge.end()
    found = json.loads(node.log(attempt=4))
    assert found["env"]["LOCAL_RANK"] == "0" and found["env"]["TRAINUI_ATTEMPT"] == "4"
    assert found["env"]["TRAINUI_RUN_ID"] == node.run_id and found["env"]["TRAINUI_NODE_DIR"] == str(node.node_dir)
    assert found["env"]["MASTER_PORT"] == "1234" and found["env"]["MINE2"] == "ü" and found["env"]["MINE"] == "a b\n$x"
    assert found["umask"] == 0o027 and found["session"] and found["stdin"] == "/dev/null"
    assert found["fds"] == ["0", "1", "2", "3"], "the fourth is the listing itself"
    blocked, ignored = (int(line.split()[1], 16) for line in sorted(found["masked"]))
    # Python itself ignores SIGPIPE and SIGXFSZ; glibc's posix_spawn, which make uses, its own signals 32 and 33.
    assert blocked == 0 and ignored & ~sum(1 << n - 1 for n in (signal.SIGPIPE, signal.SIGXFSZ, 32, 33)) == 0


def test_files_are_for_the_owner_only(node: Any) -> None:
    node.runs("echo hello")
    node.file("secrets.sh", "export TOKEN=x\n", 0o600)
    node.file("lib/mine.py", "x = 1\n", 0o600)
    node.start().end()
    for path in [node.node_dir, *node.node_dir.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert (node.node_dir / "run.sh").stat().st_mode & 0o700 == 0o700
    assert node.text("lib/mine.py") == "x = 1\n"
    assert "files" not in node.json("node.json") and node.json("node.json")["run_id"] == node.run_id


def test_64_ranks(node: Any) -> None:
    node.runs(*["echo rank $LOCAL_RANK; exit $LOCAL_RANK"] * 64)
    state = node.start().end()
    assert [rank["code"] for rank in state["ranks"]] == list(range(64))
    assert [node.log(i) for i in range(64)] == [f"rank {i}\n" for i in range(64)]


def test_a_rank_that_cannot_be_started_says_why(node: Any) -> None:
    node.runs("exit 0")
    bridge = node.open()
    (node.node_dir / "run.sh").unlink()
    bridge.ask("start", attempt=0)
    rank = bridge.end()["ranks"][0]
    assert "run.sh is gone" in rank["error"] and rank["code"] is None and rank["pid"] is None


@pytest.mark.parametrize("python", ["/usr/bin/python3"])
def test_the_systems_own_python(node: Any, python: str) -> None:
    node.runs("exit 9")
    bridge = node.open(python=python)
    bridge.ask("start", attempt=0)
    assert bridge.end()["ranks"][0]["code"] == 9
