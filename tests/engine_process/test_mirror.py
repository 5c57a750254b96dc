"""Logs of a node that does not share the run directory: a real agent elsewhere, a real supervisor, exact copies."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engine import compose
from engine.clock import SystemClock
from engine.errors import LinkError
from engine.job.state import initial
from engine.journal import Journal, read_lines, replay
from engine.keeper import NodeKeeper
from engine.link.base import Link
from engine.link.local import LocalLink
from engine.logs import mirror as mirror_module
from engine.logs.mirror import Mirror
from engine.render.node_spec import node_spec, render_node
from engine.rundir import RunPaths, rank_log
from engine.session import RestartJob, StopJob
from engine.supervisor import Supervisor

WRITER = """
import os, random, sys
rng = random.Random(int(os.environ['RANK']))
left = int(sys.argv[1])
while left:
    piece = rng.randbytes(min(left, rng.randrange(1, 200000)))
    left -= len(piece)
    os.write(1, piece)
"""


class CutLink:
    """A local link whose bridge can be killed, as a cut cable would end it."""

    def __init__(self) -> None:
        self.inner = LocalLink(sys.executable, sys.stderr.buffer)
        self.channel: Any = None
        self.specs: list[dict[str, Any]] = []

    async def open(self, agent_source: bytes, spec: dict[str, Any]) -> Any:
        self.specs.append(spec)
        self.channel = await self.inner.open(agent_source, spec)
        return self.channel

    def cut(self) -> None:
        with suppress(ProcessLookupError):
            self.channel._process.kill()


class Far:
    """Runs whose node keeps its files in a folder of its own."""

    def __init__(self, lab: Any, folder: Path, tools: Any) -> None:
        self.lab = lab
        self.far = folder / "far"
        self.tools = tools
        self.paths: Any = None
        self.link = CutLink()
        self.supervisor: Supervisor | None = None
        self.shared_dir = False

    def write(self, code: str, *args: str, ranks: int = 2, **config: Any) -> None:
        task = {"command": [sys.executable, "-S", "-c", code, *args]}
        cluster = {"nproc_per_node": ranks, "gpu_binding": "none"}
        self.paths = self.lab.write({"task": task, "cluster": cluster, "stop": {"grace_s": 1}, **config})
        self.lab.runs.remove(self.paths)  # no engine process of its own

    def start(self) -> Supervisor:
        """A new engine, in this process."""
        paths: RunPaths = self.paths
        plan = compose.load_plan(paths)
        node = plan.nodes[0]
        state = initial(plan)
        if paths.events.is_file():
            state = replay(state, read_lines(paths.events))

        def make_spec(_node: int) -> dict[str, Any]:
            spec = node_spec(plan, node, render_node(plan, node), os.urandom(8).hex())
            return spec if self.shared_dir else {**spec, "node_dir": str(self.far)}

        self.link = CutLink()
        links: dict[int, Link] = {0: self.link}
        mirrors = {0: Mirror(paths.root, node.folder)}
        self.supervisor = Supervisor(
            plan, paths, state, Journal(paths.events), SystemClock(), links, compose.agent_source(), make_spec, mirrors
        )
        self.supervisor.start()
        return self.supervisor

    def run(self, code: str, *args: str, ranks: int = 2, **config: Any) -> Supervisor:
        self.write(code, *args, ranks=ranks, **config)
        return self.start()

    def source(self, rank: int, attempt: int = 0) -> Path:
        return self.far / f"attempt_{attempt}" / f"rank_{rank:05d}.log"

    def copy(self, rank: int, attempt: int = 0) -> Path:
        return self.paths.root / rank_log(self.folder, attempt, rank)

    @property
    def folder(self) -> str:
        return compose.load_plan(self.paths).nodes[0].folder

    async def until(self, condition: Any, what: str) -> Any:
        return await self.tools.eventually(condition, what)

    async def over(self) -> Any:
        assert self.supervisor is not None
        await asyncio.wait_for(self.supervisor.over.wait(), 40)
        return self.supervisor.snapshot()

    def assert_copied(self, ranks: int, attempt: int = 0) -> None:
        for rank in range(ranks):
            assert digest(self.copy(rank, attempt)) == digest(self.source(rank, attempt)), f"rank {rank}"
            copied = json.loads(self.copy(rank, attempt).with_suffix(".exit").read_text())
            original = json.loads(self.source(rank, attempt).with_suffix(".exit").read_text())
            assert list(copied) == list(original)
            assert {k: v for k, v in copied.items() if "_at" not in k} == {
                k: v for k, v in original.items() if "_at" not in k
            }

    async def close(self) -> None:
        if self.supervisor is not None:
            if not self.supervisor.state.phase.final:
                self.supervisor.do(StopJob(kill=True))
            await self.over()
            await self.supervisor.close()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
async def far(lab: Any, tmp_path: Path, tools: Any) -> AsyncIterator[Far]:
    far = Far(lab, tmp_path, tools)
    yield far
    await far.close()
    if far.paths is not None:
        await tools.eventually(lambda: tools.of_run(far.paths) == [], "the end of all ranks")


async def test_logs_and_exits_are_here_when_the_run_is_over(far: Far) -> None:
    far.run(
        "import os, sys; os.write(1, b'\\xff\\0 no newline'); sys.exit(int(os.environ['RANK']))", fail={"grace_s": 0}
    )
    end = await far.over()
    assert end.exit_status == 1
    far.assert_copied(2)
    copied = {p.name for p in (far.paths.root / "nodes" / far.folder).iterdir()}
    assert not copied & {"agent.json", "ledger.json", "agent.log"}, "only logs and exits"
    assert far.link.specs[0]["token"]["name"].startswith(".token-")
    assert not list((far.paths.root / "nodes").glob("*/.token-*")), "the token was taken away"


async def test_who_failed_and_why_is_read_from_the_copy(far: Far) -> None:
    far.run("print('x' * 3_000_000); raise SystemExit('no such batch')", ranks=1)
    end = await far.over()
    assert end.root_cause.evidence[-1].text == "no such batch"
    assert end.root_cause.evidence[-1].line_no == 2
    far.assert_copied(1)


async def test_nothing_is_copied_where_the_disk_is_shared(far: Far) -> None:
    far.shared_dir = True
    far.run("print('hello')", ranks=1)
    await far.over()
    assert far.supervisor is not None and far.supervisor._keepers[0]._probes is not None
    assert far.supervisor._keepers[0]._probes.written == 0
    assert far.copy(0).read_text() == "hello\n"
    state = json.loads((far.paths.root / "nodes" / far.folder / "agent.json").read_text())
    assert state["shared"] is True


async def test_cut_again_and_again_the_copies_are_exact(far: Far) -> None:
    far.run(WRITER, "36000000", ranks=2)
    for cut in range(1, 6):
        await far.until(
            lambda c=cut: far.copy(0).exists() and far.copy(0).stat().st_size > 5_000_000 * c, "some megabytes"
        )
        far.link.cut()
    end = await far.over()
    assert end.exit_status == 0 and len(far.link.specs) >= 4
    assert far.copy(0).stat().st_size == 36_000_000
    far.assert_copied(2)


async def test_a_new_engine_goes_on_where_the_old_one_was(far: Far) -> None:
    far.run(WRITER + "\nimport time; print('end', flush=True); time.sleep(300)", "20000000", ranks=2)
    await far.until(lambda: far.copy(0).exists() and far.copy(0).stat().st_size > 2_000_000, "some megabytes")
    assert far.supervisor is not None
    await far.supervisor.close()
    copied = far.copy(0).stat().st_size
    await far.until(lambda: far.source(0).stat().st_size == 20_000_004, "the log, with nobody there")
    far.start()
    await far.until(
        lambda: all(far.copy(r).exists() and far.copy(r).stat().st_size == 20_000_004 for r in (0, 1)), "it"
    )
    assert far.supervisor._keepers[0]._probes.written <= 2 * 20_000_004 - copied, "not all of it travels again"
    far.supervisor.do(StopJob(kill=True))
    await far.over()
    far.assert_copied(2)


async def test_a_copy_that_was_damaged_is_made_anew(far: Far) -> None:
    far.run("import time; print('0123456789' * 10, flush=True); time.sleep(300)", ranks=1)
    await far.until(lambda: far.copy(0).exists() and far.copy(0).stat().st_size == 101, "the line")
    far.copy(0).write_bytes(b"?" * 50)
    far.link.cut()
    await far.until(lambda: digest(far.copy(0)) == digest(far.source(0)), "the copy as it should be")


async def test_every_attempt_is_copied(far: Far) -> None:
    supervisor = far.run("import os; print('attempt', os.environ['TRAINUI_ATTEMPT'])", ranks=1)
    await far.over()
    supervisor.do(RestartJob())
    await far.until(lambda: supervisor.state.attempt == 1 and supervisor.over.is_set(), "the second end")
    far.assert_copied(1, 0)
    far.assert_copied(1, 1)
    assert far.copy(0, 1).read_text() == "attempt 1\n"


async def test_a_full_disk_here_does_not_hurt_the_job(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    real, full = os.pwrite, [True]

    def pwrite(fd: int, data: Any, at: int) -> int:
        if full[0] and at + len(data) > 1000:
            raise OSError(28, "No space left on device")
        return real(fd, data, at)

    monkeypatch.setattr(mirror_module.os, "pwrite", pwrite)
    supervisor = far.run(WRITER + "\nimport time; time.sleep(300)", "5000000", ranks=1)
    fault = await far.until(lambda: [f for f in supervisor.snapshot().findings if "no space left" in f], "the fault")
    assert str(far.copy(0)) in fault[0] and "free some space" in fault[0]
    await far.until(lambda: far.source(0).stat().st_size == 5_000_000, "the rank's own log")
    assert supervisor.snapshot().phase == "running"
    full[0] = False
    await far.until(lambda: far.copy(0).stat().st_size == 5_000_000, "the copy, once there is room")
    await far.until(lambda: not [f for f in supervisor.snapshot().findings if "no space" in f], "the fault's end")
    assert digest(far.copy(0)) == digest(far.source(0))


async def test_ranges_are_read_from_the_node(far: Far) -> None:
    supervisor = far.run("import time; print('0123456789', flush=True); time.sleep(300)", ranks=1)
    keeper: NodeKeeper = supervisor._keepers[0]
    await far.until(lambda: far.copy(0).exists() and far.copy(0).stat().st_size == 11, "the line")
    assert await keeper.read(0, 0, 3, 4) == b"3456"
    assert await keeper.read(0, 0, 9, 100) == b"9\n"
    assert await keeper.read(0, 0, 50, 100) == b""
    with pytest.raises(LinkError, match="rank 9 is not on this node"):
        await keeper.read(0, 9, 0, 1)
