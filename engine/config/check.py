"""Which values of a Config are possible, and which are "not yet" in this release. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

from engine.config.schema import Config, Override, Task
from engine.config.shape import nearest
from engine.config.tree import quote
from engine.config.variables import reserved

# Linux passes on no argument and no variable longer than this (MAX_ARG_STRLEN), its final NUL included.
MAX_WORD = 128 * 1024
# NAME_MAX is 255 bytes; run ids and the like are joined to names in places.
MAX_NAME = 200
# 31 years: beyond that, moments made of it are no dates any more.
MAX_SECONDS = 1e9
# Far above the cores of any node; a number with a digit too many must not bring one down.
MAX_NPROC = 4096

_CHOICES: dict[str, tuple[str, ...]] = {
    "task.mode": ("per_gpu", "per_node"),
    "cluster.launcher": ("local", "ssh", "ray", "slurm"),
    "heartbeat.source": ("auto", "file", "log", "output"),
    "heartbeat.on_stall": ("warn", "dump", "stop", "restart"),
    "fail.policy": ("stop", "continue"),
    "restart.policy": ("never", "on_failure", "on_stall"),
}
_AUTO_OR_BOOL = ("cluster.shared_fs", "gpu_health.enabled", "logs.mirror")
_MAY_BE_ZERO = ("fail.grace_s", "stop.grace_s", "restart.backoff_s", "cluster.ssh.keepalive_s")
_NOTIFY_ON = ("finish", "fail", "stall")

# Keys that belong to what this release does not do yet, by the reason that is given.
_NOT_YET: dict[str, str] = {
    "cluster.hostfile": "this release runs on this machine only",
    "cluster.hosts": "this release runs on this machine only",
    "cluster.node_overrides": "this release runs on this machine only",
    "cluster.type_overrides": "this release runs on this machine only",
    "cluster.shared_fs": "this release runs on this machine only",
    "cluster.node_dir": "this release runs on this machine only",
    "cluster.ssh": "this release runs on this machine only",
    "cluster.ray": "this release runs on this machine only",
    "cluster.slurm": "this release runs on this machine only",
    "heartbeat": "this release does not judge stalls",
    "tracing": "this release does not trace communication",
    "gpu_health": "this release does not sample the GPUs",
    "metrics": "this release reads no metrics out of logs",
    "notify": "this release notifies nobody",
    "logs": "this release keeps one log for each rank",
}
_IN_SCOPE_ALL_THE_SAME = ("heartbeat.interval_s",)


@dataclass(frozen=True, slots=True)
class Problem:
    """A value that cannot be. `path` is dotted (`task.command[0]`); `hint` says what would be right."""

    path: str
    text: str
    hint: str = ""


def check(config: Config, given: Collection[str] = ()) -> list[Problem]:
    """Judge the values of a config.

    Args:
        config: as built, `name` filled in.
        given: dotted paths of the keys that the user wrote; only what contradicts a default needs it.

    Returns:
        Every problem, impossible values before those that are "not yet"; empty for a sound config.
    """
    found = [*_texts(config), *_names(config), *_task(config.task, given), *_environment(config), *_cluster(config)]
    found += [*_chosen(config), *_numbers(config)]
    blamed = {problem.path for problem in found}
    return found + [problem for problem in _not_yet(config) if problem.path not in blamed]


def foreign(top: Mapping[str, str]) -> str | None:
    """The one line for a config of another launcher, given its top-level keys and their places."""
    advice = "write its command, env and cluster as trainui keys (`trainui init` shows them)"
    if "experiment" in top:
        return f"{top['experiment']}: experiment: not yet: this is a FlagScale config, which cannot be read; {advice}"
    if "defaults" in top:
        return f"{top['defaults']}: defaults: not yet: this is a Hydra config, which cannot be composed; {advice}"
    return None


def advise(config: Config) -> Iterator[str]:
    """What is possible but probably not what was meant."""
    command = config.task.command
    if not isinstance(command, str):
        return
    for word in shlex.split(command):
        if word in ("&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1", "2>"):
            text = f"task.command: {quote(word)} is passed on as a word, for no shell reads the command"
            yield f"{text}; for bash use task.script"
            return
        if re.search(r"\$[A-Za-z_]", word):
            text = f"task.command: {quote(word)} is not expanded, for no shell reads the command"
            yield f"{text}; write ${{oc.env:NAME}}, or use task.script"
            return


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value with its dotted path."""
    if is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from _leaves(getattr(value, f.name), f"{path}.{f.name}" if path else f.name)
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            yield from _leaves(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(cast("list[Any]", value)):
            yield from _leaves(inner, f"{path}[{number}]")
    else:
        yield path, value


def _at(config: Config, path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _texts(config: Config) -> Iterator[Problem]:
    """No text with a NUL or half a character can reach a process or a file."""
    for path, value in _leaves(config):
        if not isinstance(value, str):
            continue
        if "\0" in value:
            yield Problem(path, "contains a NUL character, which no process can be given")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            yield Problem(path, "contains half a character (a lone surrogate), which is no text")
            continue
        if path.startswith(("env.", "task.command[")) and size + len(path) >= MAX_WORD:
            yield Problem(path, f"is {size} bytes long; Linux passes on at most 128 KiB", "put it into a file")


def _names(config: Config) -> Iterator[Problem]:
    name = config.name or ""
    hint = "use letters, digits, `-`, `_` and `.`"
    if name in ("", ".", ".."):
        yield Problem("name", f"{quote(name)} cannot be a folder's name", hint)
    elif "/" in name or not name.isprintable():
        yield Problem("name", f"{quote(name)} cannot be a folder's name: the run's directory is called after it", hint)
    elif len(name.encode("utf-8", "replace")) > MAX_NAME:
        yield Problem("name", f"is longer than {MAX_NAME} bytes")
    if config.run_root == "":
        yield Problem("run_root", "is empty", "remove it, or name a folder")
    for number, folder in enumerate(config.mkdirs):
        if not folder:
            yield Problem(f"mkdirs[{number}]", "is empty", "name a folder")


def _task(task: Task, given: Collection[str]) -> Iterator[Problem]:
    if task.command is None and task.script is None:
        yield Problem("task.command", "nothing to run", "give a command, such as [python, train.py], or a script")
    if task.command is not None and task.script is not None:
        yield Problem("task.script", "there is a task.command already", "keep one of the two")
    elif task.script is not None and not task.script.strip():
        yield Problem("task.script", "is empty", "write lines of bash, or remove it")
    if task.command is not None:
        yield from _command(task.command)
    if task.cwd == "":
        yield Problem("task.cwd", "is empty", 'remove it, or write "." for where trainui is started')
    if not task.agent_python.strip():
        yield Problem("task.agent_python", "is empty", "remove it, or name a Python, such as python3")
    if task.torchrun is not None:
        if task.script is not None:
            yield Problem("task.torchrun", "wraps a command, and there is a script", "use task.command")
        if task.mode == "per_gpu" and "task.mode" in given:
            text = "per_gpu contradicts task.torchrun, which starts the node's ranks by itself"
            yield Problem("task.mode", text, "remove it, or write per_node")
        yield from _torchrun(task.torchrun)


def _command(command: list[str] | str) -> Iterator[Problem]:
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError as e:
            yield Problem("task.command", f"cannot be split into words: {e}".lower(), "quote it as a shell would")
            return
    else:
        words = command
    if not words:
        yield Problem("task.command", "is empty", "give a command, such as [python, train.py]")
    elif not words[0].strip():
        yield Problem("task.command", "its first word is empty", "it names the program to run")


def _torchrun(options: dict[str, Any]) -> Iterator[Problem]:
    for name, value in options.items():
        path = f"task.torchrun.{name}"
        option = name.lower().replace("-", "_")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", option):
            yield Problem(path, "cannot be an option of torchrun", "write its name without the dashes in front")
        elif option in ("nnodes", "nproc_per_node", "node_rank"):
            where = "remove it" if option == "node_rank" else f"set cluster.{option}"
            yield Problem(path, "comes from the launch plan", where)
        elif isinstance(value, dict | list):
            yield Problem(path, "expected one value", "quote it to pass it on as text")


def _environment(config: Config) -> Iterator[Problem]:
    sets: list[tuple[str, Mapping[str, str]]] = [("env", config.env), ("env_expand", config.env_expand)]
    sets.append(("tracing.env", config.tracing.env))
    kinds: list[tuple[str, Mapping[str, Override]]] = [
        ("cluster.node_overrides", config.cluster.node_overrides),
        ("cluster.type_overrides", config.cluster.type_overrides),
    ]
    sets += [(f"{kind}.{host}.env", over.env) for kind, overs in kinds for host, over in overs.items()]
    for path, names in sets:
        for name in names:
            if (why := reserved(name)) is not None:
                yield Problem(f"{path}.{name}", *why)


def _cluster(config: Config) -> Iterator[Problem]:
    cluster = config.cluster
    nproc = cluster.nproc_per_node
    if isinstance(nproc, str) and nproc != "auto":
        yield Problem("cluster.nproc_per_node", f"expected a number of processes or auto, got {quote(nproc)}")
    elif isinstance(nproc, int) and nproc < 1:
        yield Problem("cluster.nproc_per_node", f"{nproc} processes cannot be started", "give 1 or more, or auto")
    elif isinstance(nproc, int) and nproc > MAX_NPROC:
        yield Problem("cluster.nproc_per_node", f"{nproc} processes on one node are too many", f"at most {MAX_NPROC}")
    if cluster.nnodes is not None and cluster.nnodes < 1:
        yield Problem("cluster.nnodes", f"{cluster.nnodes} nodes run nothing", "give 1 or more")
    for path in ("cluster.master_port", "cluster.ssh.port"):
        port = _at(config, path)
        if port is not None and not 1 <= port <= 65535:
            free = "; leave it out for a free one" if path == "cluster.master_port" else ""
            yield Problem(path, f"{port} is no port", f"ports go from 1 to 65535{free}")
    address = cluster.master_addr
    if address is not None and (not address or not address.isprintable() or re.search(r"[\s/]", address)):
        yield Problem("cluster.master_addr", f"{quote(address)} is no host's name or address")
    binding = cluster.gpu_binding
    if binding not in ("auto", "none") and (binding.lower() in ("auto", "none") or reserved(binding)):
        hint = "write auto, none, or a variable such as CUDA_VISIBLE_DEVICES"
        yield Problem("cluster.gpu_binding", f"{quote(binding)} cannot be narrowed for each rank", hint)


def _chosen(config: Config) -> Iterator[Problem]:
    for path, words in _CHOICES.items():
        value = _at(config, path)
        if value not in words:
            yield _no_choice(path, value, words)
    for path in _AUTO_OR_BOOL:
        value = _at(config, path)
        if not isinstance(value, bool) and value != "auto":
            yield _no_choice(path, value, ("auto", "true", "false"))
    for number, event in enumerate(config.notify.on):
        if event not in _NOTIFY_ON:
            yield _no_choice(f"notify.on[{number}]", event, _NOTIFY_ON)


def _no_choice(path: str, value: str, words: Sequence[str]) -> Problem:
    near = nearest(value.replace("-", "_"), words)
    hint = f'did you mean "{near}"?' if near else ""
    return Problem(path, f"expected {', '.join(words[:-1])} or {words[-1]}, got {quote(value)}", hint)


def _numbers(config: Config) -> Iterator[Problem]:
    for path, value in _leaves(config):
        if not path.endswith("_s") or not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            yield Problem(path, f"expected a number of seconds, got {value}", f"for ever is {MAX_SECONDS:.0f} here")
        elif value < 0:
            yield Problem(path, f"{value:g} seconds cannot be waited", "give 0 or more")
        elif value > MAX_SECONDS:
            yield Problem(path, f"{value:g} seconds are more than a clock can tell", f"give at most {MAX_SECONDS:.0f}")
        elif value <= 0 and path not in _MAY_BE_ZERO:
            yield Problem(path, "0 seconds is no time at all", "give more than 0")
    if config.restart.max < 0:
        yield Problem("restart.max", f"{config.restart.max} restarts cannot be made", "give 0 or more")
    if config.cluster.ssh.max_parallel < 1:
        yield Problem("cluster.ssh.max_parallel", f"{config.cluster.ssh.max_parallel} connections reach nobody")


def _not_yet(config: Config) -> Iterator[Problem]:
    """Keys that mean something, but not in this release: refused, for they must not be ignored."""
    launcher = config.cluster.launcher
    if launcher != "local":
        yield Problem("cluster.launcher", f"not yet: this release starts no job with {launcher}", "write local")
    if config.cluster.nnodes is not None and config.cluster.nnodes > 1:
        yield Problem("cluster.nnodes", "not yet: this release runs on this machine only", "write 1 or remove it")
    if config.restart.policy == "on_stall":
        text = "not yet: this release does not judge stalls"
        yield Problem("restart.policy", text, "write never or on_failure")
    normal = Config()
    for section, why in _NOT_YET.items():
        value, default = _at(config, section), _at(normal, section)
        if not is_dataclass(value):
            if value != default:
                yield Problem(section, f"not yet: {why}", "remove it")
            continue
        for f in fields(value):
            path = f"{section}.{f.name}"
            mine = getattr(value, f.name)
            asks_nothing = path == "gpu_health.enabled" and mine is False
            if mine != getattr(default, f.name) and path not in _IN_SCOPE_ALL_THE_SAME and not asks_nothing:
                yield Problem(path, f"not yet: {why}", "remove it")
