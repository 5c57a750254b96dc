"""The plan: which processes run where, with which device and which folder."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config.schema import Cluster, Config, Hooks, Task
from engine.devices import parse_devices
from engine.errors import PlanError
from engine.plan import NodeFacts, Plan, make_plan
from engine.plan_json import masked_plan_json, plan_from_json, plan_to_json


def plan_of(
    task: Task | None = None, facts: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **config: Any
) -> Plan:
    cfg = Config(task=task or Task(command=["python", "train.py"]), cluster=Cluster(**(cluster or {})), **config)
    node = NodeFacts("node1", "/start", home="/home/me", **(facts or {}))
    return make_plan(cfg, (node,), run_id="RUN", run_dir="/runs/job/RUN")


FOUR = {"gpus": ("0", "1", "2", "3"), "gpu_vendor": "nvidia"}


def devices(plan: Plan) -> tuple[str | None, list[str | None]]:
    return plan.nodes[0].device_var, [rank.device for rank in plan.nodes[0].ranks]


def test_without_gpus_one_process_runs_and_nothing_is_narrowed() -> None:
    plan = plan_of()
    assert (plan.world_size, plan.master_addr, plan.master_port, plan.warnings) == (1, "127.0.0.1", None, ())
    assert devices(plan) == (None, [None])


def test_one_rank_for_each_gpu_found() -> None:
    plan = plan_of(facts=FOUR)
    assert devices(plan) == ("CUDA_VISIBLE_DEVICES", ["0", "1", "2", "3"])
    assert [(r.rank, r.local_rank) for r in plan.nodes[0].ranks] == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_an_inherited_variable_is_the_pool() -> None:
    plan = plan_of(facts={**FOUR, "visible": {"CUDA_VISIBLE_DEVICES": "2, GPU-8f1,MIG-c/3"}})
    assert devices(plan) == ("CUDA_VISIBLE_DEVICES", ["2", "GPU-8f1", "MIG-c/3"])


def test_the_configs_variable_wins_over_the_inherited_and_is_not_exported_whole() -> None:
    plan = plan_of(facts={"visible": {"CUDA_VISIBLE_DEVICES": "0"}}, env={"CUDA_VISIBLE_DEVICES": "4,5", "A": "b"})
    assert devices(plan) == ("CUDA_VISIBLE_DEVICES", ["4", "5"])
    assert plan.nodes[0].env == {"A": "b"}


def test_fewer_ranks_than_devices_take_the_first_ones() -> None:
    assert devices(plan_of(facts=FOUR, cluster={"nproc_per_node": 2}))[1] == ["0", "1"]


def test_more_ranks_than_devices_are_reduced_and_it_is_said() -> None:
    plan = plan_of(facts={**FOUR, "visible": {"CUDA_VISIBLE_DEVICES": "1,3"}}, cluster={"nproc_per_node": 8})
    assert devices(plan)[1] == ["1", "3"]
    (warning,) = plan.warnings
    assert "cluster.nproc_per_node is 8" in warning
    assert "node1 has 2 (CUDA_VISIBLE_DEVICES of the environment)" in warning
    assert "gpu_binding: none" in warning


def test_without_binding_ranks_may_share_and_the_variable_stays_whole() -> None:
    plan = plan_of(
        facts=FOUR, cluster={"nproc_per_node": 8, "gpu_binding": "none"}, env={"CUDA_VISIBLE_DEVICES": "1,3"}
    )
    assert plan.world_size == 8
    assert devices(plan) == (None, [None] * 8)
    assert plan.nodes[0].env == {"CUDA_VISIBLE_DEVICES": "1,3"}
    assert plan.warnings == ()


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "-1,0,1"])
def test_hidden_devices_make_it_a_job_without_devices(value: str) -> None:
    facts = {**FOUR, "visible": {"CUDA_VISIBLE_DEVICES": value}}
    assert devices(plan_of(facts=facts)) == (None, [None])
    plan = plan_of(facts=facts, cluster={"nproc_per_node": 3})
    assert (plan.world_size, plan.warnings) == (3, ())
    with pytest.raises(PlanError, match=r"auto finds no GPU on node1: CUDA_VISIBLE_DEVICES of the environment hides"):
        plan_of(facts=facts, cluster={"nproc_per_node": "auto"})


def test_auto_counts_the_gpus_and_refuses_when_there_are_none() -> None:
    assert plan_of(facts=FOUR, cluster={"nproc_per_node": "auto"}).world_size == 4
    with pytest.raises(PlanError, match=r"^cluster.nproc_per_node: auto finds no GPU on node1"):
        plan_of(cluster={"nproc_per_node": "auto"})


@pytest.mark.parametrize(
    ("vendor", "variable"), [("amd", "HIP_VISIBLE_DEVICES"), ("ascend", "ASCEND_RT_VISIBLE_DEVICES")]
)
def test_each_maker_has_its_variable(vendor: str, variable: str) -> None:
    assert devices(plan_of(facts={"gpus": ("0", "1"), "gpu_vendor": vendor})) == (variable, ["0", "1"])


def test_a_named_variable_is_narrowed_also_for_devices_we_cannot_see() -> None:
    cluster = {"gpu_binding": "MY_VISIBLE_DEVICES", "nproc_per_node": 2}
    assert devices(plan_of(cluster=cluster)) == ("MY_VISIBLE_DEVICES", ["0", "1"])
    assert devices(plan_of(cluster=cluster, env={"MY_VISIBLE_DEVICES": "7,9"}))[1] == ["7", "9"]


def test_two_variables_are_told_of() -> None:
    visible = {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "0,1"}
    plan = plan_of(facts={"gpu_vendor": "amd", "gpus": tuple("01234567"), "visible": visible})
    assert devices(plan) == ("HIP_VISIBLE_DEVICES", ["0", "1"])
    assert "ROCR_VISIBLE_DEVICES is left as it is" in plan.warnings[0]


def test_inherited_variables_of_other_makers_are_passed_over() -> None:
    visible = {"ROCR_VISIBLE_DEVICES": "0,1,2", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert devices(plan_of(facts={**FOUR, "visible": visible})) == ("CUDA_VISIBLE_DEVICES", ["2", "3"])
    plan = plan_of(facts={**FOUR, "visible": {"ROCR_VISIBLE_DEVICES": "0"}})
    assert (devices(plan)[0], plan.world_size, plan.warnings) == ("CUDA_VISIBLE_DEVICES", 4, ())


def test_a_device_that_is_not_there_is_told_of() -> None:
    plan = plan_of(facts={**FOUR, "visible": {"CUDA_VISIBLE_DEVICES": "3,4"}})
    assert "names device 4, but this machine has 4" in plan.warnings[0]


def test_a_narrowed_variable_cannot_stand_in_env_expand() -> None:
    with pytest.raises(PlanError, match="env_expand.CUDA_VISIBLE_DEVICES"):
        plan_of(facts=FOUR, env_expand={"CUDA_VISIBLE_DEVICES": "$X"})


def test_per_node_runs_one_process_with_the_whole_pool() -> None:
    plan = plan_of(Task(command=["srun", "x"], mode="per_node"), facts=FOUR, env={"CUDA_VISIBLE_DEVICES": "1,3"})
    assert (plan.mode, plan.world_size, plan.local_world_size) == ("per_node", 2, 2)
    assert devices(plan) == (None, [None])
    assert plan.nodes[0].env == {"CUDA_VISIBLE_DEVICES": "1,3"}


def test_torchrun_implies_per_node() -> None:
    options = {"max_restarts": 3, "standalone": True, "tee": None, "no_python": False, "log_dir": "a b"}
    plan = plan_of(Task(command=["python", "t.py"], torchrun=options), cluster={"nproc_per_node": 8})
    assert (plan.mode, plan.world_size, len(plan.nodes[0].ranks)) == ("per_node", 8, 1)
    assert plan.nodes[0].torchrun == ("--max-restarts", "3", "--standalone", "--log-dir", "a b")


@pytest.mark.parametrize("option", ["nnodes", "nproc_per_node", "node-rank", "two words", "-x"])
def test_torchrun_options_that_the_plan_decides_are_refused(option: str) -> None:
    with pytest.raises(PlanError, match=r"task\.torchrun"):
        plan_of(Task(command=["python", "t.py"], torchrun={option: 1}))


def test_torchrun_needs_a_command() -> None:
    with pytest.raises(PlanError, match=r"task\.torchrun wraps a command"):
        plan_of(Task(script="echo", torchrun={}))


def test_a_text_is_split_into_shell_words_without_a_shell() -> None:
    assert plan_of(Task(command="python 'a b.py' --x=$HOME \"c d\"")).nodes[0].argv == (
        *("python", "a b.py", "--x=$HOME", "c d"),
    )
    with pytest.raises(PlanError, match=r"task\.command cannot be split into words: no closing quotation"):
        plan_of(Task(command="python 'a b"))


@pytest.mark.parametrize("command", [[], [""], "", "  "])
def test_an_empty_command_is_refused(command: Any) -> None:
    with pytest.raises(PlanError, match=r"task\.command is empty"):
        plan_of(Task(command=command))


@pytest.mark.parametrize(
    ("cwd", "absolute"),
    [(None, "/start"), ("a/../b", "/start/b"), ("/x", "/x"), ("~", "/home/me"), ("~/w", "/home/me/w")],
)
def test_cwd_is_absolute(cwd: str | None, absolute: str) -> None:
    assert plan_of(Task(command=["x"], cwd=cwd)).nodes[0].cwd == absolute


def test_another_users_home_is_refused() -> None:
    with pytest.raises(PlanError, match=r'task\.cwd: "~you/w": this home folder is not known'):
        plan_of(Task(command=["x"], cwd="~you/w"))


def test_agent_python_is_a_name_or_counts_from_the_start() -> None:
    assert plan_of(Task(command=["x"], agent_python="python3.9")).nodes[0].agent_python == "python3.9"
    assert (
        plan_of(Task(command=["x"], agent_python="venv/bin/python")).nodes[0].agent_python == "/start/venv/bin/python"
    )


def test_more_nodes_than_there_are_is_refused() -> None:
    with pytest.raises(PlanError, match=r"cluster\.nnodes is 2, but there are 1 hosts"):
        plan_of(cluster={"nnodes": 2})


def test_ranks_go_on_over_nodes() -> None:
    facts = tuple(NodeFacts(f"h{i}.example:1", "/", gpus=("0", "1")[: i + 1], gpu_vendor="nvidia") for i in range(2))
    plan = make_plan(Config(task=Task(command=["x"])), facts, run_id="R", run_dir="/r")
    assert [[r.rank for r in node.ranks] for node in plan.nodes] == [[0], [1, 2]]
    assert [node.folder for node in plan.nodes] == ["0_h0.example_1", "1_h1.example_1"]
    assert (plan.master_addr, plan.world_size) == ("h0.example:1", 3)


@pytest.mark.parametrize("text", ["${", "${A", "${1}", "${A:?x}", "${A:-${B}", "x${A//b/c}"])
def test_what_env_expand_cannot_do_is_said_before_the_start(text: str) -> None:
    with pytest.raises(PlanError, match=r"^env_expand\.X: "):
        plan_of(env_expand={"X": text})


def test_parse_devices() -> None:
    assert parse_devices(" 0, 1 ,GPU-x") == ("0", "1", "GPU-x")


@given(
    st.dictionaries(st.text(min_size=1), st.text()),
    st.lists(st.text(), min_size=1),
    st.sampled_from([{}, {"a": 1}, None]),
    st.booleans(),
)
def test_a_plan_survives_its_way_through_json(
    env: dict[str, str], args: list[str], torchrun: dict[str, Any] | None, script: bool
) -> None:
    task = Task(script="x\n") if script and torchrun is None else Task(command=["p", *args], torchrun=torchrun)
    plan = plan_of(task, facts=FOUR, env=env, env_expand={"A": "$B"}, mkdirs=["a"], hooks=Hooks(activate="x"))
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_a_plan_of_another_kind_is_refused() -> None:
    with pytest.raises((KeyError, TypeError)):
        plan_from_json({"name": "x"})


def test_the_shown_plan_has_no_secret() -> None:
    task = Task(command=["python", "t.py", "--token", "hf_s3cret", "--db=pa55word"])
    plan = plan_of(task, env={"HF_TOKEN": "hf_s3cret", "URL": "x:hf_s3cret@y", "A": "b"})
    shown = masked_plan_json(plan, ("pa55word",))
    text = json.dumps(shown)
    assert "s3cret" not in text
    assert "pa55word" not in text
    assert shown["nodes"][0]["env"] == {"HF_TOKEN": "***", "URL": "x:***@y", "A": "b"}
    assert plan.nodes[0].env["HF_TOKEN"] == "hf_s3cret"
