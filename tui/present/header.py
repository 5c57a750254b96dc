"""What stands above and below the panes: who runs, how far, what is happening. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter

from engine.job.snapshot import RankView, Snapshot
from engine.model import Phase, RankState
from tui.present.text import Glyphs, Spans, clock_text, count_text, fit, label, left_and_right, width_of
from tui.render_text import ranges_text, survivor_text

PHASE_ROLES = {
    Phase.PENDING: "warn",
    Phase.CHECKING: "warn",
    Phase.STARTING: "warn",
    Phase.RUNNING: "good",
    Phase.STOPPING: "warn",
    Phase.SUCCEEDED: "good",
    Phase.FAILED: "bad",
    Phase.STOPPED: "warn",
    Phase.LOST: "bad",
}
# (word, role) in the order in which they are counted in the header: trouble first.
_COUNTED = (
    ("failed", "bad"),
    ("lost", "bad"),
    ("running", "good"),
    ("pending", ""),
    ("never started", "dim"),
    ("stopped", "warn"),
    ("done", "accent"),
)


def alive(snapshot: Snapshot) -> list[RankView]:
    """The ranks whose processes run."""
    return [r for r in snapshot.ranks if r.state is RankState.RUNNING]


def elapsed(snapshot: Snapshot, now: float) -> float | None:
    """Seconds since the start, or from start to end."""
    if snapshot.started_at is None:
        return None
    return (now if snapshot.ended_at is None else snapshot.ended_at) - snapshot.started_at


def counted_as(rank: RankView) -> str:
    """The word under which a rank is counted."""
    match rank.state:
        case RankState.RUNNING:
            return "running"
        case RankState.PENDING:
            return "pending"
        case RankState.LOST:
            return "lost"
        case RankState.NEVER_STARTED:
            return "never started"
        case _ if rank.by_us:
            return "stopped"
        case _:
            return "failed" if rank.failed else "done"


def counts(snapshot: Snapshot, glyphs: Glyphs) -> Spans:
    """`1 failed · 3 running`."""
    numbers = Counter(counted_as(r) for r in snapshot.ranks)
    spans: Spans = []
    for word, role in _COUNTED:
        if numbers[word]:
            if spans:
                spans.append((f" {glyphs.dot} ", "dim"))
            spans.append((f"{numbers[word]} {word}", role))
    return spans


def title_row(snapshot: Snapshot, now: float, width: int, glyphs: Glyphs) -> Spans:
    """Name, run, phase, elapsed time, counts: one row; the run id gives way first, then the name is cut."""
    numbers = counts(snapshot, glyphs)
    middle: Spans = [(f" {str(snapshot.phase).upper()} ", f"phase-{PHASE_ROLES[snapshot.phase]}")]
    middle.append((f" {clock_text(elapsed(snapshot, now))}", ""))
    if snapshot.attempt:
        middle.append((f"  attempt {snapshot.attempt}", "dim"))
    room = width - width_of(middle) - width_of(numbers) - 3
    name, run = label(snapshot.name), label(snapshot.run_id)
    for shown in (run, run[-4:] if len(run) > 4 else run):
        if len(name) + len(shown) + 2 < room:  # two cells on each side of the run, and one before the counts
            return left_and_right([(name, "strong"), (f"  {shown}  ", "dim"), *middle], [*numbers, (" ", "")], width)
    name = fit(name, max(room, 8), glyphs)
    return left_and_right([(name, "strong"), (" ", ""), *middle], [*numbers, (" ", "")], width)


def second_row(snapshot: Snapshot, now: float, glyphs: Glyphs) -> Spans:
    """What is going on beside running, or []: a stop with who is alive, a restart, the end, what there is to know."""
    known = "; ".join(snapshot.findings)
    if snapshot.stuck:
        who = "; ".join(survivor_text(s) for s in snapshot.survivors)
        return [("could not be killed: ", "bad"), (label(who), "strong")]
    if snapshot.phase is Phase.STOPPING:
        return _stopping(snapshot, now, glyphs)
    if snapshot.restart_at is not None:
        due = max(0, round(snapshot.restart_at - now))
        return [(f"restart in {due} s ({snapshot.restarts_left} left)", "warn")]
    if snapshot.phase.final:
        status = "" if snapshot.exit_status is None else f"exit status {snapshot.exit_status} {glyphs.dot} "
        over: Spans = [(f"{status}the run is over, q leaves", PHASE_ROLES[snapshot.phase])]
        return [*over, (f" {glyphs.dot} ", "dim"), (label(known), "warn")] if known else over
    faults = [f"{n.host}: {n.error}" for n in snapshot.nodes if n.error]
    if faults:
        return [(label("; ".join(faults)), "bad")]
    return [(label(known), "warn")] if known else []


def _stopping(snapshot: Snapshot, now: float, glyphs: Glyphs) -> Spans:
    living = alive(snapshot)
    spans: Spans = []
    if snapshot.stop_deadline is not None and snapshot.stop_deadline > now:
        spans.append((f"SIGKILL in {round(snapshot.stop_deadline - now)} s", "warn"))
    elif snapshot.stop_deadline is not None:
        spans.append(("SIGKILL sent", "warn"))
    else:
        spans.append(("stopping", "warn"))
    spans.append((f" {glyphs.dot} ", "dim"))
    if living:
        noun = "rank" if len(living) == 1 else "ranks"
        pids = ", ".join(str(r.pid) for r in living[:8]) + (", ..." if len(living) > 8 else "")
        who = f"still alive: {noun} {ranges_text(r.rank for r in living)} (pid {pids})"
    else:
        who = "every rank is down, waiting for the nodes to confirm"
    return [*spans, (who, "strong")]


def verdict_rows(snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Spans]:
    """Why it failed, in one row, or two where it is long; [] where it did not fail."""
    cause = snapshot.root_cause
    if cause is None:
        return []
    wrapped = textwrap.wrap(f"{glyphs.failed} {label(cause.reason)}", max(10, width - 1)) or [""]
    rows = wrapped[:1] if len(wrapped) == 1 else [wrapped[0], fit(" ".join(wrapped[1:]), width - 1, glyphs)]
    return [[(row, "bad")] for row in rows]


def log_title(rank: RankView, *, several_hosts: bool) -> str:
    """Which log is shown."""
    where = f" @ {label(rank.host)}" if several_hosts else ""
    pid = "" if rank.pid is None else f" pid {rank.pid}"
    return f"rank {rank.rank}{where}{pid}"


def log_state(*, following: bool, living: bool, unseen: str, wrap: bool) -> Spans:
    """`FOLLOW`, `PAUSED +12 new`, `END`: where the view stands."""
    if not following:
        state: Spans = [("PAUSED" + (f" +{unseen} new" if unseen else ""), "warn")]
    else:
        state = [("FOLLOW", "good")] if living else [("END", "dim")]
    return [*([("wrap ", "dim")] if wrap else []), *state]


def scope(snapshot: Snapshot) -> str:
    """`2 nodes, 8 ranks of demo`: whom an action on the job concerns; the name alone where nothing runs."""
    concerned = [r for r in snapshot.ranks if not r.state.final]
    if not concerned:
        return label(snapshot.name)
    nodes = len({r.node_rank for r in concerned})
    several = count_text(nodes, "node") + ", " if nodes > 1 else ""
    return f"{several}{count_text(len(concerned), 'rank')} of {label(snapshot.name)}"
