"""What the console says, without a screen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.job.snapshot import Beat, NodeView, RankView, RootCause, Snapshot, Survivor
from engine.model import Phase, RankState
from engine.parse.ansi import cell_count
from tui.present import dialogs, header, keys, ranks
from tui.present.text import ASCII, UNICODE, Spans, age_text, clock_text, fit, glyphs_for, left_and_right, pad, width_of

NOW = 1000.0


def rank(number: int, state: RankState = RankState.RUNNING, **more: object) -> RankView:
    base = RankView(number, number, 0, "node01", f"r{number}.log", pid=100 + number, state=state, started_at=NOW - 90)
    return replace(base, **more)  # type: ignore[arg-type]


def run(*some: RankView, phase: Phase = Phase.RUNNING, **more: object) -> Snapshot:
    base = Snapshot("20270115-080000-ab12", "demo", "/runs/x", 0, phase, (NodeView(0, "node01"),), some, NOW - 100)
    return replace(base, **more)  # type: ignore[arg-type]


def words(spans: Spans) -> str:
    return "".join(text for text, _ in spans)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0:00:00"),
        (62.9, "0:01:02"),
        (3723, "1:02:03"),
        (86400 * 2 + 3600 * 5, "2d05h"),
        (-5, "0:00:00"),
    ],
)
def test_clock(seconds: float | None, text: str) -> None:
    assert clock_text(seconds) == text


@given(st.floats(0, 1e9))
def test_an_age_fits_into_its_column(seconds: float) -> None:
    assert len(age_text(seconds)) <= 4


@given(st.text(max_size=30), st.integers(0, 20), st.booleans())
def test_text_fits_its_cells(text: str, cells: int, right: bool) -> None:
    assert cell_count(fit(text, cells, UNICODE)) <= cells
    assert cell_count(pad(text, cells, UNICODE, right=right)) == cells


@pytest.mark.parametrize(
    ("environ", "glyphs"),
    [
        ({"LANG": "en_US.UTF-8", "TERM": "xterm"}, UNICODE),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8", "TERM": "xterm"}, ASCII),
        ({"LC_ALL": "C.utf8", "TERM": "tmux-256color"}, UNICODE),
        ({"LANG": "en_US.UTF-8", "TERM": "xterm", "NO_COLOR": "1"}, ASCII),
        ({"LANG": "en_US.UTF-8", "TERM": "dumb"}, ASCII),
        ({"LANG": "en_US.UTF-8", "TERM": "linux"}, ASCII),
        ({}, ASCII),
    ],
)
def test_signs_by_environment(environ: dict[str, str], glyphs: object) -> None:
    assert glyphs_for(environ) is glyphs


@pytest.mark.parametrize(
    ("view", "state", "exit_text"),
    [
        (rank(0), "● running", "-"),
        (rank(0, RankState.PENDING), "○ pending", "-"),
        (rank(0, RankState.EXITED, exit_code=0), "✓ done", "0"),
        (rank(0, RankState.EXITED, exit_code=3), "✗ failed", "3"),
        (rank(0, RankState.SIGNALLED, signal=9), "✗ failed", "KILL"),
        (rank(0, RankState.SIGNALLED, signal=15, by_us=True), "■ stopped", "TERM"),
        (rank(0, RankState.LOST), "? lost", "-"),
        (rank(0, RankState.NEVER_STARTED, pid=None), "– never", "-"),
    ],
)
def test_how_a_rank_is_shown(view: RankView, state: str, exit_text: str) -> None:
    row = ranks.rank_row(view, NOW, UNICODE)
    assert row.cell("state") == state
    assert row.cell("exit") == exit_text


def test_an_ended_rank_does_not_grow_older() -> None:
    ended = rank(0, RankState.EXITED, exit_code=0, ended_at=NOW - 30, beat=Beat("log", NOW - 31))
    row = ranks.rank_row(ended, NOW, UNICODE)
    assert row.cell("age") == "0:01:00"
    assert row.cell("beat") == "-"
    assert ranks.rank_row(rank(0, beat=Beat("log", NOW - 4)), NOW, UNICODE).cell("beat") == "4s"


@given(st.integers(1, 300), st.booleans())
def test_rows_are_as_wide_as_the_table(width: int, several: bool) -> None:
    columns, last = ranks.choose_columns(width, several_hosts=several)
    assert [c.key for c in columns][:1] == ["rank"] or width < 6
    row = ranks.rank_row(rank(7, step=12), NOW, UNICODE)
    spans = ranks.row_spans(row, columns, last, "界" * 200, UNICODE, cursor=True)
    assert width_of(spans) <= max(width, 20) + 1
    if width >= 47:
        keys_shown = {c.key for c in columns}
        assert {"rank", "state", "exit", "step"} <= keys_shown
        assert last >= ranks.LEAST_LAST_LINE
        assert width_of(spans) <= width
    if width >= 100:
        assert {"pid", "age", "beat"} <= {c.key for c in columns}


@given(st.integers(1, 250), st.sampled_from(list(Phase)))
@example(85, Phase.PENDING)  # the run's id fits, and then not even a gap is left before the counts
def test_the_title_keeps_what_matters(width: int, phase: Phase) -> None:
    snapshot = run(rank(0), rank(1), phase=phase, name="x" * 50)
    spans = header.title_row(snapshot, NOW, width, UNICODE)
    if width >= 60:
        assert width_of(spans) <= width
        assert str(phase).upper() in words(spans)
        assert "0:01:40" in words(spans)
        assert "2 running" in words(spans)


def test_counts_name_trouble_first() -> None:
    snapshot = run(rank(0), rank(1, RankState.EXITED, exit_code=1), rank(2, RankState.LOST), rank(3))
    assert words(header.counts(snapshot, UNICODE)) == "1 failed · 1 lost · 2 running"


def test_stopping_counts_down_and_names_the_living() -> None:
    snapshot = run(rank(0), rank(1), phase=Phase.STOPPING, stop_deadline=NOW + 12)
    assert words(header.second_row(snapshot, NOW, UNICODE)) == (
        "SIGKILL in 12 s · still alive: ranks 0-1 (pid 100, 101)"
    )
    assert words(header.second_row(snapshot, NOW + 13, UNICODE)).startswith("SIGKILL sent")
    many = run(*(rank(i) for i in range(20)), phase=Phase.STOPPING)
    assert words(header.second_row(many, NOW, UNICODE)).endswith("106, 107, ...)")
    down = run(rank(0, RankState.EXITED, exit_code=0), phase=Phase.STOPPING)
    assert "waiting for the nodes to confirm" in words(header.second_row(down, NOW, UNICODE))


def test_survivors_restarts_faults_and_the_end() -> None:
    left = run(rank(0), phase=Phase.STOPPING, survivors=(Survivor(0, "node01", 7, "D", "dd if=x"),))
    assert words(header.second_row(left, NOW, UNICODE)) == "could not be killed: pid 7 on node01 (state D): dd if=x"
    again = run(rank(0), phase=Phase.FAILED, restart_at=NOW + 8, restarts_left=2)
    assert words(header.second_row(again, NOW, UNICODE)) == "restart in 8 s (2 left)"
    assert not again.over
    broken = run(rank(0), nodes=(NodeView(0, "node01", error="no space"),))
    assert words(header.second_row(broken, NOW, UNICODE)) == "node01: no space"
    ended = run(rank(0), phase=Phase.SUCCEEDED, exit_status=0)
    assert words(header.second_row(ended, NOW, UNICODE)) == "exit status 0 · the run is over, q leaves"
    assert header.second_row(run(rank(0)), NOW, UNICODE) == []


def test_findings_are_shown_while_it_runs_and_at_its_end() -> None:
    known = "3 wanted, 2 run"
    assert words(header.second_row(run(rank(0), findings=(known,)), NOW, UNICODE)) == known
    ended = run(rank(0), phase=Phase.FAILED, exit_status=3, findings=(known, "not restarted"))
    assert words(header.second_row(ended, NOW, UNICODE)) == (
        "exit status 3 · the run is over, q leaves · 3 wanted, 2 run; not restarted"
    )


@given(st.text(max_size=400), st.integers(1, 120))
def test_a_verdict_takes_at_most_two_rows(reason: str, width: int) -> None:
    cause = RootCause(0, 0, "node01", "exit", 1, None, reason)
    rows = header.verdict_rows(run(rank(0), root_cause=cause), width, UNICODE)
    assert 1 <= len(rows) <= 2
    short = header.verdict_rows(run(rank(0), root_cause=replace(cause, reason="out of memory")), 80, UNICODE)
    assert [words(row) for row in short] == ["✗ out of memory"]


def test_questions_name_their_scope_and_default_to_nothing() -> None:
    ranks_of = (rank(i, node_rank=i // 8) for i in range(1024))
    big = run(*ranks_of, nodes=tuple(NodeView(i, f"n{i}") for i in range(128)), name="moe")
    for ask in (dialogs.stop_question, dialogs.kill_question, dialogs.restart_question):
        question = ask(big, NOW)
        assert "128 nodes, 1,024 ranks of moe?" in question.title
        assert question.choices[0].answer == ""
        assert [c.key for c in question.choices[1:]] == ["y"]
    leave = dialogs.quit_question(big, read_only=False)
    assert leave.choices[0].answer == ""
    assert [c.key for c in leave.choices] == ["escape", "d", "x"]
    assert [c.key for c in dialogs.quit_question(big, read_only=True).choices] == ["escape", "d"]


def test_a_question_concerns_only_what_is_not_over() -> None:
    some = run(rank(0, RankState.EXITED, exit_code=0), rank(1), rank(2, RankState.PENDING))
    assert dialogs.stop_question(some, NOW).title == "Stop 2 ranks of demo?"
    due = run(rank(0, RankState.EXITED, exit_code=1), phase=Phase.FAILED, restart_at=NOW + 5)
    assert dialogs.stop_question(due, NOW).title == "Stop demo?"
    assert "A restart that is due will not happen." in dialogs.stop_question(due, NOW).lines


def test_what_makes_no_sense_is_refused() -> None:
    running, stopping = run(rank(0)), run(rank(0), phase=Phase.STOPPING)
    ended = run(rank(0, RankState.EXITED, exit_code=0), phase=Phase.SUCCEEDED)
    assert dialogs.refusal("stop", running, read_only=False) == ""
    assert dialogs.refusal("kill", stopping, read_only=False) == ""
    assert "already" in dialogs.refusal("stop", stopping, read_only=False)
    assert "over" in dialogs.refusal("kill", ended, read_only=False)
    assert dialogs.refusal("restart", ended, read_only=False) == ""
    assert dialogs.refusal("grace", running, read_only=False) != ""
    assert all("read-only" in dialogs.refusal(a, running, read_only=True) for a in ("stop", "kill", "restart", "grace"))


def test_the_last_row_names_what_works_now() -> None:
    running = words(keys.foot_row(80, run(rank(0)), read_only=False))
    assert "x Stop" in running and "X Kill" not in running
    stopping = words(keys.foot_row(80, run(rank(0), phase=Phase.STOPPING), read_only=False))
    assert "x Stop" not in stopping and "X Kill" in stopping and "+ More time" in stopping
    assert "Stop" not in words(keys.foot_row(80, run(rank(0)), read_only=True))
    for width in (20, 40, 60, 80, 200):
        foot = keys.foot_row(width, run(rank(0)), read_only=False)
        assert "q Quit" in words(foot) and "? Help" in words(foot)
        assert width_of(foot) <= width
    assert "Kill" not in "".join(words(row) for row in keys.help_rows(read_only=True))


def test_every_key_has_its_own_id_and_no_key_is_bound_twice() -> None:
    assert len({k.id for k in keys.KEYS}) == len(keys.KEYS)
    bound = [name for k in keys.KEYS for name in k.keys.split(",")]
    assert len(set(bound)) == len(bound)
    assert not {"d", "D", "delete", "backspace", "ctrl+d", "ctrl+k"} & set(bound)


def test_left_gives_way_to_nothing() -> None:
    assert left_and_right([("abc", "")], [("xyz", "")], 5) == [("abc", "")]
    assert words(left_and_right([("abc", "")], [("xyz", "")], 8)) == "abc  xyz"
