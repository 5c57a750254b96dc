"""Config and probed facts -> the launch plan: nodes, ranks, environment, master. Pure and deterministic."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.config.host_entry import HostEntry, some
from engine.config.overrides import Settings, settings_for
from engine.config.schema import Config
from engine.devices import Pool, assign, count_processes, find_pool
from engine.errors import PlanError
from engine.render.shell import expand
from engine.render.torchrun import INTERPRETER, torchrun_words

_UNFIT_FOR_FOLDER = re.compile(r"[^A-Za-z0-9._-]")
# The folder's path is also that of a script in messages: a longest name of DNS would fill three lines.
_MAX_SLUG = 64


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What probing found on a node, before anything is planned.

    Attributes:
        host: the name that is shown and that names the node's folder.
        cwd: where trainui was started (absolute); relative `task.cwd` starts there.
        gpus: indices or UUIDs of the GPUs found, in order; empty where there are none.
        gpu_vendor: nvidia | amd | ascend | "" (decides the variable that is narrowed).
        visible: the `*_VISIBLE_DEVICES` variables of the environment that ranks inherit.
        home: the user's home folder there, for a leading `~`; "" where it is not known.
        address: the name or address by which this machine gets to it (HostName of ~/.ssh/config); "" = the host's name.
        interfaces: addresses by the name of the network interface, as far as known.
    """

    host: str
    cwd: str
    gpus: tuple[str, ...] = ()
    gpu_vendor: str = ""
    visible: Mapping[str, str] = field(default_factory=dict[str, str])
    home: str = ""
    address: str = ""
    interfaces: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One process that the agent starts. In `per_node` mode: the node's launcher, `rank` = node rank."""

    rank: int
    local_rank: int
    device: str | None = None  # what the narrowed variable holds for this rank


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Everything one node needs to run its ranks.

    Attributes:
        folder: `0_hostname`, below `nodes` in the run directory.
        address, user, port: how the user names the host to connect to; user and port None: as ssh's config says.
        node_dir: where the node keeps the run, absolute, on the node's own disk or on a shared one.
        local_world_size: processes that take part on this node.
    """

    node_rank: int
    host: str
    folder: str
    cwd: str
    ranks: tuple[RankPlan, ...]
    env: Mapping[str, str]  # literal, secrets included: never shown without `mask`
    env_expand: Mapping[str, str]
    argv: tuple[str, ...] | None  # None: `script` runs instead
    script: str | None
    torchrun: tuple[str, ...] | None  # the user's options for torchrun, as words; None: not wrapped
    activate: str
    before_start: str
    after_stop: str
    mkdirs: tuple[str, ...]
    device_var: str | None  # e.g. CUDA_VISIBLE_DEVICES; None: nothing is narrowed
    agent_python: str
    address: str = ""
    user: str | None = None
    port: int | None = None
    node_dir: str = ""
    local_world_size: int = 1

    @property
    def run_dir(self) -> str:
        """The run directory as this node has it: where `nodes/` with `node_dir` is."""
        return posixpath.dirname(posixpath.dirname(self.node_dir))


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run where. Serialised as plan.json (masked) and launch.json (whole, mode 0600)."""

    name: str
    run_id: str
    run_dir: str  # absolute
    mode: str  # per_gpu | per_node
    launcher: str
    world_size: int  # processes that take part: ranks, or nodes x nproc_per_node under torchrun
    local_world_size: int  # of the first node; `NodePlan` has each node's own
    nodes: tuple[NodePlan, ...]
    master_addr: str
    master_port: int | None  # None: a port found free on the master at each start
    stop_grace_s: float
    fail_policy: str
    fail_grace_s: float
    restart_policy: str
    restart_max: int
    restart_backoff_s: float
    lost_after_s: float | None = None  # a node out of reach for longer is given up; None: never
    warnings: tuple[str, ...] = ()
    heartbeat_interval_s: float = 5.0

    @property
    def nnodes(self) -> int:
        """How many nodes take part."""
        return len(self.nodes)


@dataclass(frozen=True, slots=True)
class _Node:
    """A node on its way into the plan."""

    facts: NodeFacts
    entry: HostEntry
    settings: Settings
    argv: tuple[str, ...] | None
    pool: Pool


def make_plan(
    cfg: Config, facts: tuple[NodeFacts, ...], *, run_id: str, run_dir: str, hosts: Sequence[HostEntry] = ()
) -> Plan:
    """Decide what runs where.

    Args:
        facts: one entry for each node, in the order of their ranks.
        run_dir: absolute; where the run keeps its files.
        hosts: what the config says about each node, in the order of `facts`; empty: it names no hosts.

    Raises:
        PlanError: these nodes cannot run this config (no GPU found for `auto`, ...).
    """
    if not facts or (cfg.cluster.nnodes or 0) > len(facts):
        raise PlanError(f"cluster.nnodes is {cfg.cluster.nnodes}, but there are {len(facts)} hosts")
    entries = hosts or [HostEntry(node.host) for node in facts]
    chosen = list(zip(facts, entries, strict=True))[: cfg.cluster.nnodes]
    torchrun = None if cfg.task.torchrun is None else torchrun_words(cfg.task.torchrun)
    mode = "per_gpu" if torchrun is None and cfg.task.mode == "per_gpu" else "per_node"
    argv = _argv(cfg)
    if torchrun is not None and argv is None:
        raise PlanError("task.torchrun wraps a command, and task.script has none", "write task.command")
    for name, value in cfg.env_expand.items():
        expand(value, f"env_expand.{name}")
    nodes = [_node(cfg, node, entry, argv, mode) for node, entry in chosen]
    counts, warnings = _count(cfg, nodes, mode)
    if torchrun is not None:
        _check_equal(nodes, counts)
    plans: list[NodePlan] = []
    first = 0
    for node_rank, (node, count) in enumerate(zip(nodes, counts, strict=True)):
        folder = f"{node_rank}_{_UNFIT_FOR_FOLDER.sub('_', node.facts.host)[:_MAX_SLUG]}"
        node_dir = f"{_run_dir_on(cfg, node.facts, run_id, run_dir)}/nodes/{folder}"
        plans.append(_node_plan(cfg, node, count, node_rank, first, mode, torchrun, node_dir))
        first += count
    return Plan(
        name=cfg.name or "run",
        run_id=run_id,
        run_dir=run_dir,
        mode=mode,
        launcher=cfg.cluster.launcher,
        world_size=sum(counts),
        local_world_size=counts[0],
        nodes=tuple(plans),
        master_addr=_master_addr(cfg, nodes),
        master_port=cfg.cluster.master_port,
        stop_grace_s=cfg.stop.grace_s,
        fail_policy=cfg.fail.policy,
        fail_grace_s=cfg.fail.grace_s,
        restart_policy=cfg.restart.policy,
        restart_max=cfg.restart.max,
        restart_backoff_s=cfg.restart.backoff_s,
        warnings=tuple(warnings),
        heartbeat_interval_s=cfg.heartbeat.interval_s,
    )


def _argv(cfg: Config) -> tuple[str, ...] | None:
    """The command's words, or None where a script runs.

    Raises:
        PlanError: there is neither, or the command cannot be split into words.
    """
    if cfg.task.script is not None:
        return None
    command = cfg.task.command
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError as err:
            raise PlanError(f"task.command cannot be split into words: {str(err).lower()}", "write a list") from err
    else:
        words = list(command or [])
    if not words or not words[0]:
        raise PlanError("task.command is empty", "write the command as a list of words, or task.script")
    return tuple(words)


def _node(cfg: Config, facts: NodeFacts, entry: HostEntry, argv: tuple[str, ...] | None, mode: str) -> _Node:
    """The node with what holds on it alone: overrides, command, devices."""
    settings = settings_for(cfg, entry)
    pool = find_pool(cfg.cluster.gpu_binding, settings.env, facts.visible, facts.gpus, facts.gpu_vendor)
    if mode == "per_gpu" and pool.variable in settings.env_expand:
        raise PlanError(
            f"env_expand.{pool.variable}: it is narrowed for each rank, so its value must be known before",
            "write it under env, or set cluster.gpu_binding: none",
        )
    return _Node(facts, entry, settings, _own_argv(settings, facts, argv), pool)


def _own_argv(settings: Settings, facts: NodeFacts, argv: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The command as it runs on one node.

    Raises:
        PlanError: an override changes a command that is not there, or has no interpreter.
    """
    if argv is None:
        for key in filter(None, (settings.args_key, settings.python_key)):
            raise PlanError(f"{key}: it changes the command, and task.script has none", "write task.command")
        return None
    if settings.python is not None:
        if not settings.python:
            raise PlanError(f"{settings.python_key} is empty", "name a Python, or remove it")
        if not INTERPRETER.match(argv[0]):
            text = f'{settings.python_key}: the command begins with "{argv[0]}", which is no Python to replace'
            raise PlanError(text, "begin task.command with python, or remove it")
        argv = (_expand_home(settings.python, facts, settings.python_key), *argv[1:])
    return (*argv, *settings.args)


def _count(cfg: Config, nodes: list[_Node], mode: str) -> tuple[list[int], list[str]]:
    """How many processes each node runs, and what to warn of: once for all nodes of which the same is true."""
    alike: dict[tuple[Pool, int | None], list[str]] = {}
    for node in nodes:
        alike.setdefault((node.pool, node.entry.slots), []).append(node.facts.host)
    counted: dict[tuple[Pool, int | None], int] = {}
    warnings: dict[str, list[str]] = {}
    told: list[str] = []
    for (pool, slots), hosts in alike.items():
        counted[pool, slots], texts = count_processes(cfg.cluster.nproc_per_node, pool, hosts, slots)
        told += texts
        # Where nothing is narrowed, the choice of a variable is of no interest.
        for text in pool.warnings if mode == "per_gpu" and pool.variable is not None else ():
            warnings.setdefault(text, []).extend(hosts)
    whose = [text if len(nodes) == 1 else f"{some(hosts)}: {text}" for text, hosts in warnings.items()]
    return [counted[node.pool, node.entry.slots] for node in nodes], [*whose, *told]


def _check_equal(nodes: list[_Node], counts: list[int]) -> None:
    """torchrun's --nproc-per-node is one number for the whole job: its agents would wait for each other for ever."""
    by_count: dict[int, list[str]] = {}
    for node, count in zip(nodes, counts, strict=True):
        by_count.setdefault(count, []).append(node.facts.host)
    if len(by_count) > 1:
        said = "; ".join(f"{count} on {some(hosts)}" for count, hosts in by_count.items())
        raise PlanError(
            f"torchrun needs the same number of processes on every node, and there would be {said}",
            f"cluster.nproc_per_node: {min(by_count)} makes them equal",
        )


def _run_dir_on(cfg: Config, node: NodeFacts, run_id: str, run_dir: str) -> str:
    """The run directory as the node has it.

    Raises:
        PlanError: `cluster.node_dir` is no absolute path there.
    """
    key, folder = "cluster.node_dir", cfg.cluster.node_dir
    if folder is None or cfg.cluster.launcher == "local":
        return run_dir
    path = _expand_home(folder, node, key)
    if not path.startswith("/"):
        raise PlanError(f'{key}: "{folder}" is not absolute', "it is a folder on the nodes: begin it with / or ~/")
    return posixpath.normpath(posixpath.join(path, cfg.name or "run", run_id))


def _master_addr(cfg: Config, nodes: list[_Node]) -> str:
    """Where the ranks meet: what the config says (an address, or an interface of the first node), else its name."""
    first = nodes[0]
    named = cfg.cluster.master_addr
    if named is not None:
        return first.facts.interfaces.get(named, named.removeprefix("[").removesuffix("]"))
    # The name of a single machine may not resolve, or lead out through a firewall.
    return "127.0.0.1" if len(nodes) == 1 else first.facts.address or first.entry.host


def _node_plan(
    cfg: Config,
    node: _Node,
    count: int,
    node_rank: int,
    first: int,
    mode: str,
    torchrun: tuple[str, ...] | None,
    node_dir: str,
) -> NodePlan:
    facts, settings = node.facts, node.settings
    env = dict(settings.env)
    if mode == "per_gpu":
        devices = assign(node.pool, count)
        ranks = tuple(RankPlan(first + i, i, device) for i, device in enumerate(devices))
        device_var = node.pool.variable
        if device_var is not None:
            env.pop(device_var, None)  # it is the pool; each rank gets its part of it
    else:
        ranks = (RankPlan(node_rank, 0),)
        device_var = None
    return NodePlan(
        node_rank=node_rank,
        host=facts.host,
        folder=posixpath.basename(node_dir),
        cwd=_absolute(settings.cwd or ".", facts, settings.cwd_key),
        ranks=ranks,
        env=env,
        env_expand=dict(settings.env_expand),
        argv=node.argv,
        script=cfg.task.script,
        torchrun=torchrun,
        activate=cfg.hooks.activate,
        before_start=cfg.hooks.before_start,
        after_stop=cfg.hooks.after_stop,
        mkdirs=tuple(_expand_home(path, facts, "mkdirs") for path in cfg.mkdirs),
        device_var=device_var,
        agent_python=_program(cfg.task.agent_python, facts),
        address=node.entry.host,
        user=node.entry.user,
        port=node.entry.port,
        node_dir=node_dir,
        local_world_size=count,
    )


def _program(word: str, node: NodeFacts) -> str:
    """A name is looked for on PATH; a path counts from where trainui was started."""
    return _absolute(word, node, "task.agent_python") if "/" in word else word


def _absolute(path: str, node: NodeFacts, key: str) -> str:
    # normpath, not resolve: a link in the path is the user's to choose, and this is another machine's disk.
    return posixpath.normpath(posixpath.join(node.cwd, _expand_home(path, node, key)))


def _expand_home(path: str, node: NodeFacts, key: str) -> str:
    """The path with a leading `~` replaced by the node's home folder.

    Raises:
        PlanError: it is another user's home, or the node's is not known.
    """
    if not path.startswith("~"):
        return path
    head, _, rest = path.partition("/")
    if head != "~" or not node.home:
        raise PlanError(f'{key}: "{path}": this home folder is not known', "write the folder in full")
    return posixpath.join(node.home, rest) if rest else node.home
