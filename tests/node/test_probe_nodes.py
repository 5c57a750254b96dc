"""Many probes at once over real links: each node's fault is its own, and what is asked follows the plan."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import engine.probe_nodes as probing
from engine.clock import SystemClock
from engine.config.schema import Cluster, Config, Task
from engine.errors import LinkError
from engine.link.base import Channel, Link
from engine.link.local import LocalLink
from engine.node import probe as look
from engine.node_report import NodeReport, node_facts
from engine.plan import Plan, make_plan
from engine.preflight_nodes import check_nodes
from engine.probe_nodes import NodeProbes
from engine.wire import Frame

SOURCE = Path(look.__file__).read_bytes()


def link(python: str = sys.executable) -> LocalLink:
    return LocalLink(python, sys.stderr.buffer)


class Changed:
    """A link to a probe in whose text something was replaced."""

    def __init__(self, old: bytes, new: bytes) -> None:
        assert SOURCE.count(old) == 1
        self._source = SOURCE.replace(old, new)

    async def open(self, agent_source: bytes, spec: dict[str, Any]) -> Channel:
        assert agent_source == SOURCE
        return await link().open(self._source, spec)


@contextlib.asynccontextmanager
async def opened(links: Sequence[Link], clock: Any = None) -> AsyncIterator[tuple[NodeProbes, tuple[NodeReport, ...]]]:
    probes = NodeProbes([f"n{i}" for i in range(len(links))], clock)
    try:
        yield probes, await probes.open(links)
    finally:
        await probes.close()


def plan_for(reports: Sequence[NodeReport], cwd: Path, command: list[str], **cluster: Any) -> Plan:
    cfg = Config(task=Task(command=list(command)), cluster=Cluster(launcher="ssh", **cluster))
    machines = [report.machine for report in reports]
    facts = tuple(
        node_facts(report.host, machine, str(cwd)) for report, machine in zip(reports, machines, strict=True) if machine
    )
    assert len(facts) == len(reports)
    return make_plan(cfg, facts, run_id="RUN", run_dir=str(cwd / "runs/x/RUN"))


def bad(plan: Plan, reports: Sequence[NodeReport]) -> list[tuple[str, str, str, str]]:
    found = [f for f in check_nodes(plan, reports) if f.level != "ok" and f.what not in ("hosts", "other runs")]
    return [(f.level, f.host, f.what, f.text) for f in found]


async def test_facts_make_the_plan_and_the_plan_is_checked_over_the_same_channels(tmp_path: Path) -> None:
    async with opened([link(), link(), link()]) as (probes, reports):
        assert [report.fault for report in reports] == ["", "", ""]
        plan = plan_for(reports, tmp_path, ["python3", "train.py"], master_addr="localhost")
        (tmp_path / "train.py").write_text("")
        reports = await probes.check(plan, [str(tmp_path / f"node{i}") for i in range(3)])
        assert bad(plan, reports) == []
        (tmp_path / "train.py").unlink()
        reports = await probes.check(plan, [str(tmp_path / f"node{i}") for i in range(3)])
        assert bad(plan, reports) == [
            ("fail", "all 3", "task.command", f"train.py: no such file or directory (from {tmp_path})")
        ]
        same = [f for f in check_nodes(plan, reports) if f.what == "hosts"]
        assert [(f.level, f.host, f.text) for f in same] == [("warn", "n[1-2]", "is the same machine as n0")]
    assert [path.name for path in tmp_path.iterdir()] == []


async def test_a_node_that_fails_keeps_no_other_from_being_looked_at(tmp_path: Path) -> None:
    async with opened([link(), link("/no/python"), link("/bin/false")]) as (probes, reports):
        assert [report.machine is not None for report in reports] == [True, False, False]
        assert "/no/python" in reports[1].fault
        assert "ended with status 1" in reports[2].fault
        whole = [replace(report, machine=reports[0].machine) for report in reports]
        plan = plan_for(whole, tmp_path, ["gone"], master_addr="127.0.0.1")
        found = bad(plan, await probes.check(plan, [str(tmp_path)] * 3))
        assert [(level, host, what) for level, host, what, _ in found] == [
            ("fail", "n0", "task.command"),
            ("fail", "n1", "connection"),
            ("fail", "n2", "connection"),
        ]


async def test_a_probe_that_ends_in_the_middle_is_a_fault_of_its_node(tmp_path: Path) -> None:
    broken = Changed(b'"ping": self._ping', b'"ping": lambda request: os._exit(3)')
    async with opened([link(), broken]) as (probes, reports):
        plan = plan_for(reports, tmp_path, ["sh"], master_addr="127.0.0.1")
        found = bad(plan, await probes.check(plan, [str(tmp_path)] * 2))
        assert found == [("fail", "n1", "connection", "the probe there ended, or the link to it")]


async def test_a_machine_that_cannot_be_looked_at_says_why() -> None:
    broken = Changed(b'"host": platform.node(),', b'"host": 1 / 0,')
    async with opened([broken]) as (_, reports):
        assert reports[0].fault == "n0: the probe could not look around there: ZeroDivisionError: division by zero"


async def test_a_look_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "CHECK_TIMEOUT_S", 0.5)
    hanging = Changed(
        b"        os.stat(path)\n", b"        os.stat(path) if 'dead' not in path else time.sleep(1000)\n"
    )
    async with opened([hanging]) as (probes, reports):
        plan = plan_for(reports, tmp_path, ["sh"], master_addr="127.0.0.1")
        ((level, host, what, text),) = bad(plan, await probes.check(plan, [f"{tmp_path}/dead/disk"]))
        assert (level, host, what) == ("fail", "n0", "connection")
        assert text == f"no answer for 0.5 s while it looks at {tmp_path}/dead/disk"


async def test_the_clock_is_told_with_its_error(tmp_path: Path) -> None:
    class Behind(SystemClock):
        def wall(self) -> float:
            return time.time() - 100.0

    async with opened([link()], Behind()) as (probes, reports):
        plan = plan_for(reports, tmp_path, ["sh"])
        (report,) = await probes.check(plan, [str(tmp_path)])
        assert report.clock is not None
        assert report.clock.offset_s == pytest.approx(100.0, abs=5.0)
        assert abs(report.clock.offset_s - 100.0) <= report.clock.error_s + 0.1
        ((level, _, what, text),) = [row for row in bad(plan, [report]) if row[2] == "clock"]
        assert (level, what) == ("warn", "clock")
        assert "ahead of this machine's (± " in text


async def test_a_chosen_port_that_is_taken_is_the_only_fault(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with opened([link(), link()]) as (probes, reports):
            plan = plan_for(reports, tmp_path, ["sh"], master_addr="127.0.0.1", master_port=port)
            ((level, host, what, text),) = bad(plan, await probes.check(plan, [str(tmp_path)] * 2))
    assert (level, host, what) == ("fail", "n0", "cluster.master_port")
    assert text.startswith(f"{port}: address already in use, by ")


async def test_a_master_whose_name_means_nothing(tmp_path: Path) -> None:
    async with opened([link(), link()]) as (probes, reports):
        plan = plan_for(reports, tmp_path, ["sh"], master_addr="no-such-host.invalid")
        ((level, host, what, text),) = bad(plan, await probes.check(plan, [str(tmp_path)] * 2))
    assert (level, host, what) == ("fail", "all 2", "master")
    assert text.startswith('the name "no-such-host.invalid" means nothing here (')


class Silent:
    """A channel on which nothing comes; what was sent is kept."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.closed = False

    async def open(self, agent_source: bytes, spec: dict[str, Any]) -> Channel:
        return self

    async def send(self, head: dict[str, Any], payload: bytes = b"") -> None:
        self.sent.append(head)

    async def frames(self) -> AsyncIterator[Frame]:
        await asyncio.Event().wait()
        yield Frame({})

    async def close(self) -> None:
        self.closed = True


async def test_a_probe_that_says_nothing_is_given_up_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "FACTS_TIMEOUT_S", 0.05)
    monkeypatch.setattr(probing, "PING_TIMEOUT_S", 0.05)
    silent = Silent()
    async with opened([silent]) as (_, reports):
        assert (reports[0].fault, reports[0].hint) == ("n0: no answer for 0.05 s", "is the machine overloaded?")
    assert silent.closed


async def test_a_probe_that_waits_for_others_is_kept_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "KEEPALIVE_S", 0.01)
    silent = Silent()
    probe = probing.NodeProbe("n", silent)
    async with asyncio.timeout(10):
        while len([head for head in silent.sent if head["t"] == "ping"]) < 3:
            await asyncio.sleep(0.01)
    await probe.close()
    with pytest.raises(LinkError, match="closed"):
        await probe.ask({"t": "ping"}, 1.0)


async def test_a_probe_that_nobody_speaks_to_ends_by_itself() -> None:
    hasty = SOURCE.replace(b"SILENCE_S = 120.0", b"SILENCE_S = 0.5")
    channel = await link().open(hasty, {"v": 1, "nonce": "n"})
    try:
        async with asyncio.timeout(10):
            assert [frame.type async for frame in channel.frames()] == ["facts"]
    finally:
        await channel.close()
