"""Config and probed facts -> the launch plan: nodes, ranks, environment, master. Pure and deterministic."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.config.schema import Config
from engine.devices import Pool, assign, count_processes, find_pool
from engine.errors import PlanError
from engine.render.shell import expand
from engine.render.torchrun import torchrun_words

_UNFIT_FOR_FOLDER = re.compile(r"[^A-Za-z0-9._-]")


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
    """

    host: str
    cwd: str
    gpus: tuple[str, ...] = ()
    gpu_vendor: str = ""
    visible: Mapping[str, str] = field(default_factory=dict[str, str])
    home: str = ""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One process that the agent starts. In `per_node` mode: the node's launcher, `rank` = node rank."""

    rank: int
    local_rank: int
    device: str | None = None  # what the narrowed variable holds for this rank


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Everything one node needs to run its ranks. `folder` is `0_hostname`."""

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


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run where. Serialised as plan.json (masked) and launch.json (whole, mode 0600)."""

    name: str
    run_id: str
    run_dir: str  # absolute
    mode: str  # per_gpu | per_node
    launcher: str
    world_size: int  # processes that take part: ranks, or nodes x nproc_per_node under torchrun
    local_world_size: int
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


def make_plan(cfg: Config, facts: tuple[NodeFacts, ...], *, run_id: str, run_dir: str) -> Plan:
    """Decide what runs where.

    Args:
        facts: one entry for each node, in the order of their ranks.
        run_dir: absolute; where the run keeps its files.

    Raises:
        PlanError: these nodes cannot run this config (no GPU found for `auto`, ...).
    """
    nodes = facts[: cfg.cluster.nnodes]
    if not nodes or (cfg.cluster.nnodes or 0) > len(nodes):
        raise PlanError(f"cluster.nnodes is {cfg.cluster.nnodes}, but there are {len(facts)} hosts")
    torchrun = None if cfg.task.torchrun is None else torchrun_words(cfg.task.torchrun)
    mode = "per_gpu" if torchrun is None and cfg.task.mode == "per_gpu" else "per_node"
    argv = _argv(cfg)
    if torchrun is not None and argv is None:
        raise PlanError("task.torchrun wraps a command, and task.script has none", "write task.command")
    for name, value in cfg.env_expand.items():
        expand(value, f"env_expand.{name}")
    pools = [find_pool(cfg.cluster.gpu_binding, cfg.env, node.visible, node.gpus, node.gpu_vendor) for node in nodes]
    _check_pools(cfg, pools, mode)
    counted = [count_processes(cfg.cluster.nproc_per_node, pool, n.host) for pool, n in zip(pools, nodes, strict=True)]
    counts = [count for count, _ in counted]
    if mode == "per_node" and len(set(counts)) > 1:
        raise PlanError(f"the nodes have different numbers of devices ({counts})", "set cluster.nproc_per_node")
    warnings = [text for pool, (_, texts) in zip(pools, counted, strict=True) for text in (*_told(pool, mode), *texts)]
    plans: list[NodePlan] = []
    first = 0
    for node_rank, (node, pool, count) in enumerate(zip(nodes, pools, counts, strict=True)):
        plans.append(_node_plan(cfg, node, pool, count, node_rank, first, mode, argv, torchrun))
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
        master_addr=cfg.cluster.master_addr or _master_addr(cfg, nodes),
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


def _check_pools(cfg: Config, pools: list[Pool], mode: str) -> None:
    for pool in pools:
        if mode == "per_gpu" and pool.variable in cfg.env_expand:
            raise PlanError(
                f"env_expand.{pool.variable}: it is narrowed for each rank, so its value must be known before",
                "write it under env, or set cluster.gpu_binding: none",
            )


def _told(pool: Pool, mode: str) -> tuple[str, ...]:
    # Where nothing is narrowed, the choice of a variable is of no interest.
    return pool.warnings if mode == "per_gpu" and pool.variable is not None else ()


def _master_addr(cfg: Config, nodes: tuple[NodeFacts, ...]) -> str:
    # The name of a single machine may not resolve, or lead out through a firewall.
    return "127.0.0.1" if len(nodes) == 1 and cfg.cluster.launcher == "local" else nodes[0].host


def _node_plan(
    cfg: Config,
    node: NodeFacts,
    pool: Pool,
    count: int,
    node_rank: int,
    first: int,
    mode: str,
    argv: tuple[str, ...] | None,
    torchrun: tuple[str, ...] | None,
) -> NodePlan:
    env = dict(cfg.env)
    if mode == "per_gpu":
        devices = assign(pool, count)
        ranks = tuple(RankPlan(first + i, i, device) for i, device in enumerate(devices))
        device_var = pool.variable
        if device_var is not None:
            env.pop(device_var, None)  # it is the pool; each rank gets its part of it
    else:
        ranks = (RankPlan(node_rank, 0),)
        device_var = None
    return NodePlan(
        node_rank=node_rank,
        host=node.host,
        folder=f"{node_rank}_{_UNFIT_FOR_FOLDER.sub('_', node.host)}",
        cwd=_absolute(cfg.task.cwd or ".", node, "task.cwd"),
        ranks=ranks,
        env=env,
        env_expand=dict(cfg.env_expand),
        argv=argv,
        script=cfg.task.script,
        torchrun=torchrun,
        activate=cfg.hooks.activate,
        before_start=cfg.hooks.before_start,
        after_stop=cfg.hooks.after_stop,
        mkdirs=tuple(_expand_home(path, node, "mkdirs") for path in cfg.mkdirs),
        device_var=device_var,
        agent_python=_program(cfg.task.agent_python, node),
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
