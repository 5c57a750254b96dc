"""Reports of many nodes to one table: every fault in its words, equal ones in one row, the worst first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.config.schema import Cluster, Config, Hooks, Task
from engine.node_report import (
    Gpu,
    GpuUser,
    Looked,
    Machine,
    NodeReport,
    Offset,
    OtherAgent,
    Program,
    Reach,
    Room,
    node_facts,
    parse_looked,
    parse_machine,
    parse_reach,
)
from engine.plan import NodeFacts, Plan, make_plan
from engine.preflight import Finding, format_findings
from engine.preflight_nodes import check_nodes, fold_hosts, merge, unreachable
from engine.preflight_sentences import check_request

HOSTS = ("node1", "node2", "node3")


def gpus(host: str, count: int = 2, used_mib: int = 4) -> tuple[Gpu, ...]:
    return tuple(Gpu(str(i), f"GPU-{host}-{i}", "H100", 81559, used_mib) for i in range(count))


def machine_of(host: str, **changed: Any) -> Machine:
    return replace(
        Machine(
            hostname=host,
            user="ann",
            uid=1000,
            home="/home/ann",
            shell="/bin/bash",
            python=(3, 10, 2),
            executable="/usr/bin/python3",
            path="/usr/bin:/bin",
            bash="/bin/bash",
            boot_id=f"boot-{host}",
            machine_id=f"id-{host}",
            net="net:[1]",
            gpu_vendor="nvidia",
            gpus=gpus(host),
        ),
        **changed,
    )


def looked_at(**changed: Any) -> Looked:
    return replace(
        Looked(
            programs={"python": Program("/usr/bin/python")},
            files={"train.py": ""},
            mkdirs={"out": ""},
            bash={"run.sh": ""},
            room=Room("/scratch", free_bytes=2**40, free_files=10**6),
        ),
        **changed,
    )


def report_of(host: str, **changed: Any) -> NodeReport:
    good = NodeReport(
        host,
        machine=machine_of(host),
        looked=looked_at(),
        clock=Offset(0.01, 0.001),
        reach=Reach("ok", ("10.0.0.1",), "10.0.0.1"),
    )
    return replace(good, **changed)


def plan_of(task: Task | None = None, cluster: Cluster | None = None, **config: Any) -> Plan:
    cfg = Config(task=task or Task(command=["python", "train.py"]), mkdirs=["out"], **config)
    cfg.cluster = cluster or Cluster(launcher="ssh")
    facts = tuple(node_facts(host, machine_of(host), "/train") for host in HOSTS)
    return make_plan(cfg, facts, run_id="RUN", run_dir="/runs/x/RUN")


def found_with(plan: Plan | None = None, **changed: Any) -> list[Finding]:
    """The findings that are not ok, where all is well but for node2."""
    reports = [report_of(host, **(changed if host == "node2" else {})) for host in HOSTS]
    return [f for f in check_nodes(plan or plan_of(), reports) if f.level != "ok"]


def test_a_sound_cluster_has_one_row_for_each_check() -> None:
    found = check_nodes(plan_of(), [report_of(host) for host in HOSTS])
    assert {(f.level, f.host) for f in found} == {("ok", "all 3")}
    assert [(f.what, f.text) for f in found] == [
        ("connection", "answers as ann"),
        ("task.agent_python", "/usr/bin/python3 is Python 3.10.2"),
        ("bash", "/bin/bash"),
        ("task.cwd", "/train"),
        ("task.command", "/usr/bin/python"),
        ("run directory", "1024.0 GiB free at /scratch"),
        ("GPUs", "CUDA_VISIBLE_DEVICES: 0, 1"),
        ("clock", "within 1 s of this machine's"),
        ("master", "node1 is reached"),
    ]


def changed_machine(**changed: Any) -> dict[str, Any]:
    return {"machine": machine_of("node2", **changed)}


def changed_look(**changed: Any) -> dict[str, Any]:
    return {"looked": looked_at(**changed)}


@pytest.mark.parametrize(
    ("changed", "level", "what", "text", "hint"),
    [
        (
            {"fault": "node2: login as ann refused", "hint": "ssh-add a key", "machine": None, "looked": None},
            *("fail", "connection", "login as ann refused", "ssh-add a key"),
        ),
        (
            changed_machine(python=(3, 6, 8)),
            *("fail", "task.agent_python", "/usr/bin/python3 is Python 3.6.8", "name a Python 3.8 or newer"),
        ),
        (changed_machine(bash=""), "fail", "bash", "not found on PATH (/usr/bin:/bin)", "install bash"),
        (
            changed_look(bash={"run.sh": "line 3: syntax error"}),
            *("fail", "run.sh", "bash cannot read it: line 3: syntax error", "--dry-run"),
        ),
        (
            changed_look(cwd="no such file or directory", programs={}, files={}, mkdirs={}),
            *("fail", "task.cwd", "/train: no such file or directory", "set task.cwd"),
        ),
        (
            changed_look(mkdirs={"out": "/train may not be written to"}),
            *("fail", "mkdirs", "/train/out: /train may not be written to", "choose another folder"),
        ),
        (
            changed_look(programs={"python": Program("", search="/usr/bin:/bin")}),
            *("fail", "task.command", '"python" is not found on PATH (/usr/bin:/bin)', "hooks.activate"),
        ),
        (
            changed_look(files={"train.py": "no such file or directory"}),
            *("fail", "task.command", "train.py: no such file or directory (from /train)", "task.cwd"),
        ),
        (
            changed_look(room=Room("/", "/scratch may not be written to")),
            *("fail", "run directory", "/scratch may not be written to", "cluster.node_dir"),
        ),
        (
            changed_look(room=Room("/s", "/s cannot be written: no space left on device", full=True)),
            *("fail", "run directory", "/s cannot be written: no space left on device", "free some space"),
        ),
        (changed_look(room=Room("/s", free_bytes=2**20)), "fail", "run directory", "1 MiB free at /s", "free some"),
        (changed_look(room=Room("/s", free_bytes=2**29)), "warn", "run directory", "512 MiB free at /s", "logs"),
        (
            changed_look(room=Room("/s", free_bytes=2**40, free_files=12)),
            *("warn", "run directory", "12 files can still be made at /s", "remove old runs"),
        ),
        (
            changed_machine(gpu_users=(GpuUser(7, "1", "bob", "python x.py", 900), GpuUser(8, "", "", "", None))),
            *("warn", "GPUs", "in use: GPU 1 by bob's python x.py (pid 7, 900 MiB); process (pid 8)", "share"),
        ),
        (
            changed_machine(gpus=gpus("node2", used_mib=40000)),
            *("warn", "GPUs", "memory of GPU 0 (40000 MiB), 1 (40000 MiB) is held by what cannot be seen", "container"),
        ),
        (
            changed_machine(gpu_faults=("nvidia-smi does not answer within 5 s",)),
            *("warn", "GPUs", "nvidia-smi does not answer within 5 s", "reboot"),
        ),
        (changed_machine(gpus=gpus("node2", 1)), "warn", "GPUs", "1 found, other nodes have 2", "nvidia-smi -L"),
        (
            changed_machine(gpus=gpus("node1")),
            *("warn", "GPUs", "some are those of node1", "containers"),
        ),
        (
            changed_machine(boot_id="boot-node1", machine_id="id-node1"),
            *("warn", "hosts", "is the same machine as node1", "given out twice"),
        ),
        (
            changed_machine(agents=(OtherAgent(5, "ann", "RUN", "x"), OtherAgent(6, "ann", "OLD", "x"))),
            *("warn", "other runs", "running here: OLD (x)", "trainui stop"),
        ),
        (
            changed_machine(agents=(OtherAgent(6, "bob"),)),
            *("warn", "other runs", "running here: a run of bob's (agent pid 6)", "trainui stop"),
        ),
        (
            changed_machine(kills_user_processes=True),
            *("warn", "logind", "logind ends the run there as soon as our link is gone", "KillUserProcesses=no"),
        ),
        (
            {"clock": Offset(-12.34, 0.004)},
            *("warn", "clock", "its clock is 12.3 s behind this machine's (± 0.004 s)", "NTP"),
        ),
        ({"clock": Offset(1.5, 0.2)}, "warn", "clock", "its clock is 1.5 s ahead of this machine's (± 0.2 s)", "NTP"),
    ],
)
def test_what_is_wrong_on_one_node(changed: dict[str, Any], level: str, what: str, text: str, hint: str) -> None:
    (finding,) = found_with(**changed)
    assert (finding.level, finding.host, finding.what) == (level, "node2", what)
    assert finding.text.startswith(text)
    assert hint in finding.hint


@pytest.mark.parametrize(
    "changed",
    [
        {"clock": Offset(3.0, 4.0)},  # a link that slow tells nothing
        {"clock": None},
        changed_machine(boot_id="boot-node1", machine_id="id-node1", net="net:[2]"),  # containers of one host
        changed_machine(boot_id="boot-node1"),
        changed_machine(machine_id="id-node1"),  # a clone
        changed_machine(gpu_users=()),
        changed_look(room=Room("/s")),  # a file system that tells no numbers
        changed_look(torch=None),
    ],
)
def test_what_is_no_fault(changed: dict[str, Any]) -> None:
    assert found_with(**changed) == []


@pytest.mark.parametrize(
    ("reach", "text", "hint"),
    [
        (
            Reach("unresolved", error="[Errno -2] Name or service not known"),
            *('the name "node1" means nothing here ([Errno -2] Name or service not known)', "/etc/hosts"),
        ),
        (
            Reach("refused", ("127.0.1.1",), "127.0.1.1"),
            *('"node1" means this machine itself here (127.0.1.1), not node1', "cluster.master_addr"),
        ),
        (Reach("foreign", ("::1",), "::1"), '"node1" means this machine itself here (::1), not node1', "master_addr"),
        (
            Reach("foreign", ("10.9.9.9",), "10.9.9.9"),
            *('"node1" (10.9.9.9) is another machine than node1, or a proxy answers for it', "cluster.master_addr"),
        ),
        (
            Reach("refused", ("10.0.0.1",), "10.0.0.1"),
            *("node1 (10.0.0.1) refuses the connection, although node1 listens", "firewall"),
        ),
        (Reach("timeout", ("10.0.0.1", "fd00::1"), "fd00::1"), "node1 (10.0.0.1, fd00::1) does not answer", "firewall"),
        (Reach("unreachable", ("10.0.0.1",)), "there is no route to node1 (10.0.0.1)", "another network"),
        (
            Reach("error", error="no answer for 25 s while it looks at the name node1"),
            *("node1 cannot be reached: no answer for 25 s while it looks at the name node1", "cluster.master_addr"),
        ),
    ],
)
def test_a_node_that_does_not_get_to_the_master(reach: Reach, text: str, hint: str) -> None:
    (finding,) = found_with(reach=reach)
    assert (finding.level, finding.host, finding.what, finding.text) == ("fail", "node2", "master", text)
    assert hint in finding.hint


def test_an_address_is_not_explained_by_itself_and_the_master_may_be_loopback_to_itself() -> None:
    plan = plan_of(cluster=Cluster(launcher="ssh", master_addr="10.0.0.1"))
    reports = [report_of(host, reach=Reach("timeout", ("10.0.0.1",))) for host in HOSTS]
    (finding,) = [f for f in check_nodes(plan, reports) if f.level != "ok"]
    assert (finding.host, finding.text) == ("all 3", "10.0.0.1 does not answer")
    reports = [report_of("node1", reach=Reach("refused", ("127.0.1.1",))), *map(report_of, HOSTS[1:])]
    (finding,) = [f for f in check_nodes(plan_of(), reports) if f.level != "ok"]
    assert (finding.host, finding.text[:40]) == ("node1", "node1 (127.0.1.1) refuses the connection")


@pytest.mark.parametrize(
    ("fault", "level", "text"),
    [("", "ok", "29500 is free"), ("address already in use, by x (pid 7)", "fail", "29500: ")],
)
def test_a_chosen_port_is_the_masters_matter(fault: str, level: str, text: str) -> None:
    plan = plan_of(cluster=Cluster(launcher="ssh", master_port=29500))
    reports = [report_of("node1", port_fault=fault), *map(report_of, HOSTS[1:])]
    (finding,) = [f for f in check_nodes(plan, reports) if f.what == "cluster.master_port"]
    assert (finding.level, finding.host) == (level, "node1")
    assert finding.text == text + fault
    assert not [f for f in check_nodes(plan, [report_of(h) for h in HOSTS]) if f.what == "cluster.master_port"]


def test_hooks_that_may_bring_the_program_soften_the_word() -> None:
    plan = plan_of(hooks=Hooks(activate="source venv/bin/activate"))
    looked = looked_at(programs={"python": Program("", search="/bin")}, files={"train.py": "no such file or directory"})
    (finding,) = found_with(plan, looked=looked)
    assert (finding.level, finding.what) == ("warn", "task.command")
    assert finding.text.endswith("hooks.activate may change that")


def test_torchrun_without_torch() -> None:
    plan = plan_of(Task(command=["python", "train.py"], torchrun={}))
    (finding,) = found_with(plan, looked=looked_at(torch=False))
    assert (finding.level, finding.what, finding.text) == ("fail", "task.torchrun", "python has no torch")


def test_only_the_devices_that_ranks_get_are_of_interest() -> None:
    plan = plan_of(cluster=Cluster(launcher="ssh", nproc_per_node=1))
    elsewhere = (GpuUser(7, "1", "bob", "x", 900),)
    assert found_with(plan, machine=machine_of("node2", gpu_users=elsewhere)) == []
    assert len(found_with(plan, machine=machine_of("node2", gpu_users=(GpuUser(7, "0", "bob", "x", 900),)))) == 1


def test_everything_at_once_worst_first_and_equal_rows_together() -> None:
    reports = [
        report_of("node1", clock=Offset(5.0, 0.1), looked=looked_at(files={"train.py": "no such file or directory"})),
        report_of("node2", fault="node2: no answer from 10.0.0.2:22 in 15 s", machine=None, looked=None, reach=None),
        report_of("node3", looked=looked_at(files={"train.py": "no such file or directory"}, bash={"run.sh": "x"})),
    ]
    table = format_findings(check_nodes(plan_of(), reports), color=False)
    rows = [line.split() for line in table.split("\n") if line[:1].strip()]
    assert [row[:3] for row in rows[:4]] == [
        ["fail", "node[1,3]", "task.command"],
        ["fail", "node2", "connection"],
        ["fail", "node3", "run.sh"],
        ["warn", "node1", "clock"],
    ]
    assert {row[0] for row in rows[4:]} == {"ok"}
    assert "no answer from 10.0.0.2:22 in 15 s" in table


def test_what_came_from_the_node_cannot_paint_on_the_terminal() -> None:
    users = (GpuUser(7, "0", "bob", "evil\x1b]0;title\x07\x1b[31m\nname", 1),)
    (finding,) = found_with(machine=machine_of("node2", gpu_users=users))
    assert "evil" in finding.text
    assert not any(ord(char) < 32 for char in finding.text)


def test_nodes_that_did_not_answer_are_told_before_there_is_a_plan() -> None:
    reports = [report_of("node1"), *(NodeReport(h, f"{h}: refused", "start sshd") for h in ("node2", "node3"))]
    found = unreachable(reports)
    assert [(f.level, f.host, f.text, f.hint) for f in found] == [
        ("ok", "node1", "answers as ann", ""),
        ("fail", "node[2-3]", "refused", "start sshd"),
    ]


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["node01", "node02", "node03", "node07", "gpu"], "node[01-03,07],gpu"),
        (["a9", "a10"], "a9,a10"),
        (["n2-ib", "n1-ib"], "n[1-2]-ib"),
        (["10.0.0.1", "10.0.0.2", "fd00::1"], "10.0.0.1,10.0.0.2,fd00::1"),
        (["one"], "one"),
        ([], ""),
    ],
)
def test_host_names_are_folded(names: list[str], folded: str) -> None:
    assert fold_hosts(names) == folded


def test_rows_are_merged_over_hosts_only() -> None:
    row = Finding("warn", "n1", "clock", "late")
    found = merge([row, replace(row, host="n2"), replace(row, host="n2", text="early"), row], 5)
    assert [(f.host, f.text) for f in found] == [("n[1-2]", "late"), ("n2", "early")]


# -- what goes in ----------------------------------------------------------------------------------------------


def test_facts_of_a_node_are_what_planning_needs() -> None:
    found = node_facts("alias", machine_of("node1", visible={"CUDA_VISIBLE_DEVICES": "1"}), "/train")
    assert found == NodeFacts("alias", "/train", ("0", "1"), "nvidia", {"CUDA_VISIBLE_DEVICES": "1"}, home="/home/ann")
    none = node_facts("alias", machine_of("x", gpus=(), gpu_faults=("broken",)), "/train")
    assert (none.gpus, none.gpu_vendor) == ((), "")


def test_a_node_is_asked_for_what_its_plan_needs() -> None:
    plan = plan_of(Task(command=["./py/python3", "-u", "t.py"], torchrun={}), env={"PATH": "/x", "TOKEN": "s"})
    asked = check_request(plan, plan.nodes[1], "/scratch/n")
    assert (asked["cwd"], asked["node_dir"], asked["search"]) == ("/train", "/scratch/n", "/x")
    assert (asked["programs"], asked["files"], asked["mkdirs"]) == (["./py/python3"], ["t.py"], ["out"])
    assert (asked["torch"], asked["env"]["TOKEN"]) == ("./py/python3", "s")
    assert "run.sh" in asked["bash"]
    plan = plan_of(env={"TOKEN": "s"})
    plain = check_request(plan, plan.nodes[0], "/scratch/n")
    # No secret travels for a question that is not asked.
    assert (plain["torch"], plain["env"], plain["search"]) == (None, {}, None)


JUNK: list[Any] = [None, 1, "x", [], {}, [1, None, {"pid": "x"}], {"a": 1}, True, 1.5]


@pytest.mark.parametrize("parse", [parse_machine, parse_looked, parse_reach])
def test_frames_of_a_machine_that_is_not_as_it_should_be_never_break_us(parse: Callable[[dict[str, Any]], Any]) -> None:
    keys = "host uid python visible gpus gpu_users gpu_faults agents cwd programs files room torch result addresses"
    for junk in JUNK:
        parse(dict.fromkeys(keys.split(), junk))
    parse({})
