"""The probe over real daemons: one login and one session for each host, and the way between the hosts."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from engine.config.schema import Cluster, Config, Task
from engine.link.ssh import SshLink
from engine.node_report import NodeReport, node_facts
from engine.plan import Plan, make_plan
from engine.preflight_nodes import check_nodes, unreachable
from engine.probe_nodes import NodeProbes


@contextlib.asynccontextmanager
async def opened(pool: Any, targets: Sequence[Any]) -> AsyncIterator[tuple[NodeProbes, tuple[NodeReport, ...]]]:
    probes = NodeProbes([target.host for target in targets])
    try:
        yield probes, await probes.open([SshLink(pool, target, "python3") for target in targets])
    finally:
        await probes.close()


def plan_for(reports: Sequence[NodeReport], cwd: Path, **cluster: Any) -> Plan:
    facts = tuple(node_facts(report.host, report.machine, str(cwd)) for report in reports if report.machine)
    cfg = Config(task=Task(command=["sh", "-c", "true"]), cluster=Cluster(launcher="ssh", **cluster))
    return make_plan(cfg, facts, run_id="RUN", run_dir=str(cwd / "runs/x/RUN"))


def bad(plan: Plan, reports: Sequence[NodeReport]) -> list[tuple[str, str, str, str]]:
    found = [f for f in check_nodes(plan, reports) if f.level != "ok" and f.what != "other runs"]
    return [(f.level, f.host, f.what, f.text) for f in found]


async def test_one_session_is_enough_for_all_of_it(world: Any, tmp_path: Path) -> None:
    daemon = world.sshd("one", "MaxSessions=1")
    async with opened(world.pool(), [world.target(daemon)]) as (probes, reports):
        assert reports[0].fault == ""
        plan = plan_for(reports, tmp_path)
        reports = await probes.check(plan, [str(tmp_path / "node")])
        assert bad(plan, reports) == []
        assert reports[0].clock is not None
        assert reports[0].reach is not None
        assert daemon.connections() == 1


async def test_a_host_that_refuses_is_named_and_the_others_are_looked_at(world: Any, lab: Any) -> None:
    daemon = world.sshd("good")
    gone = type(world.target(daemon))("127.0.0.1", port=lab.free_port())
    async with opened(world.pool(), [world.target(daemon), gone]) as (_, reports):
        (fine, refused) = sorted(unreachable(reports), key=lambda finding: finding.level == "fail")
    assert (fine.level, fine.what) == ("ok", "connection")
    assert (refused.level, refused.what) == ("fail", "connection")
    assert refused.text == f"nothing listens on 127.0.0.1:{gone.port} (connection refused)"
    assert refused.hint


async def test_the_way_to_the_master_is_tried_from_every_host(world: Any, network: Any, tmp_path: Path) -> None:
    hosts = [network.host() for _ in range(4)]
    targets = [world.target(network.sshd(world, host)) for host in hosts]
    master, dropped, unrouted, fine = (network.address(host) for host in hosts)

    def route(host: int, kind: str, address: str) -> None:
        subprocess.run(["ip", "-n", network.space(host), "route", "add", kind, f"{address}/32"], check=True)

    route(hosts[0], "blackhole", dropped)  # the answers go nowhere, as behind a firewall that drops
    route(hosts[2], "unreachable", master)
    async with opened(world.pool(), targets) as (probes, reports):
        plan = plan_for(reports, tmp_path, master_addr=master, master_port=29500)
        found = bad(plan, reports := await probes.check(plan, [str(tmp_path)] * 4))
        # One machine in truth, but with a network each: to everybody else they are several.
        assert found == [
            ("fail", dropped, "master", f"{master} does not answer"),
            ("fail", unrouted, "master", f"there is no route to {master}"),
        ]
        assert [report.reach.result for report in reports if report.reach] == ["ok", "timeout", "unreachable", "ok"]
        assert reports[0].port_fault == ""
        plan = plan_for(reports, tmp_path, master_addr="127.0.0.1")
        found = bad(plan, await probes.check(plan, [str(tmp_path)] * 4))
        names = ",".join((dropped, unrouted, fine))
        text = f'"127.0.0.1" means this machine itself here, not {master}'
        assert found == [("fail", names, "master", text)]
