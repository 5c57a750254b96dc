"""Config and probed facts -> the launch plan: nodes, ranks, environment, master. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.config.schema import Config


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What probing found on a node, before anything is planned.

    Attributes:
        host: the name that is shown and that names the node's folder.
        cwd: where trainui was started (absolute); relative `task.cwd` starts there.
        gpus: indices or UUIDs of the GPUs found, in order; empty where there are none.
        gpu_vendor: nvidia | amd | ascend | "" (decides the variable that is narrowed).
        visible: the `*_VISIBLE_DEVICES` variables of the environment that ranks inherit.
    """

    host: str
    cwd: str
    gpus: tuple[str, ...] = ()
    gpu_vendor: str = ""
    visible: Mapping[str, str] = field(default_factory=dict[str, str])


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
    torchrun: tuple[str, ...] | None  # torchrun's own words before argv; None: not wrapped
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
    warnings: tuple[str, ...] = ()

    @property
    def nnodes(self) -> int:
        """How many nodes take part."""
        return len(self.nodes)


def make_plan(cfg: Config, facts: tuple[NodeFacts, ...], *, run_id: str, run_dir: str) -> Plan:
    """Decide what runs where.

    Raises:
        PlanError: these nodes cannot run this config (no GPU found for `auto`, ...).
    """
    raise NotImplementedError
