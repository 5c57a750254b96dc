"""Ranks as rows of the table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.job.snapshot import RankView, Snapshot
from engine.model import RankState
from tui.present.text import Glyphs, age_text, clock_text, label, pad
from tui.render_text import signal_name

# Below this many cells a last line says nothing.
LEAST_LAST_LINE = 16


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `rank`, ... as key; `keep`: the higher, the later it gives way where the table is narrow."""

    key: str
    title: str
    width: int
    keep: int
    right: bool = False


COLUMNS = (
    Column("rank", "RANK", 4, 9, right=True),
    Column("host", "HOST", 12, 5),
    Column("state", "STATE", 9, 8),
    Column("pid", "PID", 7, 1, right=True),
    Column("age", "AGE", 8, 3, right=True),
    Column("exit", "EXIT", 7, 7),
    Column("beat", "BEAT", 4, 4, right=True),
    Column("step", "STEP", 6, 6, right=True),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One rank. `cells` by column, `role` of the state, `mark`: the rank that failed first."""

    rank: int
    cells: tuple[tuple[str, str], ...]
    role: str
    mark: bool

    def cell(self, key: str) -> str:
        """The text of one cell."""
        return next((text for name, text in self.cells if name == key), "")


def state_words(rank: RankView, glyphs: Glyphs) -> tuple[str, str]:
    """The state as a sign and a word, and its role."""
    match rank.state:
        case RankState.RUNNING:
            return f"{glyphs.running} running", "good"
        case RankState.PENDING:
            return f"{glyphs.pending} pending", "dim"
        case RankState.LOST:
            return f"{glyphs.lost} lost", "bad"
        case RankState.NEVER_STARTED:
            return f"{glyphs.never} never", "dim"
        case _ if rank.by_us:
            return f"{glyphs.stopped} stopped", "warn"
        case _ if rank.failed:
            return f"{glyphs.failed} failed", "bad"
        case _:
            return f"{glyphs.done} done", "accent"


def exit_words(rank: RankView) -> str:
    """The code, or the signal's name without SIG: it must fit beside the state."""
    if rank.signal is not None:
        return signal_name(rank.signal).removeprefix("SIG")
    return "-" if rank.exit_code is None else str(rank.exit_code)


def rank_row(rank: RankView, now: float, glyphs: Glyphs, *, cause: bool = False) -> Row:
    """One row.

    Args:
        rank: as the snapshot has it.
        now: Unix seconds on the engine's clock.
        glyphs: what the terminal can show.
        cause: this one failed first.
    """
    state, role = state_words(rank, glyphs)
    age = None if rank.started_at is None else (now if rank.ended_at is None else rank.ended_at) - rank.started_at
    beat = None if rank.beat is None or rank.state.final else now - rank.beat.seen_at
    cells = (
        ("rank", str(rank.rank)),
        ("host", label(rank.host)),
        ("state", state),
        ("pid", "-" if rank.pid is None else str(rank.pid)),
        ("age", clock_text(age)),
        ("exit", exit_words(rank)),
        ("beat", age_text(beat)),
        ("step", "-" if rank.step is None else str(rank.step)),
    )
    return Row(rank.rank, cells, role, cause)


def rank_rows(snapshot: Snapshot, now: float, glyphs: Glyphs) -> list[Row]:
    """All ranks, by number."""
    cause = snapshot.root_cause.rank if snapshot.root_cause is not None else None
    return [rank_row(r, now, glyphs, cause=r.rank == cause) for r in snapshot.ranks]


def choose_columns(width: int, *, several_hosts: bool) -> tuple[list[Column], int]:
    """The columns that fit into `width` cells, and how many are left for the last line (0: none).

    The last line gives way to nothing but rank, state, exit and step.
    """
    columns = [c for c in COLUMNS if several_hosts or c.key != "host"]
    while True:
        used = 1 + sum(c.width + 1 for c in columns)
        room = width - used
        weakest = min(columns, key=lambda c: c.keep)
        if room >= LEAST_LAST_LINE or (weakest.keep >= 6 and room >= -1) or len(columns) == 1:
            return columns, max(0, room)
        columns = [c for c in columns if c is not weakest]


def head_text(columns: Iterable[Column], last: int, glyphs: Glyphs) -> str:
    """The titles above the rows."""
    parts = [pad(c.title, c.width, glyphs, right=c.right) for c in columns]
    return " " + " ".join([*parts, pad("LAST LINE", last, glyphs)])


def row_spans(
    row: Row, columns: Sequence[Column], last: int, last_line: str, glyphs: Glyphs, *, cursor: bool
) -> list[tuple[str, str]]:
    """A row as spans; `last`: cells for the last line."""
    spans: list[tuple[str, str]] = [(glyphs.cursor if cursor else " ", "accent")]
    for column in columns:
        if column.key == "state":
            role = row.role
        elif column.key == "exit" and row.role == "bad":
            role = "bad"
        else:
            role = "strong" if column.key == "rank" else ""
        spans += [(pad(row.cell(column.key), column.width, glyphs, right=column.right), role), (" ", "")]
    if last:
        spans.append((pad(last_line, last, glyphs), "bad" if row.mark else "dim"))
    return spans
