"""The checks of the preflight on this machine. Each looks at one thing and says what it found."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from engine.plan import NodePlan, Plan
from engine.ports import who_listens
from engine.preflight import FAIL, OK, WARN, Finding
from engine.probe import TOOL_TIMEOUT_S, run_tool
from engine.render.run_script import run_script
from engine.render.torchrun import INTERPRETER, split_command
from engine.rundir import list_runs, os_error_text
from engine.whereabouts import engine_lives, read_info

OLDEST_PYTHON = (3, 8)
# Less than this and what is written before the first line of log may not fit.
LEAST_FREE_BYTES = 8 * 2**20
# A checkpoint alone is larger.
LITTLE_FREE_BYTES = 2**30
# Of the runs below the run root, so many are looked at.
NEWEST_RUNS = 200
COMMAND = "task.command"
# logind ends what a user left running when the last session closes.
LOGIND = ("etc/systemd/logind.conf", "run/systemd/logind.conf.d", "etc/systemd/logind.conf.d")


def check_bash(plan: Plan, node: NodePlan, env: Mapping[str, str]) -> Iterator[Finding]:
    """bash is there, and finds no fault in what the user wrote."""
    bash = shutil.which("bash", path=env.get("PATH", os.defpath))
    if bash is None:
        yield Finding(FAIL, node.host, "bash", f"not found on PATH ({env.get('PATH', '')})", "install bash")
        return
    texts = {
        "hooks.activate": node.activate,
        "hooks.before_start": node.before_start,
        "hooks.after_stop": node.after_stop,
        "task.script": node.script or "",
    }
    faults = [(key, fault) for key, text in texts.items() if text.strip() and (fault := _syntax_fault(bash, text))]
    for key, fault in faults:
        yield Finding(FAIL, node.host, key, f"bash cannot read it: {fault}", "these are lines of bash")
    if not faults and (fault := _syntax_fault(bash, run_script(plan, node))):
        yield Finding(FAIL, node.host, "run.sh", f"bash cannot read it: {fault}", "see --dry-run")
    elif not faults:
        yield Finding(OK, node.host, "bash", bash)


def _syntax_fault(bash: str, text: str) -> str:
    """What `bash -n` says against it, "" where nothing."""
    try:
        done = subprocess.run(
            [bash, "--norc", "-n", "/dev/stdin"],
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # An unclosed here-document is only a warning, and would swallow all that follows.
    said = done.stderr.decode("utf-8", "replace").strip().split("\n")[0].removeprefix("/dev/stdin: ")
    return said if done.returncode != 0 or "here-document" in said else ""


def check_python(plan: Plan, node: NodePlan, env: Mapping[str, str]) -> Iterator[Finding]:
    """The agent's Python runs, and is new enough."""
    del plan
    version, fault = _python_version(node.agent_python, env)
    what, hint = "task.agent_python", "name a Python 3.8 or newer in task.agent_python"
    if fault:
        yield Finding(FAIL, node.host, what, f"{node.agent_python}: {fault}", hint)
        return
    text = f"{node.agent_python} is Python {'.'.join(map(str, version))}"
    if version < OLDEST_PYTHON:
        yield Finding(FAIL, node.host, what, text, hint)
    else:
        yield Finding(OK, node.host, what, text)


def _python_version(python: str, env: Mapping[str, str]) -> tuple[tuple[int, ...], str]:
    """Its version, or why there is none to be had."""
    program = shutil.which(python, path=env.get("PATH", os.defpath)) or python
    try:
        done = subprocess.run(
            [program, "-I", "-S", "-c", "import sys; print(*sys.version_info[:3])"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TOOL_TIMEOUT_S,
            env=dict(env),
            check=False,
        )
    except OSError as err:
        return (), os_error_text(err)
    except subprocess.TimeoutExpired:
        return (), f"does not answer within {TOOL_TIMEOUT_S:g} s"
    words = done.stdout.split()
    if done.returncode == 0 and len(words) == 3 and all(word.isdigit() for word in words):
        return tuple(int(word) for word in words), ""
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().split("\n")[-1]
    return (), f"is no Python that runs (status {done.returncode}{': ' if said else ''}{said[:200]})"


def check_cwd(plan: Plan, node: NodePlan, env: Mapping[str, str]) -> Iterator[Finding]:
    """The ranks' folder can be entered, and the folders to be made in it can be."""
    del plan, env
    cwd = Path(node.cwd)
    fault = _folder_fault(cwd)
    if fault:
        yield Finding(FAIL, node.host, "task.cwd", f"{cwd}: {fault}", "set task.cwd to a folder that is there")
        return
    yield Finding(OK, node.host, "task.cwd", str(cwd))
    for name in node.mkdirs:
        fault = _make_fault(cwd / name)
        if fault:
            yield Finding(FAIL, node.host, "mkdirs", f"{cwd / name}: {fault}", "choose another folder")


def _folder_fault(path: Path) -> str:
    """Why a process cannot make `path` its folder, "" where it can."""
    try:
        path.stat()
    except OSError as err:
        return os_error_text(err)
    if not path.is_dir():
        return "is not a folder"
    return "" if os.access(path, os.X_OK) else "may not be entered"


def _make_fault(path: Path) -> str:
    """Why `path` cannot be made or written to as a folder, "" where it can."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} may not be written to"


def check_command(plan: Plan, node: NodePlan, env: Mapping[str, str]) -> Iterator[Finding]:
    """The command is found as the rank will find it, and so is the file that an interpreter is to run."""
    del plan
    if node.argv is None or _folder_fault(Path(node.cwd)):
        return
    programs = {node.argv[0]: None}
    if node.torchrun is not None:
        programs[split_command(node.argv)[0]] = None
    for program in programs:
        yield _program(node, program, env)
    script = _script_of(node.argv)
    if script is None:
        return
    fault = _file_fault(Path(node.cwd) / script)
    if fault:
        changing = [f"hooks.{name}" for name in ("activate", "before_start") if getattr(node, name).strip()]
        text = f"{script}: {fault}{_seen_from(node, script)}"
        if changing:
            yield Finding(WARN, node.host, COMMAND, f"{text}; {' or '.join(changing)} may change that")
        else:
            yield Finding(FAIL, node.host, COMMAND, text, "see task.command and task.cwd")


def _program(node: NodePlan, program: str, env: Mapping[str, str]) -> Finding:
    if "/" in program:
        path = Path(node.cwd) / program
        fault = _program_fault(path)
        if not fault:
            return Finding(OK, node.host, COMMAND, str(path))
        text = f"{program}: {fault}{_seen_from(node, program)}"
        if node.activate.strip() or node.before_start.strip():
            return Finding(WARN, node.host, COMMAND, f"{text}; the hooks may change that")
        not_executable = fault == "is not executable"
        hint = "chmod +x it, or name its interpreter first" if not_executable else "see task.command and task.cwd"
        return Finding(FAIL, node.host, COMMAND, text, hint)
    search = node.env.get("PATH", env.get("PATH", os.defpath))
    # An entry that is relative counts from the rank's folder.
    places = os.pathsep.join(str(Path(node.cwd) / place) for place in search.split(os.pathsep))
    found = shutil.which(program, path=places)
    if found:
        return Finding(OK, node.host, COMMAND, found)
    if node.activate.strip() or "PATH" in node.env_expand:
        cause = "hooks.activate" if node.activate.strip() else "env_expand.PATH"
        return Finding(OK, node.host, COMMAND, f'"{program}" is not on PATH here; {cause} may put it there')
    text = f'"{program}" is not found on PATH ({search})'
    return Finding(FAIL, node.host, COMMAND, text, "write its path, or set PATH in env_expand or hooks.activate")


def _seen_from(node: NodePlan, path: str) -> str:
    return "" if path.startswith("/") else f" (from {node.cwd})"


def _script_of(argv: tuple[str, ...]) -> str | None:
    """The file in `python -u train.py ...`; None where it is not that plain."""
    if not INTERPRETER.match(argv[0]):
        return None
    rest = [word for word in argv[1:] if word != "-u"]
    return rest[0] if rest and not rest[0].startswith("-") else None


def _file_fault(path: Path) -> str:
    try:
        path.stat()
    except OSError as err:
        return os_error_text(err)
    return "" if os.access(path, os.R_OK) else "may not be read"


def _program_fault(path: Path) -> str:
    try:
        path.stat()
    except OSError as err:
        return os_error_text(err)
    if path.is_dir():
        return "is a folder"
    return "" if os.access(path, os.X_OK) else "is not executable"


def check_torch(plan: Plan, node: NodePlan, env: Mapping[str, str]) -> Iterator[Finding]:
    """With task.torchrun: its interpreter has torch."""
    del plan
    if node.argv is None or node.torchrun is None or node.activate.strip() or _folder_fault(Path(node.cwd)):
        return
    interpreter = split_command(node.argv)[0]
    if _program(node, interpreter, env).level == FAIL:
        return
    try:
        done = subprocess.run(
            [interpreter, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=node.cwd,
            env={**env, **node.env},
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode != 0:
        text, hint = f"{interpreter} has no torch", "name the interpreter that has it, or set hooks.activate"
        yield Finding(FAIL, node.host, "task.torchrun", text, hint)


def check_disk(plan: Plan, node: NodePlan, env: Mapping[str, str]) -> Iterator[Finding]:
    """The run directory can be made, written, and has room."""
    del env
    what, run_dir = "run directory", Path(plan.run_dir)
    fault = _make_fault(run_dir)
    if fault:
        yield Finding(FAIL, node.host, what, fault, "choose another place with --run-root")
        return
    there = run_dir
    while not there.exists():
        there = there.parent
    usage = os.statvfs(there)
    free = usage.f_bavail * usage.f_frsize
    text = f"{free / 2**30:.1f} GiB free at {there}"
    if not usage.f_blocks:
        # As FUSE mounts of object stores say it, and /proc: no number, so no word about room.
        yield Finding(OK, node.host, what, f"{there} does not tell how much is free")
    elif free < LEAST_FREE_BYTES:
        yield Finding(FAIL, node.host, what, text, "free some space, or choose another place with --run-root")
    elif free < LITTLE_FREE_BYTES:
        yield Finding(WARN, node.host, what, text, "logs may fill it")
    else:
        yield Finding(OK, node.host, what, text)
    # 0 of 0: the file system makes them as needed.
    if usage.f_files and usage.f_favail < 1000:
        yield Finding(WARN, node.host, what, f"{usage.f_favail} files can still be made at {there}", "remove old runs")


def check_port(plan: Plan, node: NodePlan, env: Mapping[str, str]) -> Iterator[Finding]:
    """A port that was chosen is free."""
    del env
    port = plan.master_port
    if port is None or node.node_rank != 0:
        return
    family = socket.AF_INET6 if ":" in plan.master_addr else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As torch's store binds it: a socket in TIME_WAIT is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as err:
            by = f", by {who}" if err.errno == errno.EADDRINUSE and (who := who_listens(port)) else ""
            text = f"{port}: {os_error_text(err)}{by}"
            hint = "choose another one, or leave cluster.master_port out: then a free one is found at each start"
            yield Finding(FAIL, node.host, "cluster.master_port", text, hint)
            return
    yield Finding(OK, node.host, "cluster.master_port", f"{port} is free")


def check_gpus(plan: Plan, node: NodePlan, env: Mapping[str, str]) -> Iterator[Finding]:
    """Which devices the ranks get, and who else is on them."""
    if node.device_var is not None:
        devices = ", ".join(rank.device or "" for rank in node.ranks)
        yield Finding(OK, node.host, "GPUs", f"{node.device_var}: {devices}")
    elif plan.mode == "per_gpu":
        yield Finding(OK, node.host, "GPUs", "no device is bound to a rank")
    query = ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"]
    listing = run_tool(query, env) or ""
    busy = [line.strip() for line in listing.split("\n") if line[:1].isdigit()]
    if busy:
        more = f" and {len(busy) - 3} more" if len(busy) > 3 else ""
        yield Finding(WARN, node.host, "GPUs", f"in use by {'; '.join(busy[:3])}{more}", "they share memory and time")


def check_other_runs(plan: Plan, node: NodePlan, env: Mapping[str, str]) -> Iterator[Finding]:
    """Other runs of this run root that are running here."""
    del env
    runs = list_runs(Path(plan.run_dir).parent.parent)[:NEWEST_RUNS]
    # Without a summary: the engine of a run that is over may stay for those who are attached.
    alive = [run for run in runs if not run.summary.exists() and engine_lives(run)]
    here = socket.gethostname()
    others = [run.root.name for run in alive if (info := read_info(run)) is not None and info.host == here]
    if others:
        names = ", ".join(others[:4]) + (", ..." if len(others) > 4 else "")
        yield Finding(WARN, node.host, "other runs", f"running here: {names}", "`trainui stop RUN` stops one")


def check_logind(plan: Plan, node: NodePlan, env: Mapping[str, str], root: Path = Path("/")) -> Iterator[Finding]:
    """logind leaves the run alone when the user logs out."""
    del plan, env
    if os.getuid() == 0 or not _kills_user_processes(root):
        return
    text = "logind ends everything of yours when you log out (KillUserProcesses=yes)"
    hint = "loginctl enable-linger, or start trainui with systemd-run --user --scope"
    yield Finding(WARN, node.host, "logind", text, hint)


def _kills_user_processes(root: Path) -> bool:
    kills = False
    for name in LOGIND:
        place = root / name
        for file in sorted(place.glob("*.conf")) if place.is_dir() else [place]:
            try:
                lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
            except OSError:
                continue
            for line in lines:
                key, _, value = line.partition("=")
                if key.strip() == "KillUserProcesses":
                    kills = value.strip().lower() in ("yes", "true", "1", "on")
    return kills


CHECKS: tuple[Callable[[Plan, NodePlan, Mapping[str, str]], Iterable[Finding]], ...] = (
    check_bash,
    check_python,
    check_cwd,
    check_command,
    check_torch,
    check_disk,
    check_port,
    check_gpus,
    check_other_runs,
    check_logind,
)
