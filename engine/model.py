"""The words everybody uses: phases and states, as they stand in `status --json`."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a run is."""

    PENDING = "pending"
    CHECKING = "checking"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """True when nothing more happens in this attempt."""
        return self in FINAL_PHASES


FINAL_PHASES = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.LOST})


class NodeState(StrEnum):
    """What we know of a node's agent."""

    PENDING = "pending"  # nobody has talked to it yet
    CONNECTING = "connecting"  # its agent is being started or found
    READY = "ready"  # the agent answers, no rank was started in this attempt
    PREPARING = "preparing"  # hooks.before_start is running
    RUNNING = "running"  # ranks were started
    STOPPING = "stopping"  # signalled; not everything is down yet
    DOWN = "down"  # the agent confirmed that nothing of the run is left
    UNREACHABLE = "unreachable"  # the link is down; the job on it runs on
    FAILED = "failed"  # it could not be prepared; `error` says why
    LOST = "lost"  # given up

    @property
    def final(self) -> bool:
        """True when nothing more is expected of the node in this attempt."""
        return self in (NodeState.DOWN, NodeState.FAILED, NodeState.LOST)


class RankState(StrEnum):
    """What we know of a rank's process."""

    PENDING = "pending"
    RUNNING = "running"
    EXITED = "exited"  # left by itself; exit_code is set
    SIGNALLED = "signalled"  # ended by a signal; signal is set
    LOST = "lost"  # ended while nobody could wait for it
    NEVER_STARTED = "never_started"

    @property
    def final(self) -> bool:
        """True when the process is no more, or never was."""
        return self not in (RankState.PENDING, RankState.RUNNING)
