"""What many nodes' reports mean for a plan: one table, everything wrong at once, the worst first. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address

from engine.node_report import Machine, NodeReport, Reach
from engine.parse.ansi import clean_label
from engine.plan import NodePlan, Plan
from engine.preflight import FAIL, OK, WARN, Finding, worst_first
from engine.preflight_sentences import (
    agent_findings,
    bash_findings,
    command_findings,
    cwd_findings,
    gpu_findings,
    logind_findings,
    port_finding,
    python_finding,
    room_findings,
    torch_findings,
)

# More than this and times that ranks wrote down cannot be compared by eye (seconds).
MAX_OFFSET_S = 1.0
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)\Z")


def check_nodes(plan: Plan, reports: Sequence[NodeReport]) -> tuple[Finding, ...]:
    """Every finding about the plan's nodes, worst first; equal ones of several hosts are one row.

    Args:
        reports: one for each of the plan's nodes, in order.
    """
    found: list[Finding] = []
    for node, report in zip(plan.nodes, reports, strict=True):
        found += _node_findings(plan, node, report)
        found += _reach_findings(plan, node, report)
    found += _together(reports)
    return merge(worst_first([_clean(finding) for finding in found]), len(plan.nodes))


def unreachable(reports: Sequence[NodeReport]) -> tuple[Finding, ...]:
    """The nodes that did not answer, where no plan can be made without them."""
    return merge([_clean(f) for report in reports for f in _fault_findings(report)], len(reports))


def _fault_findings(report: NodeReport) -> Iterator[Finding]:
    if report.fault:
        # The host stands in the row already.
        text = report.fault.removeprefix(f"{report.host}: ")
        yield Finding(FAIL, report.host, "connection", text, report.hint)
    elif report.machine is not None:
        user = f" as {report.machine.user}" if report.machine.user else ""
        yield Finding(OK, report.host, "connection", f"answers{user}")


def _node_findings(plan: Plan, node: NodePlan, report: NodeReport) -> Iterator[Finding]:
    host, machine, looked = node.host, report.machine, report.looked
    yield from _fault_findings(report)
    if machine is None:
        return
    yield python_finding(host, machine.executable or node.agent_python, machine.python)
    yield from bash_findings(host, machine.bash, machine.path, {} if looked is None else looked.bash)
    if looked is not None:
        yield from cwd_findings(node, looked)
        yield from command_findings(node, looked)
        yield from torch_findings(node, looked)
        yield from room_findings(host, looked, "cluster.node_dir or --run-root")
    if plan.master_port is not None and report.port_fault is not None:
        yield port_finding(host, plan.master_port, report.port_fault)
    yield from gpu_findings(plan, node, machine)
    yield from agent_findings(host, plan.run_id, machine.agents)
    yield from logind_findings(host, machine.kills_user_processes, remote=True)
    yield from _clock_findings(report)


def _clock_findings(report: NodeReport) -> Iterator[Finding]:
    clock = report.clock
    if clock is None:
        return
    off = abs(clock.offset_s)
    # Within the error nothing is known.
    if off > MAX_OFFSET_S and off > clock.error_s:
        way = "ahead of" if clock.offset_s > 0 else "behind"
        text = f"its clock is {off:.1f} s {way} this machine's (± {clock.error_s:.2g} s)"
        hint = "set it by NTP: times in logs of different nodes cannot be compared"
        yield Finding(WARN, report.host, "clock", text, hint)
    else:
        yield Finding(OK, report.host, "clock", f"within {MAX_OFFSET_S:g} s of this machine's")


def _reach_findings(plan: Plan, node: NodePlan, report: NodeReport) -> Iterator[Finding]:
    reach = report.reach
    if reach is None:
        return
    name, what, master = plan.master_addr, "master", plan.nodes[0].host
    if reach.result == "ok":
        yield Finding(OK, node.host, what, f"{name} is reached")
        return
    text, hint = _unreached(name, master, node.node_rank == 0, reach)
    yield Finding(FAIL, node.host, what, text, hint)


def _unreached(name: str, master: str, is_master: bool, reach: Reach) -> tuple[str, str]:
    """Why a node does not get to the master, and what to do."""
    means = f" ({', '.join(reach.addresses)})" if reach.addresses and reach.addresses != (name,) else ""
    address = "set cluster.master_addr to an address of it that all nodes reach"
    if reach.result == "unresolved":
        return f'the name "{name}" means nothing here ({reach.error})', f"{address}, or add it to DNS or /etc/hosts"
    if not is_master and reach.addresses and all(map(_is_loopback, reach.addresses)):
        return f'"{name}" means this machine itself here{means}, not {master}', address
    if reach.result == "foreign":
        return f'"{name}"{means} is another machine than {master}, or a proxy answers for it', address
    if reach.result == "refused":
        return f"{name}{means} refuses the connection, although {master} listens", f"a firewall? Or {address}"
    if reach.result == "timeout":
        return f"{name}{means} does not answer", f"a firewall between the nodes drops it? Or {address}"
    if reach.result == "unreachable":
        return f"there is no route to {name}{means}", f"is it another network? {address}"
    return f"{name}{means} cannot be reached: {reach.error or 'no answer'}", address


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _together(reports: Sequence[NodeReport]) -> Iterator[Finding]:
    """What only shows when the nodes are looked at side by side."""
    known = [(report.host, report.machine) for report in reports if report.machine is not None]
    yield from _twins(known)
    counts = Counter(len(machine.gpus) for _, machine in known)
    usual, nodes = max(counts.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    for host, machine in known:
        # A GPU that fell off the bus leaves no other trace.
        if len(machine.gpus) < usual and nodes > 1:
            text = f"{len(machine.gpus)} found, other nodes have {usual}"
            yield Finding(WARN, host, "GPUs", text, "is one broken? See `nvidia-smi -L` and the kernel's log there")


def _twins(known: Sequence[tuple[str, Machine]]) -> Iterator[Finding]:
    first: dict[tuple[str, ...], str] = {}
    owner: dict[str, str] = {}
    for host, machine in known:
        # Containers of one host share the boot, clones share the machine id: it takes all three.
        identity = (machine.boot_id, machine.machine_id, machine.net)
        same = first.setdefault(identity, host) if machine.boot_id and machine.net else host
        if same != host:
            text = f"is the same machine as {same}"
            yield Finding(WARN, host, "hosts", text, "its devices and its memory are given out twice")
            continue
        shared = {owner.setdefault(gpu.uuid, host) for gpu in machine.gpus if gpu.uuid} - {host}
        for other in sorted(shared):
            yield Finding(WARN, host, "GPUs", f"some are those of {other}", "two containers of one machine?")


def _clean(finding: Finding) -> Finding:
    # Commands and names come from strangers.
    return replace(finding, text=clean_label(finding.text), hint=clean_label(finding.hint))


def merge(findings: Sequence[Finding], nodes: int) -> tuple[Finding, ...]:
    """One row for what is found alike on several hosts.

    Args:
        nodes: how many there are in all.
    """
    hosts: dict[tuple[str, str, str, str], list[str]] = {}
    for finding in findings:
        hosts.setdefault((finding.level, finding.what, finding.text, finding.hint), []).append(finding.host)
    return tuple(
        Finding(level, _name_all(names, nodes), what, text, hint) for (level, what, text, hint), names in hosts.items()
    )


def _name_all(names: Sequence[str], nodes: int) -> str:
    different = list(dict.fromkeys(names))
    return f"all {nodes}" if len(different) == nodes > 1 else fold_hosts(different)


def fold_hosts(names: Sequence[str]) -> str:
    """`node[01-03,07],gpu` for node01, node02, node03, node07 and gpu."""
    groups: dict[tuple[str, int, str], list[int]] = {}
    for name in names:
        match = _NUMBERED.match(name)
        # Addresses are numbers too, but nobody writes them in brackets.
        if match is None or ":" in name or name.replace(".", "").isdecimal():
            groups.setdefault((name, -1, ""), [])
        else:
            groups.setdefault((match[1], len(match[2]), match[3]), []).append(int(match[2]))
    return ",".join(_folded(*key, sorted(numbers)) for key, numbers in groups.items())


def _folded(head: str, width: int, tail: str, numbers: Sequence[int]) -> str:
    if width < 0:
        return head
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    words = [f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in runs]
    inside = ",".join(words)
    return f"{head}{inside}{tail}" if len(numbers) == 1 else f"{head}[{inside}]{tail}"
