"""The rendered scripts, run by a real bash as a user would run them by hand."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.config.schema import Cluster, Config, Hooks, Task
from engine.plan import NodeFacts, Plan, make_plan
from engine.render.run_script import hook_script, run_script, secrets_script
from engine.render.stop_script import stop_script

# What a real process was started with, as bytes: what the kernel keeps, not what a runtime makes of it.
DUMP = """
import base64, json, os
b = lambda data: [base64.b64encode(x).decode() for x in data.split(b"\\0")[:-1]]
print(json.dumps({"argv": b(open("/proc/self/cmdline", "rb").read()), "cwd": os.getcwd(),
                  "env": b(open("/proc/self/environ", "rb").read())}))
"""
# utf8: Python cannot start with a word that its locale has no character for.
PYTHON = [sys.executable, "-I", "-S", "-X", "utf8", "-c", DUMP]
BARE = {"PATH": os.environ["PATH"], "HOME": "/"}
NASTY = ["", "-", "--", "-n", "'", '"', "\\", "$HOME", "$(id)", "`id`", "a\nb\n", "\n", "é漢🙂", "*", "~", "!", "#"]
# Control characters that bash once used for its own marks, and line ends of other systems.
NASTY += ["a=b", "\x01", "\x7f", "\r\n", "\x1b[31m", "\x85", "{a,b}", "%s", "&& ;|<>()", "\u202e", "\\'", "$'x'", "\t "]

text = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20),
    st.lists(st.sampled_from(NASTY), max_size=4).map("".join),
)


def plan_of(cfg: Config, tmp_path: Path, **facts: Any) -> Plan:
    return make_plan(cfg, (NodeFacts("node1", str(tmp_path), **facts),), run_id="RUN", run_dir=str(tmp_path / "run"))


def write(plan: Plan, folder: Path, node: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "run.sh"
    script.write_text(run_script(plan, plan.nodes[node]), encoding="utf-8", newline="\n")
    secrets = secrets_script(plan.nodes[node])
    if secrets is not None:
        (folder / "secrets.sh").write_text(secrets, encoding="utf-8", newline="\n")
    return script


def run(script: Path | str, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", str(script)], env={**BARE, **(env or {})}, capture_output=True, timeout=30, check=False, **more
    )


class Seen:
    """What the process at the end of the script found."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
        data = json.loads(done.stdout.decode().strip().split("\n")[-1])
        self.cwd: str = data["cwd"]
        self.argv = [base64.b64decode(word) for word in data["argv"]][len(PYTHON) :]
        pairs = [base64.b64decode(word).partition(b"=") for word in data["env"]]
        self.raw = {name: value for name, _, value in pairs}
        self.env = {name.decode(): value.decode("utf-8", "replace") for name, value in self.raw.items()}


def test_every_argument_and_value_arrives_byte_for_byte(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("bytes")

    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(text, max_size=6), st.lists(text, max_size=6), text, st.sampled_from(["C", "C.UTF-8", "POSIX"]))
    def check(args: list[str], values: list[str], secret: str, locale: str) -> None:
        env = {f"V{i}": value for i, value in enumerate(values)} | {"MY_TOKEN": secret}
        cfg = Config(task=Task(command=[*PYTHON, *args]), env=env)
        seen = Seen(run(write(plan_of(cfg, folder), folder / "n"), {"LC_ALL": locale}))
        assert seen.argv == [arg.encode() for arg in args]
        assert {name: seen.raw[name.encode()] for name in env} == {name: v.encode() for name, v in env.items()}

    check()


def test_nothing_of_env_expand_but_variables_is_expanded(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("expand")
    plain = text.map(lambda t: t.replace("\\", "/").replace("$", "")).filter(lambda t: "}" not in t)

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(plain, plain, text, plain)
    def check(before: str, after: str, value: str, word: str) -> None:
        expanded = {
            "A": f"{before}${{V}}{after}",
            "B": f"{before}$V",
            "C": f"{before}$(echo no)`echo no`",
            "D": f"\\$V{before}\\\\",
            "E": f"${{UNSET:-{word}}}{after}",
            "F": f"${{V+{word}}}${{UNSET:+{word}}}$UNSET",
            "G": f"{after}$",
        }
        cfg = Config(task=Task(command=PYTHON), env={"V": value}, env_expand=expanded)
        seen = Seen(run(write(plan_of(cfg, folder), folder / "n"), {"LC_ALL": "C.UTF-8"})).raw
        wanted = {
            "A": before + value + after,
            "B": before + value,
            "C": f"{before}$(echo no)`echo no`",
            "D": f"$V{before}\\",
            "E": word + after,
            "F": word,
            "G": after + "$",
        }
        assert {name: seen[name.encode()] for name in wanted} == {name: w.encode() for name, w in wanted.items()}

    check()


def test_env_expand_reads_the_users_own_path_and_earlier_entries(tmp_path: Path) -> None:
    cfg = Config(
        task=Task(command=PYTHON),
        env={"ROOT": "/opt/a b"},
        env_expand={"BIN": "$ROOT/bin", "PATH": "$BIN:$PATH", "LIBS": "$BIN${LIBS:+:$LIBS}", "N": "${X:-a\\}b}c"},
    )
    script = write(plan_of(cfg, tmp_path), tmp_path / "n")
    seen = Seen(run(script)).env
    assert seen["PATH"] == "/opt/a b/bin:" + BARE["PATH"]
    assert seen["LIBS"] == "/opt/a b/bin"
    assert seen["N"] == "a}bc"
    assert Seen(run(script, {"LIBS": "/usr/lib"})).env["LIBS"] == "/opt/a b/bin:/usr/lib"


def ranks_of(tmp_path: Path, **more: Any) -> Callable[[int], dict[str, str]]:
    cfg = Config(task=Task(command=PYTHON), cluster=Cluster(nproc_per_node=4, **more.pop("cluster", {})), **more)
    script = write(plan_of(cfg, tmp_path), tmp_path / "n")
    return lambda local_rank: Seen(run(script, {"LOCAL_RANK": str(local_rank)})).env


def test_a_rank_finds_its_numbers(tmp_path: Path) -> None:
    env = ranks_of(tmp_path)(3)
    wanted = {
        "RANK": "3",
        "LOCAL_RANK": "3",
        "GLOBAL_RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "4",
        "NPROCS": "4",
        "GROUP_RANK": "0",
        "NODE_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "NNODES": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "PYTHONUNBUFFERED": "1",
        "TRAINUI_RUN_ID": "RUN",
        "TRAINUI_RUN_DIR": str(tmp_path / "run"),
        "TRAINUI_ATTEMPT": "0",
        "TRAINUI_HEARTBEAT_DIR": str(tmp_path / "n/attempt_0/heartbeat"),
        "TRAINUI_HEARTBEAT_INTERVAL_S": "5",
        "FLAGSCALE_GPU_HEARTBEAT_ENABLE": "1",
        "FLAGSCALE_GPU_HEARTBEAT_DIR": str(tmp_path / "n/attempt_0/heartbeat"),
        "FLAGSCALE_GPU_HEARTBEAT_RUN_ID": "RUN",
        "PYTHONPATH": str(tmp_path / "n/lib"),
    }
    assert {name: env.get(name) for name in wanted} == wanted
    assert not [name for name in env if name.startswith("trainui_")]


def test_the_ranks_numbers_win_over_activate_but_the_rest_of_env_wins(tmp_path: Path) -> None:
    env = ranks_of(
        tmp_path,
        hooks=Hooks(activate="set -a -eu\nexport RANK=99 LOCAL_RANK=98 TRAINUI_NODE_DIR=/x WHO=$LOCAL_RANK"),
        env={"MASTER_ADDR": "10.0.0.1", "PYTHONUNBUFFERED": ""},
    )(2)
    assert (env["RANK"], env["LOCAL_RANK"], env["TRAINUI_NODE_DIR"]) == ("2", "2", str(tmp_path / "n"))
    assert (env["MASTER_ADDR"], env["PYTHONUNBUFFERED"]) == ("10.0.0.1", "")
    assert not [name for name in env if name.startswith("trainui_")], "a set -a that was left on"


def test_each_rank_gets_its_device_from_the_pool(tmp_path: Path) -> None:
    cfg = Config(task=Task(command=PYTHON), env={"CUDA_VISIBLE_DEVICES": "GPU-a,5, MIG-b/1"})
    plan = plan_of(cfg, tmp_path)
    script = write(plan, tmp_path / "n")
    devices = [Seen(run(script, {"LOCAL_RANK": str(i)})).env["CUDA_VISIBLE_DEVICES"] for i in range(3)]
    assert devices == ["GPU-a", "5", "MIG-b/1"]


def test_per_node_sets_the_nodes_part_only(tmp_path: Path) -> None:
    cfg = Config(task=Task(command=PYTHON, mode="per_node"), cluster=Cluster(nproc_per_node=8))
    script = write(plan_of(cfg, tmp_path), tmp_path / "n")
    env = Seen(run(script, {"LOCAL_RANK": "0", "RANK": "7"})).env
    assert (env["NODE_RANK"], env["NNODES"], env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("0", "1", "8", "8")
    assert not {"RANK", "LOCAL_RANK", "GLOBAL_RANK"} & set(env)


def test_pythonpath_keeps_the_users_entries_first(tmp_path: Path) -> None:
    cfg = Config(task=Task(command=PYTHON), env={"PYTHONPATH": ".:/a b"})
    assert Seen(run(write(plan_of(cfg, tmp_path), tmp_path / "n"))).env["PYTHONPATH"] == f".:/a b:{tmp_path}/n/lib"


@pytest.mark.parametrize("folder", ["a b", "it's", 'q"$(id)', "-dash", "ünïcode"])
def test_the_folder_may_have_any_name_and_the_caller_any_cwd(tmp_path: Path, folder: str) -> None:
    cfg = Config(task=Task(command=PYTHON, cwd=f"work {folder}"))
    (tmp_path / f"work {folder}").mkdir()
    script = write(plan_of(cfg, tmp_path), tmp_path / folder)
    for where, name in ((tmp_path, f"./{folder}/run.sh"), (script.parent, "run.sh"), (Path("/"), str(script))):
        seen = Seen(run(name, {"CDPATH": "/usr"}, cwd=where))
        assert seen.cwd == str(tmp_path / f"work {folder}")
        heartbeat = Path(seen.env["TRAINUI_HEARTBEAT_DIR"])
        assert heartbeat.parent.parent.resolve() == script.parent.resolve()


def test_the_agents_values_reach_the_rank(tmp_path: Path) -> None:
    script = write(plan_of(Config(task=Task(command=PYTHON)), tmp_path), tmp_path / "n")
    env = Seen(run(script, {"TRAINUI_ATTEMPT": "3", "MASTER_PORT": "1234", "TRAINUI_NODE_DIR": "/elsewhere"})).env
    assert (env["TRAINUI_ATTEMPT"], env["MASTER_PORT"]) == ("3", "1234")
    assert env["TRAINUI_HEARTBEAT_DIR"] == "/elsewhere/attempt_3/heartbeat"


def said(cfg: Config, tmp_path: Path, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = run(write(plan_of(cfg, tmp_path), tmp_path / "n"), env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_commands_own_status_and_signal_are_the_scripts(tmp_path: Path) -> None:
    assert said(Config(task=Task(command=["sh", "-c", "exit 42"])), tmp_path)[0] == 42
    assert said(Config(task=Task(command=["sh", "-c", "kill -KILL $$"])), tmp_path)[0] == -9


def test_a_missing_command_is_127_and_names_path(tmp_path: Path) -> None:
    code, _, err = said(Config(task=Task(command=["no-such-program", "x"])), tmp_path)
    assert code == 127
    assert "trainui: command not found: no-such-program" in err
    assert BARE["PATH"] in err


def test_a_missing_command_is_told_also_under_set_e(tmp_path: Path) -> None:
    cfg = Config(task=Task(command=["no-such-program"]), hooks=Hooks(activate="set -euo pipefail"))
    code, _, err = said(cfg, tmp_path)
    assert (code, "trainui: command not found" in err) == (127, True)


def test_a_file_that_is_not_executable_is_126(tmp_path: Path) -> None:
    (tmp_path / "prog").write_text("#!/bin/sh\n")
    code, _, err = said(Config(task=Task(command=["./prog"])), tmp_path)
    assert (code, "trainui: the command cannot be run: ./prog" in err) == (126, True)


def test_a_missing_cwd_is_126_and_the_command_does_not_run(tmp_path: Path) -> None:
    code, out, err = said(Config(task=Task(command=["echo", "ran"], cwd="no/such folder")), tmp_path)
    assert (code, out) == (126, "")
    assert f"trainui: the folder of task.cwd cannot be entered: {tmp_path}/no/such folder" in err


@pytest.mark.parametrize(
    ("activate", "named"),
    [
        ("source missing/activate", "source missing/activate"),
        ("source missing/activate\nexport X=1", "source missing/activate"),
        ("false\ntrue", "false"),
        ("source ./bad.sh", "source ./bad.sh"),
    ],
)
def test_a_failing_activate_stops_the_rank(tmp_path: Path, activate: str, named: str) -> None:
    (tmp_path / "bad.sh").write_text("true\nreturn 3\n")
    cfg = Config(task=Task(command=["echo", "ran"]), hooks=Hooks(activate=activate))
    code, out, err = said(cfg, tmp_path)
    assert (code, out) == (126, "")
    assert "trainui: hooks.activate failed with status" in err
    assert named in err


def test_what_activates_scripts_try_inside_is_their_own_affair(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("false\ngrep -q x /dev/null\nexport FROM_FILE=yes\n")
    lines = "f() { false; true; }\nf\n[ -f nope ] && echo no\nsource ./env.sh\nfalse || true\nexport HERE=$PWD"
    cfg = Config(task=Task(command=PYTHON), hooks=Hooks(activate=lines))
    seen = Seen(run(write(plan_of(cfg, tmp_path), tmp_path / "n"))).env
    assert (seen["FROM_FILE"], seen["HERE"]) == ("yes", str(tmp_path))


@pytest.mark.parametrize("local_rank", ["4", "x", "-1", "1 2"])
def test_a_local_rank_that_is_not_there_is_refused(tmp_path: Path, local_rank: str) -> None:
    cfg = Config(task=Task(command=["echo", "ran"]), cluster=Cluster(nproc_per_node=4))
    code, out, err = said(cfg, tmp_path, {"LOCAL_RANK": local_rank})
    assert (code, out) == (126, "")
    assert local_rank in err


def test_a_script_runs_verbatim_and_ends_with_its_own_status(tmp_path: Path) -> None:
    cfg = Config(task=Task(script="cat <<'X'\n  $HOME `id`\nX\necho \"rank $RANK\"\nexit 7"))
    assert said(cfg, tmp_path) == (7, "  $HOME `id`\nrank 0\n", "")


def test_secrets_come_from_their_own_file(tmp_path: Path) -> None:
    cfg = Config(task=Task(command=PYTHON), env={"HF_TOKEN": "hf_s3cret", "URL": "http://u:hf_s3cret@h", "PLAIN": "p"})
    script = write(plan_of(cfg, tmp_path), tmp_path / "n")
    assert "s3cret" not in script.read_text()
    seen = Seen(run(script)).env
    assert (seen["HF_TOKEN"], seen["URL"], seen["PLAIN"]) == ("hf_s3cret", "http://u:hf_s3cret@h", "p")
    (script.parent / "secrets.sh").unlink()
    done = run(script)
    assert done.returncode == 126
    assert b"trainui: secrets.sh cannot be read in" in done.stderr


def test_torchruns_command_line_reaches_the_interpreter(tmp_path: Path) -> None:
    # A stand-in for the interpreter shows what it was called with.
    fake = tmp_path / "bin/python"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    cfg = Config(
        task=Task(
            command=[str(fake), "-u", "train.py", "--name", "a b"], torchrun={"max_restarts": 3, "redirects": "1"}
        ),
        cluster=Cluster(nproc_per_node=2),
    )
    done = run(write(plan_of(cfg, tmp_path), tmp_path / "n"), {"MASTER_PORT": "4567", "TRAINUI_ATTEMPT": "2"})
    assert done.stdout.decode().split("\n")[:-1] == [
        *["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2", "--node-rank", "0"],
        *["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:4567", "--rdzv-id", "RUN-2"],
        *["--max-restarts", "3", "--redirects", "1", "train.py", "--name", "a b"],
    ]


@pytest.mark.torch
@pytest.mark.parametrize("front", [[], ["-X", "dev"]])
def test_a_real_torchrun_starts_the_ranks_with_the_plans_numbers(tmp_path: Path, front: list[str]) -> None:
    pytest.importorskip("torch")
    program = "import os, sys\nprint('|'.join([os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'NODE_RANK', "
    program += "'TORCHELASTIC_RUN_ID')] + sys.argv[1:]) + '\\n', end='', flush=True)\n"
    (tmp_path / "train.py").write_text(program)
    args = ["", "--", "a b", "-z", "--nnodes", "7"]
    cfg = Config(
        task=Task(command=[sys.executable, *front, "train.py", *args], torchrun={"max_restarts": 0}),
        cluster=Cluster(nproc_per_node=2),
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    done = run(write(plan_of(cfg, tmp_path), tmp_path / "n"), {"MASTER_PORT": port, "LOCAL_RANK": "0"})
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(done.stdout.decode().split("\n")) == [
        *("", "0|2|0|RUN-0||--|a b|-z|--nnodes|7", "1|2|0|RUN-0||--|a b|-z|--nnodes|7"),
    ]


def test_hooks_run_in_cwd_with_the_nodes_environment(tmp_path: Path) -> None:
    cfg = Config(
        task=Task(command=["true"]),
        env={"DATA": "a b"},
        hooks=Hooks(before_start='echo "$PWD $DATA $NODE_RANK ${RANK-none}"\nfalse'),
    )
    plan = plan_of(cfg, tmp_path)
    script = tmp_path / "before_start.sh"
    script.write_text(hook_script(plan, plan.nodes[0], "before_start", cfg.hooks.before_start))
    done = run(script, {"RANK": "5"})
    assert (done.returncode, done.stdout.decode()) == (1, f"{tmp_path} a b 0 none\n")


def test_stop_script_hands_its_words_to_the_agent_beside_it(tmp_path: Path) -> None:
    cfg = Config(task=Task(command=["true"], agent_python=sys.executable))
    plan = plan_of(cfg, tmp_path)
    folder = tmp_path / "it's here"
    folder.mkdir()
    (folder / "stop.sh").write_text(stop_script(plan, plan.nodes[0]))
    (folder / "agent.py").write_text("import os, sys\nprint(sys.argv[1:], os.getcwd())\nsys.exit(1)\n")
    done = subprocess.run(
        ["bash", "it's here/stop.sh", "--kill"], cwd=tmp_path, capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout.decode()) == (1, f"['stop', '--kill'] {folder}\n")


def test_stop_script_says_when_python_is_missing(tmp_path: Path) -> None:
    plan = plan_of(Config(task=Task(command=["true"], agent_python="no-python")), tmp_path)
    (tmp_path / "stop.sh").write_text(stop_script(plan, plan.nodes[0]))
    done = run(tmp_path / "stop.sh")
    assert done.returncode == 69
    assert b"no no-python on PATH" in done.stderr


def test_posix_mode_changes_nothing(tmp_path: Path) -> None:
    cfg = Config(task=Task(command=[*PYTHON, "it's"]), env={"A": "\x01'", "HF_TOKEN": "abcd"}, env_expand={"B": "$A'"})
    seen = Seen(run(write(plan_of(cfg, tmp_path), tmp_path / "n"), {"POSIXLY_CORRECT": "1"}))
    assert (seen.argv, seen.env["A"], seen.env["B"], seen.env["HF_TOKEN"]) == ([b"it's"], "\x01'", "\x01''", "abcd")


def test_variables_that_bash_itself_reads_arrive_like_others(tmp_path: Path) -> None:
    env = {"IFS": "/1a", "POSIXLY_CORRECT": "y", "COLUMNS": "7", "LC_ALL": "C", "CDPATH": "/", "GLOBIGNORE": "*"}
    env |= {"BASH_ENV": "/nowhere", "ENV": "/nowhere", "HOME": "/home/x", "TMOUT": "1", "PS4": "$(id)"}
    cfg = Config(task=Task(command=[*PYTHON, "a/1 b"]), env=env, cluster=Cluster(nproc_per_node=12))
    seen = Seen(run(write(plan_of(cfg, tmp_path), tmp_path / "n"), {"LOCAL_RANK": "11"}))
    assert {name: seen.env.get(name) for name in env} == env
    assert (seen.argv, seen.env["RANK"], seen.env["WORLD_SIZE"]) == ([b"a/1 b"], "11", "12")


@pytest.mark.parametrize(("language", "charset"), [("zh_TW", "BIG5"), ("ja_JP", "SHIFT_JIS"), ("zh_CN", "GB18030")])
def test_a_locale_whose_characters_end_in_a_backslash_changes_nothing(
    tmp_path: Path, language: str, charset: str
) -> None:
    if not shutil.which("localedef"):
        pytest.skip("no localedef to make such a locale with")
    words = ["localedef", "--no-warnings=ascii", "-i", language, "-f", charset, str(tmp_path / "loc")]
    if subprocess.run(words, capture_output=True, timeout=60, check=False).returncode != 0:
        pytest.skip(f"{charset} is not installed here")
    values = ["é\\x", "漢\\'", "語\x01\\", "\x91\\$(id)", '灰"\\', "鳡7", "鳡\\"]
    cfg = Config(
        task=Task(command=[*PYTHON, *values]),
        env={"A": values[0]},
        env_expand={"B": '漢\\\\"$A\\$é`', "C": "${N:-漢\\}}"},
    )
    env = {"LC_ALL": "loc", "LOCPATH": str(tmp_path)}
    seen = Seen(run(write(plan_of(cfg, tmp_path), tmp_path / "n"), env))
    assert seen.argv == [value.encode() for value in values]
    assert (seen.env["A"], seen.env["B"], seen.env["C"]) == (values[0], f'漢\\"{values[0]}$é`', "漢}")
