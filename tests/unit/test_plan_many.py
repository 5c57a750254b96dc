"""The plan of several nodes: numbers, folders, master, overrides, and the scripts that come of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config.host_entry import HostEntry, labels
from engine.config.hosts import parse_hosts
from engine.config.schema import Cluster, Config, Override, Task
from engine.dryrun import describe
from engine.errors import PlanError
from engine.plan import NodeFacts, Plan, make_plan
from engine.plan_json import masked_plan_json, plan_from_json, plan_to_json
from engine.render.node_spec import node_spec, stored_spec
from engine.render.run_script import run_script
from engine.rundir import RunPaths

GOLDEN = Path(__file__).parent / "golden"
RUN_DIR = "/home/me/runs/gpt-tiny/20260102-030405-abcd"


def plan_of(
    rows: list[str],
    *,
    task: Task | None = None,
    gpus: tuple[int, ...] = (),
    cluster: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    **config: Any,
) -> Plan:
    """A plan over the hosts of `rows`; `gpus`: how many each has."""
    entries = parse_hosts(rows)
    found = tuple(
        NodeFacts(
            name,
            "/home/me/job",
            gpus=tuple(str(i) for i in range(count)),
            gpu_vendor="nvidia" if count else "",
            home="/home/me",
            **(facts or {}),
        )
        for name, count in zip(labels(entries), gpus or (0,) * len(entries), strict=True)
    )
    cfg = Config(
        name="gpt-tiny",
        task=task or Task(command=["python", "train.py"]),
        cluster=Cluster(launcher="ssh", hosts=rows, **(cluster or {})),
        **config,
    )
    return make_plan(cfg, found, run_id="20260102-030405-abcd", run_dir=RUN_DIR, hosts=entries)


def shape(plan: Plan) -> list[list[int]]:
    return [[rank.rank for rank in node.ranks] for node in plan.nodes]


def sizes(plan: Plan) -> list[int]:
    return [node.local_world_size for node in plan.nodes]


def test_slots_decide_how_many_run_and_ranks_go_on_from_node_to_node() -> None:
    plan = plan_of(["a slots=2", "b slots=1", "c slots=3"])
    assert shape(plan) == [[0, 1], [2], [3, 4, 5]]
    assert [[r.local_rank for r in n.ranks] for n in plan.nodes] == [[0, 1], [0], [0, 1, 2]]
    assert (sizes(plan), plan.world_size, plan.warnings) == ([2, 1, 3], 6, ())


def test_the_least_of_slots_processes_and_devices() -> None:
    hosts = ["a slots=8", "b slots=2", "c"]
    assert sizes(plan_of(hosts, gpus=(8, 8, 8))) == [8, 2, 8]
    assert sizes(plan_of(hosts, gpus=(8, 8, 8), cluster={"nproc_per_node": 4})) == [4, 2, 4]
    assert sizes(plan_of(hosts, gpus=(8, 8, 8), cluster={"nproc_per_node": "auto"})) == [8, 2, 8]
    assert sizes(plan_of(hosts, gpus=(4, 1, 3))) == [4, 1, 3]
    assert sizes(plan_of(hosts)) == [8, 2, 1]
    assert sizes(plan_of(hosts, cluster={"nproc_per_node": 4})) == [4, 2, 4]


def test_fewer_than_asked_for_is_said_once_for_all_nodes_of_which_it_is_true() -> None:
    plan = plan_of(["n[1-6] slots=4", "big slots=8", "few slots=8"], gpus=(*(8,) * 7, 2), cluster={"nproc_per_node": 8})
    assert plan.warnings == (
        "cluster.nproc_per_node is 8, but n1, n2, n3 and 3 more have slots=4: 4 run",
        "cluster.nproc_per_node is 8, but few has 2 (the GPUs found): 2 run; "
        "cluster.gpu_binding: none lets several ranks share a device",
    )
    (warning,) = plan_of(["a slots=8"], gpus=(4,)).warnings
    assert warning.startswith("slots=8, but a has 4 (the GPUs found): 4 run")


def test_slots_beyond_the_devices_stand_where_ranks_may_share() -> None:
    plan = plan_of(["a slots=8"], gpus=(2,), cluster={"gpu_binding": "none"})
    assert (sizes(plan), plan.warnings) == ([8], ())


def test_auto_names_every_node_without_a_gpu() -> None:
    with pytest.raises(PlanError, match=r"auto finds no GPU on b and d \(write a number"):
        plan_of(["a", "b", "c", "d"], gpus=(1, 0, 2, 0), cluster={"nproc_per_node": "auto"})


def test_warnings_about_devices_name_their_nodes_once() -> None:
    facts = {"visible": {"CUDA_VISIBLE_DEVICES": "0,5"}}
    assert plan_of(["a", "b"], gpus=(2, 2), facts=facts).warnings == (
        "a and b: CUDA_VISIBLE_DEVICES of the environment names device 5, but this machine has 2",
    )


def test_torchrun_needs_equal_nodes_and_names_those_that_are_not() -> None:
    task = Task(command=["python", "t.py"], torchrun={})
    hosts = ["a slots=8", "b slots=4", "c slots=8"]
    with pytest.raises(PlanError) as caught:
        plan_of(hosts, task=task)
    assert "every node, and there would be 8 on a and c; 4 on b" in caught.value.message
    assert caught.value.hint == "cluster.nproc_per_node: 4 makes them equal"
    plan = plan_of(hosts, task=task, cluster={"nproc_per_node": 4})
    assert (plan.world_size, sizes(plan), shape(plan)) == (12, [4, 4, 4], [[0], [1], [2]])


def test_a_launcher_of_ones_own_may_have_different_nodes() -> None:
    plan = plan_of(["a slots=8", "b slots=4"], task=Task(command=["mine"], mode="per_node"))
    assert (plan.world_size, sizes(plan), shape(plan)) == (12, [8, 4], [[0], [1]])
    assert "LOCAL_WORLD_SIZE=8\n" in run_script(plan, plan.nodes[0])
    assert "WORLD_SIZE=12 LOCAL_WORLD_SIZE=4\n" in run_script(plan, plan.nodes[1])


def test_nnodes_takes_the_first_ones() -> None:
    assert [n.host for n in plan_of(["n[1-4]"], cluster={"nnodes": 2}).nodes] == ["n1", "n2"]


def test_a_node_knows_how_it_is_reached() -> None:
    plan = plan_of(["ml@gpu01:2222", "[fd00::1]", "gpu01:2223"])
    assert [(n.host, n.address, n.user, n.port, n.folder) for n in plan.nodes] == [
        ("gpu01:2222", "gpu01", "ml", 2222, "0_gpu01_2222"),
        ("fd00::1", "fd00::1", None, None, "1_fd00__1"),
        ("gpu01:2223", "gpu01", None, 2223, "2_gpu01_2223"),
    ]


def test_folders_are_one_safe_short_name_each() -> None:
    plan = plan_of(["a.example", "é.example", "[fe80::1%eth0]", "x" * 253])
    folders = [node.folder for node in plan.nodes]
    assert folders[:3] == ["0_a.example", "1__.example", "2_fe80__1_eth0"]
    assert len(folders[3]) < 100
    assert len(set(folders)) == 4


MASTERS = [
    (["ml@gpu01:2222", "b"], {}, {}, "gpu01"),
    (["[fd00::1]:22", "b"], {}, {}, "fd00::1"),
    (["alias", "b"], {}, {"address": "10.0.0.1"}, "10.0.0.1"),
    (["alias"], {}, {"address": "10.0.0.1"}, "127.0.0.1"),
    (["a", "b"], {"master_addr": "10.1.1.1"}, {"address": "10.0.0.1"}, "10.1.1.1"),
    (["a", "b"], {"master_addr": "[fd00::9]"}, {}, "fd00::9"),
    (["a", "b"], {"master_addr": "ib0"}, {"interfaces": {"ib0": "192.168.5.1", "eth0": "10.0.0.1"}}, "192.168.5.1"),
    (["a"], {"master_addr": "eth0"}, {"interfaces": {"eth0": "10.0.0.1"}}, "10.0.0.1"),
]


@pytest.mark.parametrize(("rows", "cluster", "facts", "expected"), MASTERS)
def test_the_master_is_the_first_node_as_the_others_reach_it(
    rows: list[str], cluster: dict[str, Any], facts: dict[str, Any], expected: str
) -> None:
    plan = plan_of(rows, cluster=cluster, facts=facts)
    assert plan.master_addr == expected
    assert f"export MASTER_ADDR={expected}\n" in run_script(plan, plan.nodes[-1])


@pytest.mark.parametrize(
    ("node_dir", "run_dir"),
    [
        (None, RUN_DIR),
        ("/scratch/me", "/scratch/me/gpt-tiny/20260102-030405-abcd"),
        ("/scratch//x/../me/", "/scratch/me/gpt-tiny/20260102-030405-abcd"),
        ("~", "/home/me/gpt-tiny/20260102-030405-abcd"),
        ("~/runs here", "/home/me/runs here/gpt-tiny/20260102-030405-abcd"),
    ],
)
def test_where_a_node_keeps_the_run(node_dir: str | None, run_dir: str) -> None:
    plan = plan_of(["a", "b"], cluster={"node_dir": node_dir})
    for node in plan.nodes:
        assert (node.run_dir, node.node_dir) == (run_dir, f"{run_dir}/nodes/{node.folder}")
        spec = node_spec(plan, node, (), "n")
        assert (spec["run_dir"], spec["node_dir"]) == (node.run_dir, node.node_dir)
        assert stored_spec(plan, node)["node_dir"] == node.node_dir
    assert plan.run_dir == RUN_DIR


@pytest.mark.parametrize("node_dir", ["scratch", "./x", "", "$HOME/x"])
def test_a_node_dir_must_be_absolute(node_dir: str) -> None:
    with pytest.raises(PlanError, match=r'^cluster\.node_dir: ".*" is not absolute \(it is a folder on the nodes'):
        plan_of(["a"], cluster={"node_dir": node_dir})
    with pytest.raises(PlanError, match=r'^cluster\.node_dir: "~you": this home folder is not known'):
        plan_of(["a"], cluster={"node_dir": "~you"})


def test_the_hosts_override_wins_over_its_types_and_that_over_the_rest() -> None:
    overrides = {
        "type_overrides": {
            "A": Override({"X": "type", "Y": "type", "P": "type"}, ["--type"], "type-dir", "/type/python3"),
            "B": Override({"X": "other"}),
        },
        "node_overrides": {"b": Override({"X": "node"}, ["--node", "1"], "~/node", "~/venv/bin/python")},
    }
    plan = plan_of(
        ["a type=A", "b type=A", "c"],
        task=Task(command="python -u train.py --steps 5", cwd="sub"),
        env={"X": "all", "Z": "all"},
        env_expand={"P": "$PATH", "Q": "$HOME"},
        cluster=overrides,
    )
    a, b, c = plan.nodes
    assert (a.env, a.env_expand) == ({"X": "type", "Z": "all", "Y": "type", "P": "type"}, {"Q": "$HOME"})
    assert (b.env, b.env_expand) == ({"X": "node", "Z": "all", "Y": "type", "P": "type"}, {"Q": "$HOME"})
    assert (c.env, c.env_expand) == ({"X": "all", "Z": "all"}, {"P": "$PATH", "Q": "$HOME"})
    rest = ("-u", "train.py", "--steps", "5")
    assert a.argv == ("/type/python3", *rest, "--type")
    assert b.argv == ("/home/me/venv/bin/python", *rest, "--type", "--node", "1")
    assert c.argv == ("python", *rest)
    assert [n.cwd for n in plan.nodes] == ["/home/me/job/type-dir", "/home/me/node", "/home/me/job/sub"]


def test_of_two_servers_on_one_machine_each_can_be_meant() -> None:
    overrides = {"a": Override({"X": "both", "Y": "both"}), "a:2202": Override({"X": "one"})}
    plan = plan_of(["a:2201", "a:2202"], cluster={"node_overrides": overrides})
    assert [n.env for n in plan.nodes] == [{"X": "both", "Y": "both"}, {"X": "one", "Y": "both"}]


def test_an_override_of_the_devices_is_that_nodes_pool() -> None:
    overrides = {"b": Override({"CUDA_VISIBLE_DEVICES": "3,1"})}
    plan = plan_of(["a", "b"], gpus=(4, 4), cluster={"node_overrides": overrides})
    assert [[r.device for r in n.ranks] for n in plan.nodes] == [["0", "1", "2", "3"], ["3", "1"]]
    assert [n.env for n in plan.nodes] == [{}, {}]


@pytest.mark.parametrize(
    ("task", "override", "said"),
    [
        (Task(script="echo"), Override(args=["x"]), "cluster.node_overrides.a.args: it changes the command"),
        (Task(script="echo"), Override(python="py"), "cluster.node_overrides.a.python: it changes the command"),
        (Task(command=["bash", "x"]), Override(python="py"), '.a.python: the command begins with "bash"'),
        (Task(command=["python"]), Override(python=""), "cluster.node_overrides.a.python is empty"),
        (Task(command=["python"]), Override(python="~x/p"), 'a.python: "~x/p": this home folder is not known'),
        (Task(command=["python"]), Override(cwd="~x"), 'cluster.node_overrides.a.cwd: "~x": this home folder'),
    ],
)
def test_an_override_that_has_nothing_to_change_is_refused(task: Task, override: Override, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(["a"], task=task, cluster={"node_overrides": {"a": override}})
    assert said in str(caught.value)


def two_nodes() -> Plan:
    return plan_of(
        ["ml@gpu01:2222 slots=2 type=A100", "gpu02 slots=1"],
        gpus=(8, 8),
        env={"OMP_NUM_THREADS": "4"},
        cluster={
            "node_dir": "/scratch/me",
            "node_overrides": {
                "gpu02": Override({"NCCL_SOCKET_IFNAME": "ib0"}, ["--slow"], "/data/job", "/opt/py/bin/python3")
            },
        },
    )


def torchrun_two_nodes() -> Plan:
    return plan_of(["gpu[01-02]"], gpus=(8, 8), task=Task(command=["python", "train.py"], torchrun={"max_restarts": 3}))


def conf_of(plan: Plan) -> list[str]:
    lines = [line for node in plan.nodes for line in run_script(plan, node).split("\n")]
    return [line.strip(" \\") for line in lines if "--rdzv-conf" in line]


def test_the_first_node_holds_torchruns_store_and_no_node_guesses() -> None:
    assert conf_of(torchrun_two_nodes()) == ["--rdzv-conf is_host=true", "--rdzv-conf is_host=false"]


@pytest.mark.parametrize(
    ("options", "env", "hosts"),
    [
        ({"rdzv_backend": "static"}, {}, 2),
        ({"rdzv_endpoint": "etcd:1"}, {}, 2),
        ({"standalone": True}, {}, 2),
        ({}, {"MASTER_ADDR": "elsewhere"}, 2),
        ({}, {}, 1),
    ],
)
def test_a_rendezvous_that_the_user_chose_stays_his(options: dict[str, Any], env: dict[str, str], hosts: int) -> None:
    task = Task(command=["python", "t.py"], torchrun=options)
    assert conf_of(plan_of([f"n{i}" for i in range(hosts)], task=task, env=env)) == []


def test_the_users_own_rendezvous_options_are_given_once() -> None:
    task = Task(command=["python", "t.py"], torchrun={"rdzv_conf": "join_timeout=60"})
    assert conf_of(plan_of(["a", "b"], task=task)) == ["--rdzv-conf join_timeout=60"] * 2


def golden(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8", newline="\n")
    assert file.exists(), f"UPDATE_GOLDEN=1 writes {file}"
    assert text == file.read_bytes().decode(), f"if the change is meant: UPDATE_GOLDEN=1 pytest {__file__}"


@pytest.mark.parametrize("make", [two_nodes, torchrun_two_nodes])
def test_the_scripts_of_two_nodes_are_as_agreed(make: Any) -> None:
    plan = make()
    for node in plan.nodes:
        golden(f"{make.__name__}.{node.folder}.run.sh", run_script(plan, node))


def test_the_dry_run_of_two_nodes_is_as_agreed() -> None:
    golden("two_nodes.dryrun.txt", describe(two_nodes(), RunPaths(Path(RUN_DIR)), ()))


def test_every_rank_of_every_node_finds_its_numbers(tmp_path: Path) -> None:
    shown = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES", "GROUP_RANK", "MASTER_ADDR")
    words = " ".join(f"${{{name}}}" for name in shown)
    plan = plan_of(["a slots=2", "b slots=1"], task=Task(command=["sh", "-c", f"echo {words}"], cwd=str(tmp_path)))
    told: list[str] = []
    for node in plan.nodes:
        script = tmp_path / f"{node.folder}.sh"
        script.write_text(run_script(plan, node))
        for rank in node.ranks:
            env = {"PATH": os.environ["PATH"], "LOCAL_RANK": str(rank.local_rank)}
            done = subprocess.run(["bash", str(script)], env=env, capture_output=True, text=True, timeout=60)
            told.append(done.stdout.strip())
    assert told == ["0 0 3 2 0 2 0 a", "1 1 3 2 0 2 0 a", "2 0 3 1 1 2 1 a"]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.none() | st.integers(1, 9))
def test_every_rank_has_one_place(slots: list[int], nproc: int | None) -> None:
    rows = [f"n{i} slots={count}" for i, count in enumerate(slots)]
    plan = plan_of(rows, cluster={"nproc_per_node": nproc})
    assert [rank for node in shape(plan) for rank in node] == list(range(plan.world_size))
    assert sizes(plan) == [min(count, nproc or count) for count in slots]
    assert len({node.folder for node in plan.nodes}) == len(slots)


def test_a_plan_of_many_nodes_survives_its_way_through_json() -> None:
    for plan in (two_nodes(), torchrun_two_nodes()):
        assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_a_secret_in_an_override_is_not_shown() -> None:
    plan = plan_of(["a", "b"], cluster={"node_overrides": {"b": Override({"API_TOKEN": "s3cret-value"})}})
    assert plan.nodes[1].env["API_TOKEN"] == "s3cret-value"
    assert "s3cret-value" not in json.dumps(masked_plan_json(plan, ()))
    assert "s3cret-value" not in describe(plan, RunPaths(Path(RUN_DIR)), ())


def test_hosts_and_facts_belong_together() -> None:
    facts = (NodeFacts("a", "/"), NodeFacts("b", "/"))
    with pytest.raises(ValueError):
        make_plan(Config(task=Task(command=["x"])), facts, run_id="R", run_dir="/r", hosts=[HostEntry("a")])
