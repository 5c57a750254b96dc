"""The questions that are asked before anything is done to a job. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engine.job.snapshot import Snapshot
from engine.model import Phase
from tui.present.header import alive, elapsed, scope
from tui.present.text import clock_text, label


@dataclass(frozen=True, slots=True)
class Choice:
    """A way out of a dialog: the key that takes it, what it says, what it answers."""

    key: str
    text: str
    answer: str
    danger: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A dialog. The first choice is the default: the one that changes nothing."""

    title: str
    lines: tuple[str, ...]
    choices: tuple[Choice, ...]


CANCEL = Choice("n", "Cancel", "")


def stop_question(snapshot: Snapshot, now: float) -> Question:
    """Before `x`."""
    lines = (
        f"Running {clock_text(elapsed(snapshot, now))}. SIGTERM now, SIGKILL after {snapshot.stop_grace_s:g} s.",
        "A restart that is due will not happen." if snapshot.restart_at is not None else "",
    )
    return Question(f"Stop {scope(snapshot)}?", _said(lines), (CANCEL, Choice("y", "Stop", "stop", danger=True)))


def kill_question(snapshot: Snapshot, now: float) -> Question:
    """Before `X`."""
    lines = (f"Running {clock_text(elapsed(snapshot, now))}. SIGKILL at once: nothing can be saved.",)
    return Question(f"Kill {scope(snapshot)}?", lines, (CANCEL, Choice("y", "Kill", "kill", danger=True)))


def restart_question(snapshot: Snapshot, now: float) -> Question:
    """Before `R`."""
    lines = (
        f"Stops it first: running {clock_text(elapsed(snapshot, now))}." if alive(snapshot) else "",
        f"Attempt {snapshot.attempt + 1} of the same run begins once everything is down.",
    )
    return Question(
        f"Restart {scope(snapshot)}?", _said(lines), (CANCEL, Choice("y", "Restart", "restart", danger=True))
    )


def quit_question(snapshot: Snapshot, *, read_only: bool) -> Question:
    """Before `q` while the job is not over."""
    stay = Choice("escape", "Stay", "")
    detach = Choice("d", "Detach: it runs on", "detach")
    stop = Choice("x", "Stop it and quit", "stop", danger=True)
    stopping = snapshot.phase is Phase.STOPPING
    said = (
        ("The stop goes on without this console.",)
        if stopping
        else ("It runs on and stays looked after.", f"trainui attach {label(snapshot.run_id)} comes back.")
    )
    choices = (stay, detach) if read_only else (stay, detach, stop)
    return Question(f"Leave {label(snapshot.name)}?", said, choices)


def refusal(action: str, snapshot: Snapshot, *, read_only: bool) -> str:
    """Why `action` (stop, kill, restart, grace) makes no sense now, or ""."""
    if read_only:
        return "this console is read-only"
    if action == "restart":
        return ""
    if action == "grace":
        return "" if snapshot.phase is Phase.STOPPING else "nothing is being stopped"
    if snapshot.over:
        return "the run is over, there is nothing to stop"
    if action == "stop" and snapshot.phase is Phase.STOPPING:
        return "it is being stopped already: X kills at once, + gives more time"
    return ""


def _said(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(line for line in lines if line)
