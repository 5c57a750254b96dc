"""One sentence about the rank that failed first, from its last words."""

from __future__ import annotations

import pytest

from engine.job.snapshot import Evidence, RankView, Snapshot
from engine.judge.verdict import rank_cause
from engine.model import Phase, RankState
from tui.render_text import verdict_lines

RANK = RankView(1, 1, 0, "box", "x.log", state=RankState.EXITED, exit_code=1, started_at=10.0, ended_at=18.0)
TORCHRUN = """\
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 12295
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_04:52:28
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : {code} (pid: 12296)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================"""


def words(text: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(1, number, line) for number, line in enumerate(text.split("\n"), 1))


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\n  File 'a.py'\nValueError: boom\nbye",
        # torch's own hook, once there is a process group.
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'a.py'\n[rank1]: ValueError: boom\nbye",
        # The head of a long traceback is out of sight.
        '  File "/a/b.py", line 3, in run\n    raise ValueError("boom")\nValueError: boom\nbye',
    ],
)
def test_the_exception_is_the_reason(text: str) -> None:
    cause = rank_cause(RANK, words(text), None)
    assert cause.kind == "python_exception"
    assert cause.reason == "rank 1 on box exited with code 1 after 8.0 s: ValueError: boom"
    assert [e.text.endswith("ValueError: boom") for e in cause.evidence] == [True]


@pytest.mark.parametrize(("code", "how"), [("9", "exit code 9"), ("-9", "SIGKILL"), ("-77", "signal 77")])
def test_torchrun_is_taken_at_its_word(code: str, how: str) -> None:
    cause = rank_cause(RANK, words(TORCHRUN.format(code=code)), None)
    assert cause.reason.endswith(f"its rank 3 (local rank 1, pid 12296) failed first, with {how}")
    assert [e.line_no for e in cause.evidence] == [8, 9]


def test_a_rule_says_nothing() -> None:
    assert rank_cause(RANK, words("no space left\n=======\n"), None).reason.endswith("; its last line: no space left")
    assert rank_cause(RANK, words("======="), None).reason.endswith("; its last line: =======")
    assert rank_cause(RANK, (), None).reason.endswith("; it printed nothing")


def test_what_the_reason_quotes_is_not_shown_again() -> None:
    cause = rank_cause(RANK, words("no space left"), None)
    run = Snapshot("20261201-000000-abcd", "demo", "/r", 0, Phase.FAILED, (), (RANK,), 10.0, root_cause=cause)
    assert verdict_lines(run, False) == [cause.reason]
    assert verdict_lines(run, False, ["full", "disk"]) == [cause.reason, "  | full", "  | disk"]
