"""A snapshot as plain text: labels, tables, the summary. Pure: the terminal and the clock come as arguments."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine.clock import rfc3339
from engine.job.snapshot import RankView, RootCause, Snapshot, Survivor
from engine.model import Phase, RankState

RESET = "\x1b[0m"
BOLD = "\x1b[1m"
DIM = "\x1b[2m"
RED = "\x1b[31m"
GREEN = "\x1b[32m"
YELLOW = "\x1b[33m"
# By rank number, so that a rank keeps its colour over attempts and consoles; red is left to faults.
RANK_COLOURS = ("\x1b[36m", "\x1b[32m", "\x1b[35m", "\x1b[33m", "\x1b[34m", "\x1b[96m", "\x1b[92m", "\x1b[95m")
# Whatever could move a cursor or end a line; logs come through engine.parse.ansi, the rest through here.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_PHASE_COLOURS = {
    Phase.SUCCEEDED: GREEN,
    Phase.FAILED: RED,
    Phase.LOST: RED,
    Phase.STOPPED: YELLOW,
    Phase.STOPPING: YELLOW,
}


def clean(text: str) -> str:
    """`text` on one line, without anything a terminal would obey."""
    return _CONTROLS.sub(" ", text)


def paint(text: str, colour: str, on: bool) -> str:
    """`text` in a colour, where colours are wanted."""
    return f"{colour}{text}{RESET}" if on and colour else text


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 35` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_text(rank: RankView) -> str:
    """How a rank ended: `0`, `1`, `SIGKILL`; `-` while it has not."""
    if rank.signal is not None:
        return signal_name(rank.signal)
    return "-" if rank.exit_code is None else str(rank.exit_code)


def duration_text(seconds: float | None) -> str:
    """`3.2s`, `4m05s`, `2h03m`, `3d04h`; `-` for None."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def lasted(started_at: float | None, ended_at: float | None, now: float) -> float | None:
    """Seconds from start to end, or until `now` while there is no end; None before the start."""
    return None if started_at is None else (now if ended_at is None else ended_at) - started_at


def ranges_text(numbers: Iterable[int]) -> str:
    """`0-3, 7` for 0, 1, 2, 3, 7."""
    parts: list[str] = []
    run: list[int] = []
    for number in sorted(set(numbers)):
        if run and number != run[-1] + 1:
            parts.append(_range_text(run))
            run = []
        run.append(number)
    if run:
        parts.append(_range_text(run))
    return ", ".join(parts)


def _range_text(run: Sequence[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


def ranks_text(numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-3, 7`."""
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {ranges_text(numbers)}"


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What stands before each merged line: `host:rank | `, as wide for every rank of the job.

    Attributes:
        width: of the widest `host:rank`, in characters.
        color: True on a terminal that wants colours.
    """

    width: int
    color: bool

    @staticmethod
    def of(ranks: Iterable[tuple[str, int]], color: bool) -> Prefixes:
        """Prefixes wide enough for all `(host, rank)` of the job."""
        return Prefixes(max((len(f"{host}:{rank}") for host, rank in ranks), default=0), color)

    def text(self, host: str, rank: int) -> str:
        """The prefix of one rank's lines."""
        label = clean(f"{host}:{rank}").ljust(self.width)
        return paint(label, RANK_COLOURS[rank % len(RANK_COLOURS)], self.color) + " | "


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Rows in aligned columns, two spaces apart; `right` holds the columns that are aligned to the right."""
    cells = [list(head), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        "  ".join(
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))
        ).rstrip()
        for r in cells
    ]


def rank_rows(snapshot: Snapshot, now: float) -> list[str]:
    """The table of ranks: rank, host, pid, state, exit, duration, step."""
    cause = snapshot.root_cause
    rows = [
        (
            str(r.rank),
            r.host,
            "-" if r.pid is None else str(r.pid),
            str(r.state),
            exit_text(r),
            duration_text(lasted(r.started_at, r.ended_at, now)),
            "-" if r.step is None else str(r.step),
            _remark(r, cause),
        )
        for r in snapshot.ranks
    ]
    return table(
        ("rank", "host", "pid", "state", "exit", "duration", "step", ""), rows, right=frozenset({0, 2, 4, 5, 6})
    )


def _remark(rank: RankView, cause: RootCause | None) -> str:
    if cause is not None and cause.rank == rank.rank:
        return "<- first to fail"
    return "stopped by trainui" if rank.by_us else ""


def verdict_lines(snapshot: Snapshot, color: bool, last_lines: Sequence[str] = ()) -> list[str]:
    """Why the run failed, with what proves it; [] where it did not.

    Args:
        snapshot: the last one.
        color: True on a terminal that wants colours.
        last_lines: of the log of the rank that failed first, shown instead of the evidence.
    """
    cause = snapshot.root_cause
    if cause is None:
        return []
    # A reason often ends with the very line that proves it: once is enough.
    proof = last_lines or [evidence.text for evidence in cause.evidence if evidence.text not in cause.reason]
    return [paint(clean(cause.reason), RED, color), *(f"  | {clean(line)}" for line in proof)]


def survivor_text(survivor: Survivor) -> str:
    """One process that could not be killed, as a line."""
    return clean(f"pid {survivor.pid} on {survivor.host} (state {survivor.state}): {survivor.command}")


def headline(snapshot: Snapshot, now: float, color: bool) -> str:
    """`demo 20261201-…: failed, exit status 3, after 4m05s (attempt 1)`."""
    phase = paint(str(snapshot.phase), _PHASE_COLOURS.get(snapshot.phase, ""), color)
    parts = [phase]
    if snapshot.exit_status is not None:
        parts.append(f"exit status {snapshot.exit_status}")
    length = lasted(snapshot.started_at, snapshot.ended_at, now)
    if length is not None:
        parts.append(f"{'after' if snapshot.phase.final else 'for'} {duration_text(length)}")
    attempt = f" (attempt {snapshot.attempt})" if snapshot.attempt else ""
    return f"{clean(snapshot.name)} {snapshot.run_id}: {', '.join(parts)}{attempt}"


def counts_text(snapshot: Snapshot) -> str:
    """`4 ranks: 3 running, 1 exited`."""
    counts = {state: sum(r.state is state for r in snapshot.ranks) for state in RankState}
    total = len(snapshot.ranks)
    told = ", ".join(f"{count} {state}".replace("_", " ") for state, count in counts.items() if count)
    return f"{total} rank{'' if total == 1 else 's'}: {told}"


def summary(snapshot: Snapshot, now: float, color: bool, last_lines: Sequence[str] = ()) -> str:
    """What headless prints last: the table of ranks, the verdict, where the run's files are.

    Args:
        snapshot: the last one.
        now: Unix seconds, for what has not ended.
        color: True on a terminal that wants colours.
        last_lines: of the log of the rank that failed first.
    """
    lines = ["", *rank_rows(snapshot, now), "", headline(snapshot, now, color)]
    lines += verdict_lines(snapshot, color, last_lines)
    lines += [f"still alive: {survivor_text(s)}" for s in snapshot.survivors]
    lines += [f"note: {clean(finding)}" for finding in snapshot.findings]
    lines.append(f"run directory: {clean(snapshot.run_dir)}")
    return "\n".join(lines) + "\n"


def status_text(snapshot: Snapshot, now: float, color: bool) -> str:
    """What `trainui status` prints."""
    lines = [headline(snapshot, now, color), counts_text(snapshot)]
    if snapshot.stop_deadline is not None and snapshot.phase is Phase.STOPPING:
        lines.append(f"SIGKILL in {duration_text(snapshot.stop_deadline - now)}")
    if snapshot.restart_at is not None:
        lines.append(f"restarts in {duration_text(snapshot.restart_at - now)} ({snapshot.restarts_left} left)")
    lines += verdict_lines(snapshot, color)
    lines += ["", *_node_rows(snapshot), "", *_beat_rows(snapshot, now)]
    lines += [f"still alive: {survivor_text(s)}" for s in snapshot.survivors]
    lines += [f"note: {clean(finding)}" for finding in snapshot.findings]
    lines.append(f"run directory: {clean(snapshot.run_dir)}")
    return "\n".join(lines) + "\n"


def _node_rows(snapshot: Snapshot) -> list[str]:
    rows = [(str(n.node_rank), n.host, str(n.state), n.error or "") for n in snapshot.nodes]
    return table(("node", "host", "state", ""), rows, right=frozenset({0}))


def _beat_rows(snapshot: Snapshot, now: float) -> list[str]:
    rows = rank_rows(snapshot, now)
    width = max(len(row) for row in rows)
    ages = ["last beat", *(_beat_text(r, now) for r in snapshot.ranks)]
    return [f"{row.ljust(width)}  {age}".rstrip() for row, age in zip(rows, ages, strict=True)]


def _beat_text(rank: RankView, now: float) -> str:
    if rank.beat is None:
        return "-"
    if rank.state.final:
        return rank.beat.source
    return f"{duration_text(now - rank.beat.seen_at)} ago ({rank.beat.source})"


def runs_text(snapshots: Sequence[Snapshot], now: float, moment: Callable[[float], str]) -> str:
    """What `trainui ls` prints; `moment` writes a Unix time as the user reads it."""
    rows = [
        (
            s.run_id,
            s.name,
            str(s.phase),
            "-" if s.started_at is None else moment(s.started_at),
            duration_text(lasted(s.started_at, s.ended_at, now)),
            str(len(s.ranks)),
            "-" if s.exit_status is None else str(s.exit_status),
        )
        for s in snapshots
    ]
    head = ("run", "name", "phase", "started", "duration", "ranks", "exit")
    return "\n".join(table(head, rows, right=frozenset({4, 5, 6}))) + "\n"


def run_entry(snapshot: Snapshot, now: float) -> dict[str, object]:
    """One entry of `trainui ls --json`. Durations are seconds."""
    return {
        "run_id": snapshot.run_id,
        "name": snapshot.name,
        "run_dir": snapshot.run_dir,
        "phase": str(snapshot.phase),
        "attempt": snapshot.attempt,
        "started_at": rfc3339(snapshot.started_at),
        "ended_at": rfc3339(snapshot.ended_at),
        "duration_s": lasted(snapshot.started_at, snapshot.ended_at, now),
        "ranks": len(snapshot.ranks),
        "exit_status": snapshot.exit_status,
    }
