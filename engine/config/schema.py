"""What a user may write in a config (contract, section 4): names, types and defaults.

The dataclasses are the whole schema; `check.py` says which values are possible and which keys
are "not yet" in this release. Durations end in `_s` and are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Task:
    """The command that a rank (or, in `per_node` mode, a node) runs."""

    command: list[str] | str | None = None  # list = argv; string = shell words, no shell
    cwd: str | None = None  # on the node; None: where trainui was started
    mode: str = "per_gpu"  # per_gpu | per_node
    torchrun: dict[str, Any] | None = None  # options of torchrun; implies per_node
    script: str | None = None  # lines of bash, instead of command
    agent_python: str = "python3"


@dataclass(slots=True)
class Hooks:
    """Lines of bash around the command."""

    activate: str = ""
    before_start: str = ""
    after_stop: str = ""


@dataclass(slots=True)
class Ssh:
    """How hosts are reached with `launcher: ssh`."""

    user: str | None = None
    port: int | None = None
    identity: str | None = None
    config: bool = True
    known_hosts: str | None = None
    jump: str | None = None
    connect_timeout_s: float = 15.0
    keepalive_s: float = 15.0
    max_parallel: int = 32


@dataclass(slots=True)
class Ray:
    """`launcher: ray`."""

    address: str = "auto"


@dataclass(slots=True)
class Slurm:
    """`launcher: slurm`."""

    partition: str | None = None
    args: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Override:
    """What is different on one host, or on all hosts of one type."""

    env: dict[str, str] = field(default_factory=dict[str, str])
    args: list[str] = field(default_factory=list[str])
    cwd: str | None = None
    python: str | None = None


@dataclass(slots=True)
class Cluster:
    """Where the job runs."""

    launcher: str = "local"  # local | ssh | ray | slurm
    hostfile: str | None = None
    hosts: list[str] = field(default_factory=list[str])
    nnodes: int | None = None
    nproc_per_node: int | str | None = None  # a number, or "auto" = the GPUs found
    gpu_binding: str = "auto"  # auto | none | a variable's name
    master_addr: str | None = None
    master_port: int | None = None
    shared_fs: bool | str = "auto"  # auto | true | false
    node_dir: str | None = None
    node_overrides: dict[str, Override] = field(default_factory=dict[str, Override])
    type_overrides: dict[str, Override] = field(default_factory=dict[str, Override])
    ssh: Ssh = field(default_factory=Ssh)
    ray: Ray = field(default_factory=Ray)
    slurm: Slurm = field(default_factory=Slurm)


@dataclass(slots=True)
class Heartbeat:
    """When a rank counts as silent or stalled."""

    enabled: bool = True
    source: str = "auto"  # auto | file | log | output
    interval_s: float = 5.0
    initial_process_timeout_s: float = 30.0
    process_timeout_s: float = 30.0
    initial_progress_timeout_s: float = 600.0
    progress_timeout_s: float = 300.0
    checkpoint_timeout_s: float = 1800.0
    on_stall: str = "warn"  # warn | dump | stop | restart


@dataclass(slots=True)
class Fail:
    """What happens to the others when a rank fails."""

    policy: str = "stop"  # stop | continue
    grace_s: float = 30.0


@dataclass(slots=True)
class Stop:
    """SIGTERM, then this long, then SIGKILL."""

    grace_s: float = 15.0


@dataclass(slots=True)
class Restart:
    """Whether a failed attempt is followed by another one."""

    policy: str = "never"  # never | on_failure | on_stall
    max: int = 3
    backoff_s: float = 10.0


@dataclass(slots=True)
class Tracing:
    """Communication tracing."""

    enabled: bool = False
    preload: str | None = None
    env: dict[str, str] = field(default_factory=dict[str, str])
    flight_recorder: bool = False


@dataclass(slots=True)
class GpuHealth:
    """Sampling of the GPUs' health."""

    enabled: bool | str = "auto"  # auto | true | false
    interval_s: float = 60.0
    command_timeout_s: float = 10.0


@dataclass(slots=True)
class Metrics:
    """How step, loss and throughput are read out of log lines."""

    presets: list[str] | str = "auto"
    patterns: list[Any] = field(default_factory=list[Any])


@dataclass(slots=True)
class Notify:
    """Who is told of the end, a failure, a stall."""

    on: list[str] = field(default_factory=lambda: ["finish", "fail", "stall"])
    command: str | None = None
    urls: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Logs:
    """How logs are kept."""

    split_stderr: bool = False
    mirror: bool | str = "auto"  # auto | true | false


@dataclass(slots=True)
class Config:
    """A whole config. `env` and `env_expand` hold strings: scalars as written in the file."""

    name: str | None = None  # None: the file's stem
    run_root: str | None = None  # None: $TRAINUI_RUN_ROOT, else ./runs
    task: Task = field(default_factory=Task)
    env: dict[str, str] = field(default_factory=dict[str, str])
    env_expand: dict[str, str] = field(default_factory=dict[str, str])
    hooks: Hooks = field(default_factory=Hooks)
    mkdirs: list[str] = field(default_factory=list[str])
    cluster: Cluster = field(default_factory=Cluster)
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    fail: Fail = field(default_factory=Fail)
    stop: Stop = field(default_factory=Stop)
    restart: Restart = field(default_factory=Restart)
    tracing: Tracing = field(default_factory=Tracing)
    gpu_health: GpuHealth = field(default_factory=GpuHealth)
    metrics: Metrics = field(default_factory=Metrics)
    notify: Notify = field(default_factory=Notify)
    logs: Logs = field(default_factory=Logs)
