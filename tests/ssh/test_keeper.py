"""The engine's keeper on an SSH link: what it tells the reducer while the host comes and goes."""

from __future__ import annotations

from typing import Any

from engine.job.events import Event, LinkLost, NodeConnecting, NodeUp
from engine.keeper import NodeKeeper
from engine.link.ssh import SshLink


async def test_a_keeper_finds_the_agent_again(world: Any, lab: Any) -> None:
    daemon = world.sshd("node")
    job = world.job("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); echo $i; sleep 0.05; done")
    events: list[Event] = []
    failures: list[str] = []
    keeper = NodeKeeper(
        0,
        SshLink(world.pool(), world.target(daemon), lab.sys.executable),
        lab.AGENT.read_bytes(),
        job.spec,
        feed=events.append,
        on_failure=lambda _, text: failures.append(text),
        on_beat=lambda head: None,
    )

    def kinds(kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in events)

    await keeper.connect()
    await lab.soon(lambda: kinds(NodeUp) == 1, "the agent")
    assert (await keeper.request({"t": "start", "attempt": 0, "env": {}}))["ok"]
    await lab.soon(lambda: (job.node_dir / "attempt_0" / "rank_00000.log").exists() and job.log(), "output")

    daemon.stop()
    await lab.soon(lambda: kinds(LinkLost) == 1, "word of the loss")
    await lab.soon(lambda: failures, "a try that fails")
    assert f"nothing listens on 127.0.0.1:{daemon.port}" in failures[0]
    lines = job.log().count(b"\n")
    await lab.soon(lambda: job.log().count(b"\n") > lines, "progress without a link")

    daemon.start()
    await lab.soon(lambda: kinds(NodeUp) == 2, "the agent again")
    assert kinds(NodeConnecting) >= 3
    first, second = (event for event in events if isinstance(event, NodeUp))
    assert second.attempt == 0
    assert first.attempt is None
    assert (await keeper.request({"t": "stop", "grace_s": 1.0}))["ok"]
    await lab.soon(lambda: not job.left() or any("down" in repr(event) for event in events), "the stop")
    await keeper.release()
    await job.gone()
