"""The preflight: what is wrong is found before anything starts, all of it at once, in words to act on."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config.schema import Cluster, Config, Hooks, Task
from engine.node.probe import user_name, who_listens
from engine.plan import NodeFacts, Plan, make_plan
from engine.preflight import Finding, check_local, failed, format_findings, worst_first
from engine.preflight_checks import check_here
from engine.probe import find_gpus, probe_local
from engine.rundir import RunPaths
from engine.whereabouts import take_lock, write_info

ENV = {"PATH": os.environ["PATH"], "HOME": "/"}


def plan_of(tmp_path: Path, task: Task | None = None, cluster: Cluster | None = None, **config: Any) -> Plan:
    cfg = Config(task=task or Task(command=[sys.executable, "-V"]), cluster=cluster or Cluster(), **config)
    return make_plan(cfg, (NodeFacts("node1", str(tmp_path)),), run_id="RUN", run_dir=str(tmp_path / "runs/job/RUN"))


def findings_of(plan: Plan, level: str, env: dict[str, str] | None = None) -> list[tuple[str, str]]:
    found = check_local(plan, ENV if env is None else env)
    return [(f.what, f.text) for f in found if f.level == level]


def the_failure(plan: Plan, env: dict[str, str] | None = None) -> tuple[str, str]:
    failures = findings_of(plan, "fail", env)
    assert len(failures) == 1, failures
    return failures[0]


def tool(folder: Path, name: str, lines: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
    (folder / name).chmod(0o755)


def test_a_sound_plan_has_no_failure_and_leaves_nothing_behind(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, hooks=Hooks("true", "true", "true"), mkdirs=["a/b"])
    assert findings_of(plan, "fail") == []
    assert {what for what, _ in findings_of(plan, "ok")} >= {"bash", "task.agent_python", "task.cwd", "task.command"}
    assert list(tmp_path.iterdir()) == []


def test_a_missing_command_is_found_and_path_is_named(tmp_path: Path) -> None:
    what, text = the_failure(plan_of(tmp_path, Task(command=["no-such-program"])))
    assert what == "task.command"
    assert '"no-such-program" is not found on PATH' in text
    assert ENV["PATH"] in text


def test_the_configs_path_is_where_the_command_is_looked_for(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "mine", "")
    task = Task(command=["mine"])
    assert the_failure(plan_of(tmp_path, task))[0] == "task.command"
    assert findings_of(plan_of(tmp_path, task, env={"PATH": "bin:/usr/bin"}), "fail") == []


@pytest.mark.parametrize("config", [{"hooks": Hooks("true")}, {"env_expand": {"PATH": "/x:$PATH"}}])
def test_a_command_that_activate_may_bring_is_no_failure(tmp_path: Path, config: dict[str, Any]) -> None:
    plan = plan_of(tmp_path, Task(command=["no-such-program"]), **config)
    assert findings_of(plan, "fail") == []
    assert any("may put it there" in text for _, text in findings_of(plan, "ok"))


def test_a_path_counts_from_cwd_and_must_be_executable(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/prog").write_text("x")
    task = Task(command=["./prog"], cwd="work")
    assert the_failure(plan_of(tmp_path, task)) == ("task.command", f"./prog: is not executable (from {tmp_path}/work)")
    (tmp_path / "work/prog").chmod(0o755)
    assert findings_of(plan_of(tmp_path, task), "fail") == []
    task = Task(command=["./gone"], cwd="work")
    assert "no such file or directory" in the_failure(plan_of(tmp_path, task))[1]


def test_a_missing_script_of_an_interpreter_is_found(tmp_path: Path) -> None:
    task = Task(command=[sys.executable, "-u", "train.py", "x"])
    assert the_failure(plan_of(tmp_path, task))[1].startswith("train.py: no such file or directory")
    assert findings_of(plan_of(tmp_path, task, hooks=Hooks(before_start="make")), "fail") == []
    (tmp_path / "train.py").write_text("")
    assert findings_of(plan_of(tmp_path, task), "fail") == []


@pytest.mark.parametrize(("cwd", "fault"), [("gone", "no such file or directory"), ("file", "is not a folder")])
def test_a_cwd_that_is_none_is_found(tmp_path: Path, cwd: str, fault: str) -> None:
    (tmp_path / "file").write_text("")
    assert the_failure(plan_of(tmp_path, Task(command=["true"], cwd=cwd))) == ("task.cwd", f"{tmp_path}/{cwd}: {fault}")


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    task = Task(command=["no-such-program"], agent_python="no-python")
    plan = plan_of(tmp_path, task, hooks=Hooks(before_start="if true; then", after_stop="echo 'x"), mkdirs=["file/x"])
    assert sorted(what for what, _ in findings_of(plan, "fail")) == [
        *("hooks.after_stop", "hooks.before_start", "mkdirs", "task.agent_python", "task.command"),
    ]


@pytest.mark.parametrize("lines", ["echo 'x", "fi", "cat <<X\nno end", "f() {", "echo $("])
def test_bash_that_cannot_be_read_is_found_before_it_runs(tmp_path: Path, lines: str) -> None:
    assert the_failure(plan_of(tmp_path, hooks=Hooks(activate=lines)))[0] == "hooks.activate"


@pytest.mark.parametrize(
    ("lines", "said"),
    [("echo 3 7 9", "is Python 3.7.9"), ("echo hello", "is no Python that runs"), ("exit 3", "status 3")],
)
def test_an_agent_python_that_is_none_or_too_old_is_found(tmp_path: Path, lines: str, said: str) -> None:
    tool(tmp_path / "bin", "old", lines)
    what, text = the_failure(plan_of(tmp_path, Task(command=["true"], agent_python="bin/old")))
    assert what == "task.agent_python"
    assert said in text


def test_a_run_root_that_cannot_be_made_is_found(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    assert the_failure(plan_of(tmp_path)) == ("run directory", f"{tmp_path}/runs is not a folder")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_run_root_that_may_not_be_written_is_found(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir(mode=0o500)
    assert the_failure(plan_of(tmp_path)) == ("run directory", f"{tmp_path}/runs may not be written to")


@pytest.mark.parametrize(("free", "level"), [(2**20, "fail"), (2**29, "warn"), (2**31, "ok")])
def test_a_full_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    real = os.statvfs(tmp_path)

    class Usage:
        f_blocks = real.f_blocks
        f_bavail = free // real.f_frsize
        f_frsize = real.f_frsize
        f_files = 0
        f_favail = 0

    monkeypatch.setattr(os, "statvfs", lambda _path: Usage())
    assert any(what == "run directory" and "iB free at" in text for what, text in findings_of(plan_of(tmp_path), level))


def test_a_file_system_without_a_number_for_its_room_is_not_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:  # as FUSE mounts of object stores say it, and /proc
        f_blocks = f_bavail = f_files = f_favail = 0
        f_frsize = 4096

    monkeypatch.setattr(os, "statvfs", lambda _path: Usage())
    found = [(f.level, f.text) for f in check_local(plan_of(tmp_path), ENV) if f.what == "run directory"]
    assert found == [("ok", f"{tmp_path} does not tell how much is free")]


def test_a_taken_port_is_found_with_its_owner(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        what, text = the_failure(plan_of(tmp_path, cluster=Cluster(master_port=port)))
        assert what == "cluster.master_port"
        assert f"{port}: address already in use" in text
        assert f"(pid {os.getpid()})" in text
    assert who_listens(port) == ""
    assert findings_of(plan_of(tmp_path, cluster=Cluster(master_port=port)), "fail") == []


def test_busy_gpus_are_told_of(tmp_path: Path) -> None:
    tool(
        tmp_path / "bin",
        "nvidia-smi",
        'case $1 in *compute-apps*) echo "4711, GPU-aa, python, 1024";; *) echo "0, GPU-aa, H100, 81559, 1100";; esac',
    )
    warnings = findings_of(plan_of(tmp_path), "warn", {**ENV, "PATH": f"{tmp_path}/bin:{ENV['PATH']}"})
    assert ("GPUs", "in use: GPU 0 by python (pid 4711, 1024 MiB)") in warnings


def test_other_runs_of_this_machine_are_told_of(tmp_path: Path) -> None:
    other = RunPaths(tmp_path / "runs/job/20260101-000000-aaaa")
    other.root.mkdir(parents=True)
    other.plan.write_text("{}")
    assert findings_of(plan_of(tmp_path), "warn") == []
    lock = take_lock(other)
    assert lock is not None
    write_info(other, Path("/x"))
    assert ("other runs", "running here: 20260101-000000-aaaa") in findings_of(plan_of(tmp_path), "warn")
    other.summary.write_text(json.dumps({}))
    assert findings_of(plan_of(tmp_path), "warn") == []
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def test_logind_that_kills_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    folder = tmp_path / "etc/systemd/logind.conf.d"
    folder.mkdir(parents=True)
    plan = plan_of(tmp_path)

    def levels() -> list[str]:
        return [f.level for f in check_here(plan, plan.nodes[0], ENV, str(tmp_path)) if f.what == "logind"]

    (folder.parent / "logind.conf").write_text("[Login]\n#KillUserProcesses=yes\n")
    assert levels() == []
    (folder / "x.conf").write_text("[Login]\nKillUserProcesses=yes\n")
    assert levels() == ["warn"]
    (folder / "y.conf").write_text(f"[Login]\nKillExcludeUsers=root {user_name(1000)}\n")
    assert levels() == []


def test_torchrun_without_torch_is_found(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "python3", 'case "$*" in *torch*) exit 1;; esac\nexec /bin/true')
    (tmp_path / "t.py").write_text("")
    task = Task(command=["bin/python3", "t.py"], torchrun={})
    assert the_failure(plan_of(tmp_path, task)) == ("task.torchrun", "bin/python3 has no torch")


def test_the_table_is_worst_first_and_coloured_only_when_asked() -> None:
    findings = (Finding("ok", "a", "bash", "/bin/bash"), Finding("fail", "host2", "cwd", "gone", "make it"))
    assert format_findings(findings, color=False) == (
        "fail  host2  cwd   gone\n                   make it\nok    a      bash  /bin/bash\n"
    )
    coloured = format_findings(findings, color=True)
    assert "\x1b[31mfail\x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == format_findings(findings, color=False)
    assert [f.level for f in worst_first(findings)] == ["fail", "ok"]
    assert failed(findings)
    assert not failed(findings[:1])
    assert format_findings((), color=False) == ""


def nvidia(folder: Path) -> dict[str, str]:
    tool(folder / "bin", "nvidia-smi", "echo 0; echo 1")
    return {"PATH": f"{folder}/bin:/usr/bin:/bin"}


def amd(folder: Path) -> dict[str, str]:
    for number, simd in enumerate((0, 240, 240)):
        node = folder / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 8\nsimd_count {simd}\nmem_banks_count 1\n")
    return {"PATH": "/nowhere"}


def ascend(folder: Path) -> dict[str, str]:
    (folder / "dev").mkdir()
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (folder / "dev" / name).touch()
    return {"PATH": "/nowhere"}


@pytest.mark.parametrize("prepare", [nvidia, amd, ascend])
def test_gpus_of_each_maker_are_counted(tmp_path: Path, prepare: Callable[[Path], dict[str, str]]) -> None:
    assert find_gpus(prepare(tmp_path), tmp_path) == (prepare.__name__, ("0", "1"))


def test_a_tool_that_fails_finds_nothing(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvidia-smi", "echo 0; exit 9")
    assert find_gpus({"PATH": f"{tmp_path}/bin"}, tmp_path) == ("", ())


def test_probing_takes_over_what_ranks_inherit(tmp_path: Path) -> None:
    environ = {"PATH": "/nowhere", "HOME": "/h", "CUDA_VISIBLE_DEVICES": "1", "NEW_VISIBLE_DEVICES": "2", "X": "3"}
    facts = probe_local(environ, str(tmp_path))
    assert facts.visible == {"CUDA_VISIBLE_DEVICES": "1", "NEW_VISIBLE_DEVICES": "2"}
    assert (facts.cwd, facts.home) == (str(tmp_path), "/h")
    assert facts.host
    assert "." not in facts.host
