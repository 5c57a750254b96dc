"""A tiny plan, and short ways to drive the reducer with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.job.effects import Effect
from engine.job.events import AttemptStarted, EngineStarted, Event, NodePhase, NodeUp, RankEnded, RankSpawned
from engine.job.reduce import step
from engine.job.state import JobState, initial
from engine.plan import NodePlan, Plan, RankPlan


def tiny_plan(nodes: int = 1, per_node: int = 2, **changes: object) -> Plan:
    """`nodes` nodes with `per_node` ranks each."""
    values: dict[str, object] = {
        "name": "job",
        "run_id": "20260101-000000-abcd",
        "run_dir": "/runs/job/20260101-000000-abcd",
        "mode": "per_gpu",
        "launcher": "local",
        "world_size": nodes * per_node,
        "local_world_size": per_node,
        "master_addr": "127.0.0.1",
        "master_port": None,
        "stop_grace_s": 15.0,
        "fail_policy": "stop",
        "fail_grace_s": 30.0,
        "restart_policy": "never",
        "restart_max": 3,
        "restart_backoff_s": 10.0,
        "nodes": tuple(tiny_node(k, per_node) for k in range(nodes)),
    }
    return Plan(**{**values, **changes})  # pyright: ignore[reportArgumentType]


def tiny_node(k: int, per_node: int) -> NodePlan:
    return NodePlan(
        node_rank=k,
        host=f"n{k}",
        folder=f"{k}_n{k}",
        cwd="/",
        ranks=tuple(RankPlan(k * per_node + i, i) for i in range(per_node)),
        env={},
        env_expand={},
        argv=("true",),
        script=None,
        torchrun=None,
        activate="",
        before_start="",
        after_stop="",
        mkdirs=(),
        device_var=None,
        agent_python="python3",
    )


@dataclass
class World:
    """A reducer with a clock; `tell` returns the effects of one event."""

    plan: Plan = field(default_factory=tiny_plan)
    now: float = 1000.0
    told: list[tuple[Event, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state: JobState = initial(self.plan)

    def tell(self, *events: Event) -> list[Effect]:
        effects: list[Effect] = []
        for event in events:
            self.told.append((event, self.now))
            self.state, more = step(self.state, event, self.now)
            effects += more
        return effects

    def begin(self, attempt: int = 0, reason: str = "launch") -> list[Effect]:
        return self.tell(EngineStarted(1), AttemptStarted(attempt, reason))

    def run_all(self, attempt: int = 0) -> None:
        """Every node up, every rank running."""
        self.begin(attempt)
        for node in self.plan.nodes:
            self.tell(NodeUp(node.node_rank, None, "idle"), NodePhase(node.node_rank, attempt, "running"))
            self.tell(*(RankSpawned(attempt, r.rank, 100 + r.rank, self.now) for r in node.ranks))

    def end(self, rank: int, at: float | None = None, attempt: int = 0, **how: object) -> list[Effect]:
        when = self.now if at is None else at
        return self.tell(RankEnded(attempt, rank, when, **how))  # pyright: ignore[reportArgumentType]

    def down(self, node: int = 0, attempt: int = 0, **more: object) -> list[Effect]:
        return self.tell(NodePhase(node, attempt, "down", **more))  # pyright: ignore[reportArgumentType]
