"""The preflight of this machine: it looks with the functions of a node's probe, and says the same sentences."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from engine.node import probe
from engine.node_report import Machine, parse_looked, parse_machine
from engine.plan import NodePlan, Plan
from engine.preflight import WARN, Finding
from engine.preflight_sentences import (
    NAMED,
    bash_findings,
    check_request,
    command_findings,
    cwd_findings,
    gpu_findings,
    logind_findings,
    port_finding,
    python_finding,
    room_findings,
    torch_findings,
)
from engine.rundir import list_runs
from engine.whereabouts import engine_lives, read_info

# Of the runs below the run root, so many are looked at.
NEWEST_RUNS = 200


def check_here(plan: Plan, node: NodePlan, env: Mapping[str, str], root: str = "/") -> Iterator[Finding]:
    """Everything about a node that is this machine.

    Args:
        env: what the ranks will inherit.
        root: where `etc` and `run` are.
    """
    host, search = node.host, env.get("PATH", os.defpath)
    looked = parse_looked(probe.look(check_request(plan, node, plan.run_dir), env))
    yield from bash_findings(host, probe.which("bash", search), env.get("PATH", ""), looked.bash)
    yield _check_python(node, env)
    yield from cwd_findings(node, looked)
    yield from command_findings(node, looked)
    yield from torch_findings(node, looked)
    yield from room_findings(host, looked)
    if plan.master_port is not None and node.node_rank == 0:
        yield port_finding(host, plan.master_port, probe.port_fault(plan.master_port, plan.master_addr))
    yield from gpu_findings(plan, node, gpus_here(env))
    yield from _check_other_runs(plan, node)
    yield from logind_findings(host, probe.kills_user_processes(root, probe.user_name(os.getuid())))


def gpus_here(env: Mapping[str, str]) -> Machine:
    """This machine's GPUs and who is on them; nothing else of it."""
    return parse_machine(probe.find_gpus(env))


def _check_python(node: NodePlan, env: Mapping[str, str]) -> Finding:
    """The agent's Python runs, and is new enough."""
    tool = probe.Tool([node.agent_python, "-I", "-S", "-c", "import sys; print(*sys.version_info[:3])"], env)
    words = (tool.output() or "").split()
    if len(words) == 3 and all(word.isdigit() for word in words):
        return python_finding(node.host, node.agent_python, [int(word) for word in words])
    if tool.status is not None:
        fault = f"is no Python that runs{f' ({tool.fault})' if tool.fault else ''}"
    else:
        fault = tool.fault or "no such file or directory"
    return python_finding(node.host, node.agent_python, (), fault)


def _check_other_runs(plan: Plan, node: NodePlan) -> Iterator[Finding]:
    """Other runs of this run root that are running here."""
    runs = list_runs(Path(plan.run_dir).parent.parent)[:NEWEST_RUNS]
    # Without a summary: the engine of a run that is over may stay for those who are attached.
    alive = [run for run in runs if not run.summary.exists() and engine_lives(run)]
    here = socket.gethostname()
    others = [run.root.name for run in alive if (info := read_info(run)) is not None and info.host == here]
    if others:
        names = ", ".join(others[:NAMED]) + (", ..." if len(others) > NAMED else "")
        yield Finding(WARN, node.host, "other runs", f"running here: {names}", "`trainui stop RUN` stops one")
