"""The rendered files: as they were agreed on (golden), without fault (shellcheck), without secrets."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.config.schema import Cluster, Config, Hooks, Restart, Task
from engine.dryrun import describe
from engine.plan import NodeFacts, Plan, make_plan
from engine.render.node_spec import node_spec, render_node, render_scripts, shown_files
from engine.render.run_script import hook_script, run_script, secrets_script
from engine.render.stop_script import stop_script
from engine.rundir import RunPaths

GOLDEN = Path(__file__).parent / "golden"
RUN_DIR = "/home/me/runs/gpt-tiny/20260102-030405-abcd"


def plan_of(cfg: Config, **facts: object) -> Plan:
    node = NodeFacts("gpu01", "/home/me/job", home="/home/me", **facts)  # pyright: ignore[reportArgumentType]
    return make_plan(cfg, (node,), run_id="20260102-030405-abcd", run_dir=RUN_DIR)


def plain() -> Plan:
    return plan_of(Config(name="gpt-tiny", task=Task(command=["python", "train.py", "--steps", "1000"])))


def full() -> Plan:
    cfg = Config(
        name="gpt-tiny",
        task=Task(command=["python", "-u", "train.py", "--prompt", 'it\'s a "test"', "--bar=\r", "", "--no-cache"] * 2),
        env={
            "OMP_NUM_THREADS": "4",
            "TITLE": "zwei\nZeilen $x `y`",
            "WANDB_API_KEY": "w-123456",
            "CUDA_VISIBLE_DEVICES": "4,6",
        },
        env_expand={"PATH": "/opt/x/bin:$PATH", "LD_LIBRARY_PATH": "/opt/x/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"},
        hooks=Hooks("source venv/bin/activate\nmodule load cuda", "echo before", "rm -rf scratch\n"),
        mkdirs=["checkpoints", "tensorboard"],
        cluster=Cluster(nproc_per_node=8, master_port=29501),
        restart=Restart("on_failure", 2, 5),
    )
    return plan_of(cfg, gpus=("0", "1", "2", "3", "4", "5", "6", "7"), gpu_vendor="nvidia")


def torchrun() -> Plan:
    cfg = Config(
        name="gpt-tiny",
        task=Task(command=["venv/bin/python", "-m", "pkg.train", "--x", "a b"], torchrun={"max_restarts": 3}),
        cluster=Cluster(nproc_per_node=8),
    )
    return plan_of(cfg)


def script() -> Plan:
    lines = '# prepare\nfor i in 1 2; do\n  echo "$i"\ndone\npython train.py\n'
    return plan_of(Config(name="gpt-tiny", task=Task(script=lines), cluster=Cluster(nproc_per_node=2)))


def nasty() -> Plan:
    words = ["", "--", "'", '"', "\\", "$HOME", "$(id)", "`id`", "a\nb\n", "é漢🙂", "*", "~/x", "!", "#", "a=b", "\x01"]
    words += ["\r\n", "\x1b[31m", "{a,b}", "%s", "&& ;|<>()", "\u202e", "\\'", "$'x'", "\t ", "“q”", "\xa0", "[a]"]
    cfg = Config(
        name="it's",
        task=Task(command=["a b", *words], cwd="it's `here`"),
        env={f"V{i}": word for i, word in enumerate(words)} | {"MY_TOKEN": "$x"},
        env_expand={f"E{i}": word.replace("$", "").replace("\\", "") for i, word in enumerate(words)},
        cluster=Cluster(nproc_per_node=2, gpu_binding="CUDA_VISIBLE_DEVICES"),
    )
    return plan_of(cfg)


PLANS = {"plain": plain, "full": full, "torchrun": torchrun, "script": script}
# No golden file for this one: it is there to be hard.
ALL = {**PLANS, "nasty": nasty}


def golden(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8", newline="\n")
    assert file.exists(), f"UPDATE_GOLDEN=1 writes {file}"
    assert text == file.read_bytes().decode(), f"if the change is meant: UPDATE_GOLDEN=1 pytest {__file__}"


@pytest.mark.parametrize("name", PLANS)
def test_run_script_is_as_agreed(name: str) -> None:
    plan = PLANS[name]()
    golden(f"{name}.run.sh", run_script(plan, plan.nodes[0]))


@pytest.mark.parametrize("name", PLANS)
def test_dry_run_is_as_agreed(name: str) -> None:
    golden(f"{name}.dryrun.txt", describe(PLANS[name](), RunPaths(Path(RUN_DIR)), ()))


def test_the_other_scripts_are_as_agreed() -> None:
    plan = full()
    node = plan.nodes[0]
    golden("full.before_start.sh", hook_script(plan, node, "before_start", node.before_start))
    golden("full.after_stop.sh", hook_script(plan, node, "after_stop", node.after_stop))
    golden("full.stop.sh", stop_script(plan, node))
    golden("full.secrets.sh", secrets_script(node) or "")


@pytest.mark.parametrize("name", ALL)
def test_dry_run_holds_every_script_byte_for_byte(name: str) -> None:
    plan = ALL[name]()
    text = describe(plan, RunPaths(Path(RUN_DIR)), ())
    for file in shown_files(plan, plan.nodes[0]):
        assert f"nodes/0_gpu01/{file.name} -" in text
        assert file.text in text


def test_dry_run_and_shown_scripts_hold_no_secret() -> None:
    plan = full()
    assert "w-123456" not in describe(plan, RunPaths(Path(RUN_DIR)), ())
    assert not [f.name for f in shown_files(plan, plan.nodes[0]) if "w-123456" in f.text]
    (secrets,) = [f for f in render_scripts(plan, plan.nodes[0]) if "w-123456" in f.text]
    assert (secrets.name, secrets.mode) == ("secrets.sh", 0o600)


def test_a_secret_in_the_command_is_masked_in_the_dry_run() -> None:
    plan = plan_of(Config(name="x", task=Task(command=["python", "t.py", "--pw", "pa55word"])))
    assert "pa55word" not in describe(plan, RunPaths(Path(RUN_DIR)), ("pa55word",))


def test_the_nodes_files() -> None:
    files = {f.name: f for f in render_node(full(), full().nodes[0])}
    assert list(files) == [
        *("run.sh", "before_start.sh", "after_stop.sh", "stop.sh", "secrets.sh"),
        *("lib/trainui_heartbeat.py", "agent.py"),
    ]
    assert {f.mode for name, f in files.items() if name.endswith(".sh") and name != "secrets.sh"} == {0o700}
    assert [f.name for f in render_node(plain(), plain().nodes[0])] == [
        *("run.sh", "stop.sh", "lib/trainui_heartbeat.py", "agent.py"),
    ]


def test_the_spec_says_what_the_agent_must_know() -> None:
    plan = full()
    spec = node_spec(plan, plan.nodes[0], render_node(plan, plan.nodes[0]), "abc")
    assert {**spec, "files": sorted(spec["files"])} == {
        "v": 1,
        "nonce": "abc",
        "run_id": "20260102-030405-abcd",
        "name": "gpt-tiny",
        "node_rank": 0,
        "host": "gpu01",
        "node_dir": f"{RUN_DIR}/nodes/0_gpu01",
        "run_dir": RUN_DIR,
        "cwd": "/home/me/job",
        "mkdirs": ["checkpoints", "tensorboard"],
        "ranks": [{"rank": 0, "local_rank": 0}, {"rank": 1, "local_rank": 1}],
        "group_signal": False,
        "before_start": True,
        "after_stop": True,
        "stop_grace_s": 15.0,
        "files": sorted(f.name for f in render_node(plan, plan.nodes[0])),
    }
    assert spec["files"]["run.sh"] == {"text": run_script(plan, plan.nodes[0]), "mode": 0o700}
    assert node_spec(script(), script().nodes[0], (), "n")["group_signal"] is True


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", ALL)
def test_shellcheck_finds_nothing(name: str, tmp_path: Path) -> None:
    plan = ALL[name]()
    node = plan.nodes[0]
    texts = {
        "run.sh": run_script(plan, node).replace("source venv/bin/activate", "export VENV=1"),
        "stop.sh": stop_script(plan, node),
        "secrets.sh": secrets_script(node),
        "before_start.sh": hook_script(plan, node, "before_start", node.before_start),
        "after_stop.sh": hook_script(plan, node, "after_stop", node.after_stop),
    }
    for file, text in texts.items():
        if text is not None:
            (tmp_path / file).write_text(text, encoding="utf-8", newline="\n")
    names = [file for file, text in texts.items() if text is not None]
    done = subprocess.run(["shellcheck", *names], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""


def test_torchrun_keeps_an_interpreter_with_options_and_other_programs() -> None:
    def line(*argv: str, **options: object) -> str:
        plan = plan_of(Config(name="x", task=Task(command=list(argv), torchrun=options)))
        text = run_script(plan, plan.nodes[0]).replace(" \\\n ", "")
        return next(row for row in text.split("\n") if row.startswith("exec -- "))

    assert "python3 -m torch.distributed.run " in line("python3", "-u", "t.py", "a")
    assert line("python3", "-u", "t.py", "a").endswith(
        'trainui_attempt" t.py a || trainui_status=$?'.replace("trainui_attempt", "$TRAINUI_RUN_ID-$TRAINUI_ATTEMPT")
    )
    assert " --no-python python3 -X dev t.py" in line("python3", "-X", "dev", "t.py")
    assert line("./job", "x").startswith("exec -- python -m torch.distributed.run ")
    assert " --no-python ./job x" in line("./job", "x")
    assert " --module pkg.mod --y" in line("python", "-m", "pkg.mod", "--y")
    assert "--rdzv-backend static" in line("python", "t.py", rdzv_backend="static")
    assert "c10d" not in line("python", "t.py", rdzv_backend="static")
    assert "rdzv" not in line("python", "t.py", standalone=True)
