"""What the reducer wants done. Data only: the supervisor does it and reports back with events."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BeginAttempt:
    """Feed `AttemptStarted` with this number next."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Connect:
    """Start or find the node's agent and keep a channel to it open."""

    node_rank: int


@dataclass(frozen=True, slots=True)
class StartNode:
    """Have the node's agent start its ranks of this attempt."""

    node_rank: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StopNode:
    """SIGTERM → `grace_s` → SIGKILL on this node; 0 = kill at once."""

    node_rank: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class ExtendGrace:
    """While stopping: SIGKILL comes `seconds` later on this node."""

    node_rank: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Feed `TimerFired(name)` after `delay_s`; replaces a timer of that name."""

    name: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget the timer of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over: let the agents go, write the summary."""


Effect = BeginAttempt | Connect | StartNode | StopNode | ExtendGrace | SetTimer | CancelTimer | Finish
