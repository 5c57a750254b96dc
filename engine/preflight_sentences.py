"""From what was found on one machine to findings: the same sentences whether it is this one or a node. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.node_report import GpuUser, Looked, Machine, OtherAgent, Program
from engine.plan import NodePlan, Plan
from engine.preflight import FAIL, OK, WARN, Finding
from engine.render.run_script import run_script
from engine.render.torchrun import INTERPRETER, split_command

OLDEST_PYTHON = (3, 8)
# Less than this and what is written before the first line of log may not fit.
LEAST_FREE_BYTES = 8 * 2**20
# A checkpoint alone is larger.
LITTLE_FREE_BYTES = 2**30
LEAST_FREE_FILES = 1000
# A GPU that nobody uses holds some hundred MiB for itself.
IDLE_GPU_MIB = 1024
# So many of what may be long are named.
NAMED = 3
COMMAND = "task.command"
MASTER_PORT = "cluster.master_port"


def check_request(plan: Plan, node: NodePlan, node_dir: str) -> dict[str, Any]:
    """What `engine/node/probe.py` is to look at on a node (its `look` says what the keys mean).

    Args:
        node_dir: where the node keeps the run's files, absolute.
    """
    torch = None
    if node.argv is not None and node.torchrun is not None and not node.activate.strip():
        torch = split_command(node.argv)[0]
    script = None if node.argv is None else script_of(node.argv)
    return {
        "cwd": node.cwd,
        "programs": list(programs_of(node)),
        "search": node.env.get("PATH"),
        "files": [] if script is None else [script],
        "mkdirs": list(node.mkdirs),
        "node_dir": node_dir,
        "bash": {**bash_texts(node), "run.sh": run_script(plan, node)},
        "torch": torch,
        "env": dict(node.env) if torch is not None else {},
    }


def bash_texts(node: NodePlan) -> dict[str, str]:
    """The lines of bash that the user wrote, by their keys."""
    texts = {
        "hooks.activate": node.activate,
        "hooks.before_start": node.before_start,
        "hooks.after_stop": node.after_stop,
        "task.script": node.script or "",
    }
    return {key: text for key, text in texts.items() if text.strip()}


def programs_of(node: NodePlan) -> tuple[str, ...]:
    """What must be found to run the command."""
    if node.argv is None:
        return ()
    names = [node.argv[0]]
    if node.torchrun is not None:
        names.append(split_command(node.argv)[0])
    return tuple(dict.fromkeys(names))


def script_of(argv: Sequence[str]) -> str | None:
    """The file in `python -u train.py ...`; None where it is not that plain."""
    if not INTERPRETER.match(argv[0]):
        return None
    rest = [word for word in argv[1:] if word != "-u"]
    return rest[0] if rest and not rest[0].startswith("-") else None


def bash_findings(host: str, bash: str, search: str, faults: Mapping[str, str]) -> Iterator[Finding]:
    """bash is there, and finds no fault in what the user wrote.

    Args:
        bash: where it is, or "" for nowhere on the PATH `search`.
        faults: key -> what bash says, "" for nothing.
    """
    if not bash:
        yield Finding(FAIL, host, "bash", f"not found on PATH ({search})", "install bash")
        return
    bad = {key: fault for key, fault in faults.items() if fault}
    for key, fault in bad.items():
        # What is wrong in a hook is wrong in run.sh too, and need not be said twice.
        if key != "run.sh":
            yield Finding(FAIL, host, key, f"bash cannot read it: {fault}", "these are lines of bash")
    if set(bad) == {"run.sh"}:
        yield Finding(FAIL, host, "run.sh", f"bash cannot read it: {bad['run.sh']}", "see --dry-run")
    elif not bad:
        yield Finding(OK, host, "bash", bash)


def python_finding(host: str, python: str, version: Sequence[int], fault: str = "") -> Finding:
    """The agent's Python runs, and is new enough."""
    what, hint = "task.agent_python", "name a Python 3.8 or newer in task.agent_python"
    if fault:
        return Finding(FAIL, host, what, f"{python}: {fault}", hint)
    text = f"{python} is Python {'.'.join(map(str, version))}"
    return Finding(FAIL, host, what, text, hint) if tuple(version) < OLDEST_PYTHON else Finding(OK, host, what, text)


def cwd_findings(node: NodePlan, looked: Looked) -> Iterator[Finding]:
    """The ranks' folder can be entered, and the folders to be made in it can be."""
    if looked.cwd:
        text = f"{node.cwd}: {looked.cwd}"
        yield Finding(FAIL, node.host, "task.cwd", text, "set task.cwd to a folder that is there")
        return
    yield Finding(OK, node.host, "task.cwd", node.cwd)
    for name, fault in looked.mkdirs.items():
        if fault:
            path = name if name.startswith("/") else f"{node.cwd.rstrip('/')}/{name}"
            yield Finding(FAIL, node.host, "mkdirs", f"{path}: {fault}", "choose another folder")


def command_findings(node: NodePlan, looked: Looked) -> Iterator[Finding]:
    """The command is found as the rank will find it, and so is the file that an interpreter is to run."""
    if node.argv is None or looked.cwd:
        return
    for name in programs_of(node):
        if name in looked.programs:
            yield _program_finding(node, name, looked.programs[name])
    script = script_of(node.argv)
    fault = looked.files.get(script, "") if script is not None else ""
    if fault:
        changing = [f"hooks.{name}" for name in ("activate", "before_start") if getattr(node, name).strip()]
        text = f"{script}: {fault}{_seen_from(node, script or '')}"
        if changing:
            yield Finding(WARN, node.host, COMMAND, f"{text}; {' or '.join(changing)} may change that")
        else:
            yield Finding(FAIL, node.host, COMMAND, text, "see task.command and task.cwd")


def _program_finding(node: NodePlan, name: str, found: Program) -> Finding:
    if found.path and not found.fault:
        return Finding(OK, node.host, COMMAND, found.path)
    if "/" in name:
        text = f"{name}: {found.fault}{_seen_from(node, name)}"
        if node.activate.strip() or node.before_start.strip():
            return Finding(WARN, node.host, COMMAND, f"{text}; the hooks may change that")
        hint = "see task.command and task.cwd"
        if found.fault == "is not executable":
            hint = "chmod +x it, or name its interpreter first"
        return Finding(FAIL, node.host, COMMAND, text, hint)
    if node.activate.strip() or "PATH" in node.env_expand:
        cause = "hooks.activate" if node.activate.strip() else "env_expand.PATH"
        return Finding(OK, node.host, COMMAND, f'"{name}" is not on PATH here; {cause} may put it there')
    text = f'"{name}" is not found on PATH ({found.search})'
    return Finding(FAIL, node.host, COMMAND, text, "write its path, or set PATH in env_expand or hooks.activate")


def _seen_from(node: NodePlan, path: str) -> str:
    return "" if path.startswith("/") else f" (from {node.cwd})"


def torch_findings(node: NodePlan, looked: Looked) -> Iterator[Finding]:
    """With task.torchrun: its interpreter has torch."""
    if node.argv is not None and looked.torch is False:
        text = f"{split_command(node.argv)[0]} has no torch"
        hint = "name the interpreter that has it, or set hooks.activate"
        yield Finding(FAIL, node.host, "task.torchrun", text, hint)


def size_text(count: int) -> str:
    """`1.5 GiB`, or whole MiB below one GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count // 2**20} MiB"


def room_findings(host: str, looked: Looked, setting: str = "--run-root") -> Iterator[Finding]:
    """The folder for the run's files can be made, takes files, and has room.

    Args:
        setting: what chooses the folder.
    """
    what, room = "run directory", looked.room
    if room.fault:
        hint = f"choose another place with {setting}"
        yield Finding(FAIL, host, what, room.fault, f"free some space, or {hint}" if room.full else hint)
        return
    text = f"{size_text(room.free_bytes or 0)} free at {room.at}"
    if room.free_bytes is None:
        yield Finding(OK, host, what, f"{room.at} does not tell how much is free")
    elif room.free_bytes < LEAST_FREE_BYTES:
        yield Finding(FAIL, host, what, text, f"free some space, or choose another place with {setting}")
    elif room.free_bytes < LITTLE_FREE_BYTES:
        yield Finding(WARN, host, what, text, "logs may fill it")
    else:
        yield Finding(OK, host, what, text)
    if room.free_files is not None and room.free_files < LEAST_FREE_FILES:
        yield Finding(WARN, host, what, f"{room.free_files} files can still be made at {room.at}", "remove old runs")


def port_finding(host: str, port: int, fault: str) -> Finding:
    """A port that was chosen is free on the master."""
    if fault:
        hint = "choose another one, or leave cluster.master_port out: then a free one is found at each start"
        return Finding(FAIL, host, MASTER_PORT, f"{port}: {fault}", hint)
    return Finding(OK, host, MASTER_PORT, f"{port} is free")


def gpu_findings(plan: Plan, node: NodePlan, machine: Machine) -> Iterator[Finding]:
    """Which devices the ranks get, and who else is on them."""
    given = {rank.device for rank in node.ranks if rank.device is not None}
    if node.device_var is not None:
        devices = ", ".join(rank.device or "" for rank in node.ranks)
        yield Finding(OK, node.host, "GPUs", f"{node.device_var}: {devices}")
    elif plan.mode == "per_gpu":
        yield Finding(OK, node.host, "GPUs", "no device is bound to a rank")
    for fault in machine.gpu_faults:
        yield Finding(WARN, node.host, "GPUs", fault, "look at nvidia-smi there; a reset or a reboot may be needed")
    ours = {gpu.index for gpu in machine.gpus if not given or gpu.index in given or gpu.uuid in given}
    busy = [user for user in machine.gpu_users if not user.gpu or user.gpu in ours]
    if busy:
        more = f" and {len(busy) - NAMED} more" if len(busy) > NAMED else ""
        text = f"in use: {'; '.join(map(_gpu_user, busy[:NAMED]))}{more}"
        yield Finding(WARN, node.host, "GPUs", text, "they share memory and time")
    if any(not user.gpu for user in busy):
        return
    taken = {user.gpu for user in busy}
    held = [g for g in machine.gpus if g.index in ours - taken and (g.used_mib or 0) > IDLE_GPU_MIB]
    if held:
        which = ", ".join(f"{gpu.index} ({gpu.used_mib} MiB)" for gpu in held)
        text = f"memory of GPU {which} is held by what cannot be seen from here"
        yield Finding(WARN, node.host, "GPUs", text, "another container, or a process that did not end well?")


def _gpu_user(user: GpuUser) -> str:
    memory = "" if user.memory_mib is None else f", {user.memory_mib} MiB"
    who = f"{user.user}'s " if user.user else ""
    where = f"GPU {user.gpu} by " if user.gpu else ""
    return f"{where}{who}{user.command or 'process'} (pid {user.pid}{memory})"


def agent_findings(host: str, run_id: str, agents: Sequence[OtherAgent]) -> Iterator[Finding]:
    """What else trainui runs there. `run_id` is ours."""
    others = [agent for agent in agents if agent.run_id != run_id]
    if not others:
        return
    names = [
        f"{agent.run_id} ({agent.name})" if agent.run_id else f"a run of {agent.user}'s (agent pid {agent.pid})"
        for agent in others
    ]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    text = f"running here: {', '.join(names[:NAMED])}{more}"
    yield Finding(WARN, host, "other runs", text, "`trainui stop RUN` stops one")


def logind_findings(host: str, kills: bool, remote: bool = False) -> Iterator[Finding]:
    """logind leaves the run alone when the user logs out. `remote`: our link is the session that ends."""
    if not kills:
        return
    if remote:
        text = "logind ends the run there as soon as our link is gone (KillUserProcesses=yes)"
        hint = "have KillUserProcesses=no set in its logind.conf, or the user added to KillExcludeUsers"
    else:
        text = "logind ends everything of yours when you log out (KillUserProcesses=yes)"
        hint = "loginctl enable-linger, or start trainui with systemd-run --user --scope"
    yield Finding(WARN, host, "logind", text, hint)
