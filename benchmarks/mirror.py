"""How fast a backlog of logs is copied from a node: agent, bridge and engine against `cat` of the same file.

The agent runs on this machine and its bridge is a pipe, so that nothing but our own code is measured. The yardstick
is `cat` with its output on a pipe, read by a Python that writes it to a file. Both write 200 MB to the same disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout this file is in, installed or not

from measure import alternate, table

from engine.compose import agent_source
from engine.keeper import NodeKeeper
from engine.link.local import LocalLink
from engine.logs.mirror import Mirror

MEGABYTES = 200
RUN_ID = f"bench-{os.getpid()}"


def make_log(path: Path) -> None:
    """Lines of about 100 bytes, none of them like another."""
    numbers = random.Random(1)
    with path.open("wb") as file:
        for number in range(MEGABYTES):
            lines = (b"step %9d loss %.17f %060x\n" % (number, numbers.random(), i) for i in range(9800))
            file.write(b"".join(lines)[: 1 << 20])


def cat(source: Path, target: Path) -> float:
    """`cat` through a pipe into a file."""
    target.unlink(missing_ok=True)
    begun = time.perf_counter()
    with subprocess.Popen(["cat", str(source)], stdout=subprocess.PIPE) as process, target.open("wb", 0) as file:
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 1 << 16):
            file.write(data)
    return time.perf_counter() - begun


class Bench:
    """A node of its own with one rank, whose log is the backlog."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "node" / "attempt_0" / "rank_00000.log"
        self.source = folder / "source.log"
        self.runs = 0

    def spec(self) -> dict[str, Any]:
        """The node runs `cat` once; its log is then the file."""
        script = f"exec cat {self.source}\n"
        return {
            "v": 1,
            "nonce": os.urandom(8).hex(),
            "run_id": RUN_ID,
            "name": "bench",
            "node_rank": 0,
            "host": "here",
            "node_dir": str(self.folder / "node"),
            "run_dir": str(self.folder),
            "cwd": str(self.folder),
            "mkdirs": [],
            "ranks": [{"rank": 0, "local_rank": 0}],
            "stop_grace_s": 1.0,
            "files": {"run.sh": {"text": script, "mode": 0o700}},
        }

    def keeper(self, run: Path) -> NodeKeeper:
        """What the engine has for a node that does not share its disk."""
        return NodeKeeper(
            0,
            LocalLink(sys.executable, sys.stderr.buffer),
            agent_source(),
            self.spec,
            feed=lambda _event: None,
            on_failure=lambda _node, reason: sys.exit(reason),
            on_beat=lambda _beat: None,
            mirror=Mirror(run, "0_here"),
        )

    async def fill(self) -> None:
        """Let the node's rank write its log."""
        keeper = self.keeper(self.folder / "first")
        await keeper.connect()
        await until(lambda: keeper._channel is not None, "the agent")
        await keeper.request({"t": "start", "attempt": 0})
        await until(lambda: size(self.log) == size(self.source), "the backlog")
        await keeper.close()

    async def copy(self) -> tuple[float, float]:
        """Copy it into a run directory that has nothing yet: seconds, and the engine's CPU seconds."""
        self.runs += 1
        run = self.folder / f"run{self.runs}"
        target = run / "nodes" / "0_here" / "attempt_0" / "rank_00000.log"
        keeper = self.keeper(run)
        wanted = size(self.source)
        begun, cpu = time.perf_counter(), time.process_time()
        await keeper.connect()
        await until(lambda: size(target) == wanted, "the copy")
        took = time.perf_counter() - begun, time.process_time() - cpu
        await keeper.close()
        if digest(target) != digest(self.source):
            raise SystemExit("the copy is not the log")
        target.unlink()
        return took

    async def leave(self) -> None:
        """Let the agent go."""
        keeper = self.keeper(self.folder / "last")
        await keeper.connect()
        await until(lambda: keeper._channel is not None, "the agent")
        await keeper.release()


def size(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


async def until(condition: Callable[[], bool], what: str) -> None:
    """Poll every 2 ms, for a minute at the most."""
    for _ in range(30_000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise TimeoutError(f"waited for {what}")


def digest(path: Path) -> str:
    """Of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(rounds: int) -> str:
    """The table and the ratio."""
    cpu: list[float] = []
    with tempfile.TemporaryDirectory(prefix="trainui-bench-") as name:
        bench = Bench(Path(name))
        make_log(bench.source)
        asyncio.run(bench.fill())

        def ours() -> float:
            took, used = asyncio.run(bench.copy())
            cpu.append(used)
            return took

        try:
            contestants = {"cat through a pipe": lambda: cat(bench.source, bench.folder / "cat.log"), "mirror": ours}
            results = alternate(contestants, rounds)
        finally:
            asyncio.run(bench.leave())
    cat_s, mirror_s = (result.median for result in results)
    note = (
        f"cat {MEGABYTES / cat_s:.0f} MB/s, mirror {MEGABYTES / mirror_s:.0f} MB/s with starting its bridge: "
        f"{cat_s / mirror_s:.2f} of cat; the engine used {statistics.median(cpu) / MEGABYTES * 1000:.1f} ms CPU per MB"
    )
    return table(f"{MEGABYTES} MB of backlog copied from a node", results, note=note)


if __name__ == "__main__":
    print(main(5))
