"""Headless over a session that the test plays: what is printed where, and with which status it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from engine.clock import SystemClock
from engine.errors import EngineGone, IntentRefused
from engine.job.events import AttemptStarted, Event, RankEnded, RankSpawned, event_to_json
from engine.job.snapshot import NodeView, RankView, RootCause, Snapshot, Survivor, snapshot_from_json
from engine.model import Phase, RankState
from engine.session import Intent, StopJob, Update
from tui.event_text import Level
from tui.headless import Headless
from tui.jsonl import JsonPrinter
from tui.outlet import Outlet
from tui.text_lines import Narrator, TextPrinter

SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "trainui.schema.json"
PATIENCE_S = 20.0


class FakeSession:
    """A run whose every change the test makes."""

    live = True

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.run_dir = Path(snapshot.run_dir)
        self.asked: list[Intent] = []
        self.refuse: Exception | None = None
        self._news: asyncio.Queue[Snapshot | Exception | None] = asyncio.Queue()

    def show(self, **changes: Any) -> None:
        self.snapshot = replace(self.snapshot, **changes)
        self._news.put_nowait(self.snapshot)

    def vanish(self) -> None:
        self._news.put_nowait(EngineGone("the engine of this run vanished"))

    async def updates(self) -> AsyncIterator[Update]:
        yield Update(self.snapshot)
        while (news := await self._news.get()) is not None:
            if isinstance(news, Exception):
                raise news
            yield Update(news)

    async def do(self, intent: Intent) -> None:
        self.asked.append(intent)
        if self.refuse:
            raise self.refuse

    async def close(self) -> None:
        return


class FakeSignals:
    """Signals that the test sends."""

    kept: tuple[int, ...] = ()
    send: Callable[[int], None]

    def listen(self, loop: asyncio.AbstractEventLoop, told: Callable[[int], None]) -> None:
        self.send = told

    def ignore(self) -> None:
        return


@dataclass
class Stage:
    """A run directory, a session, stdout and stderr as files, and a follower."""

    root: Path
    session: FakeSession
    out: Path
    err: Path
    signals: FakeSignals = field(default_factory=FakeSignals)
    other: FakeSession | None = None
    out_fd: int | None = None
    fds: list[int] = field(default_factory=list)
    outlets: list[Outlet] = field(default_factory=list)

    def log(self, rank: int, data: bytes) -> None:
        path = self.root / self.session.snapshot.ranks[rank].log
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def tell(self, *events: Event) -> None:
        with (self.root / "events.jsonl").open("a") as file:
            for event in events:
                file.write(json.dumps(event_to_json(event, 1_700_000_000.0)) + "\n")

    def follow(
        self, *, as_json: bool = False, quiet: bool = False, read_only: bool = False, color: bool = False
    ) -> asyncio.Task[int]:
        if self.out_fd is None:
            self.out_fd = os.open(self.out, os.O_WRONLY | os.O_CREAT)
        err_fd = os.open(self.err, os.O_WRONLY | os.O_CREAT)
        self.fds += [self.out_fd, err_fd]
        out, err = Outlet(self.out_fd, full_bytes=1000), Outlet(err_fd)
        self.outlets += [out, err]
        narrator = Narrator(err, Level.INFO, False)
        clock = SystemClock()
        first = self.session.snapshot
        printer = (
            JsonPrinter(out, narrator, clock, quiet=quiet)
            if as_json
            else TextPrinter(out, narrator, clock, first, color=color, quiet=quiet)
        )

        async def again() -> FakeSession:
            if self.other is None:
                raise EngineGone("the engine does not come up")
            return self.other

        headless = Headless(
            self.session,
            printer,
            out,
            err,
            signals=self.signals,
            reconnect=again,
            read_only=read_only,  # type: ignore[arg-type]
        )
        return asyncio.create_task(headless.run())

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pytest.fail(f"waited in vain for {what}; stdout: {self.stdout!r}, stderr: {self.stderr!r}")

    @property
    def stdout(self) -> str:
        return self.out.read_text()

    @property
    def stderr(self) -> str:
        return self.err.read_text()

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.split("\n") if line]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    root = tmp_path / "run"
    root.mkdir()
    made = Stage(root, FakeSession(running(root)), tmp_path / "out", tmp_path / "err")
    yield made
    for outlet in made.outlets:
        outlet.close()
    for fd in made.fds:
        os.close(fd)


def running(root: Path, attempt: int = 0) -> Snapshot:
    ranks = tuple(
        RankView(
            r, r, 0, "box", f"nodes/0_box/attempt_{attempt}/rank_{r:05d}.log", pid=100 + r, state=RankState.RUNNING,
            started_at=1_700_000_000.0,
        )
        for r in (0, 1)
    )  # fmt: skip
    return Snapshot(
        "20261201-000000-abcd", "demo", str(root), attempt, Phase.RUNNING, (NodeView(0, "box"),), ranks, 1_700_000_000.0
    )


def ended(snapshot: Snapshot, phase: Phase, status: int, *codes: int, cause: RootCause | None = None) -> dict[str, Any]:
    ranks = tuple(
        replace(r, state=RankState.EXITED, exit_code=c, ended_at=1_700_000_065.0)
        for r, c in zip(snapshot.ranks, codes, strict=True)
    )
    return {"phase": phase, "exit_status": status, "ranks": ranks, "ended_at": 1_700_000_065.0, "root_cause": cause}


async def test_lines_of_all_ranks_with_prefix_and_the_summary_last(stage: Stage) -> None:
    stage.log(0, b"hello\n")
    stage.log(1, b"world\nlast words")
    stage.tell(AttemptStarted(0, "launch"), RankSpawned(0, 0, 100, 1.0), RankSpawned(0, 1, 101, 1.0))
    task = stage.follow()
    await stage.until(lambda: "box:1 | world" in stage.stdout, "the line of rank 1")
    stage.session.show(**ended(stage.session.snapshot, Phase.SUCCEEDED, 0, 0, 0))
    assert await task == 0
    lines = stage.stdout.split("\n")
    assert "box:0 | hello" in lines
    assert "box:1 | last words" in lines
    assert "demo 20261201-000000-abcd: succeeded, exit status 0, after 1m05s" in lines
    assert lines[-2] == f"run directory: {stage.root}"
    assert stage.stderr.split("\n")[:2] == ["trainui: attempt 0 starts", "trainui: ranks 0-1 started"]


async def test_what_was_written_before_the_end_was_seen_is_printed(stage: Stage) -> None:
    task = stage.follow()
    await stage.until(stage.session._news.empty, "the follower")
    stage.log(0, b"".join(b"line %d\n" % i for i in range(20_000)))
    stage.session.show(**ended(stage.session.snapshot, Phase.SUCCEEDED, 0, 0, 0))
    assert await task == 0
    assert [x for x in stage.stdout.split("\n") if "| line" in x] == [f"box:0 | line {i}" for i in range(20_000)]


async def test_a_failure_shows_who_why_and_the_last_lines(stage: Stage) -> None:
    cause = RootCause(1, 0, "box", "python_exception", 3, None, "rank 1 on box exited with code 3: ValueError: boom")
    stage.log(1, b"".join(b"step %d\n" % i for i in range(40)) + b"ValueError: boom\n")
    task = stage.follow(quiet=True)
    stage.session.show(**ended(stage.session.snapshot, Phase.FAILED, 3, 143, 3, cause=cause))
    assert await task == 3
    out = stage.stdout
    assert cause.reason in out
    assert "  | ValueError: boom" in out
    assert "  | step 39" in out
    assert "step 20" not in out
    assert "<- first to fail" in next(x for x in out.split("\n") if x.split()[:1] == ["1"])


async def test_quiet_prints_no_log_lines(stage: Stage) -> None:
    stage.log(0, b"hello\n")
    task = stage.follow(quiet=True)
    stage.session.show(**ended(stage.session.snapshot, Phase.SUCCEEDED, 0, 0, 0))
    assert await task == 0
    assert "hello" not in stage.stdout
    assert "succeeded" in stage.stdout


async def test_escapes_of_a_rank_do_not_reach_stdout(stage: Stage) -> None:
    stage.log(0, b"\x1b]0;title\x07\x1b[31mred\x1b[0m \x1b[2Jend\n")
    task = stage.follow()
    await stage.until(lambda: "red" in stage.stdout, "the line")
    stage.session.show(**ended(stage.session.snapshot, Phase.SUCCEEDED, 0, 0, 0))
    await task
    assert "\x1b" not in stage.stdout
    assert "box:0 | red end\n" in stage.stdout


async def test_colours_on_a_terminal_and_nothing_but_colours(stage: Stage) -> None:
    stage.log(0, b"\x1b]0;title\x07\x1b[31mred\x1b[0m\x1b[2J\n")
    task = stage.follow(color=True)
    await stage.until(lambda: "red" in stage.stdout, "the line")
    stage.session.show(**ended(stage.session.snapshot, Phase.SUCCEEDED, 0, 0, 0))
    await task
    line = next(x for x in stage.stdout.split("\n") if "red" in x)
    assert "\x1b[" in line.split("red")[0].split("|")[1]
    assert "title" not in line
    assert "\x1b[2J" not in line


async def test_a_bar_is_printed_once_a_second_at_most_and_its_end_always(stage: Stage) -> None:
    task = stage.follow()
    for percent in range(100):
        stage.log(0, b"\r%3d%%" % percent)
        await asyncio.sleep(0.002)
    await stage.until(lambda: "%" in stage.stdout, "a state of the bar")
    stage.log(0, b"\r100%\n")
    stage.session.show(**ended(stage.session.snapshot, Phase.SUCCEEDED, 0, 0, 0))
    await task
    shown = [x for x in stage.stdout.split("\n") if x.endswith("%")]
    assert shown[-1] == "box:0 | 100%"
    assert 2 <= len(shown) < 20


async def test_the_first_interrupt_stops_the_second_kills(stage: Stage) -> None:
    task = stage.follow()
    await stage.until(lambda: hasattr(stage.signals, "send"), "the handlers")
    stage.signals.send(signal.SIGINT)
    await stage.until(lambda: stage.session.asked == [StopJob("sigint", kill=False)], "the stop")
    stage.log(0, b"saving a checkpoint\n")
    await stage.until(lambda: "saving a checkpoint" in stage.stdout, "a line while stopping")
    stage.signals.send(signal.SIGINT)
    await stage.until(lambda: stage.session.asked[1:] == [StopJob("sigint", kill=True)], "the kill")
    stage.session.show(phase=Phase.STOPPED, exit_status=130)
    assert await task == 130


async def test_a_third_interrupt_leaves_what_cannot_be_stopped(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.headless.LEAVE_AFTER_S", 0.0)
    task = stage.follow()
    await stage.until(lambda: hasattr(stage.signals, "send"), "the handlers")
    for _ in range(3):
        stage.signals.send(signal.SIGINT)
    assert await task == 69
    assert "not everything of it is confirmed to be down" in stage.stderr
    assert "the job runs on" not in stage.stderr
    assert len(stage.session.asked) <= 2


async def test_a_burst_of_interrupts_asks_twice_and_stays(stage: Stage) -> None:
    task = stage.follow()
    await stage.until(lambda: hasattr(stage.signals, "send"), "the handlers")
    for _ in range(50):
        stage.signals.send(signal.SIGINT)
    await stage.until(lambda: len(stage.session.asked) >= 2, "the kill")
    stage.session.show(phase=Phase.STOPPED, exit_status=130)
    assert await task == 130
    assert len(stage.session.asked) == 2


async def test_sigterm_is_told_apart(stage: Stage) -> None:
    task = stage.follow()
    await stage.until(lambda: hasattr(stage.signals, "send"), "the handlers")
    stage.signals.send(signal.SIGTERM)
    await stage.until(lambda: stage.session.asked == [StopJob("other", kill=False)], "the stop")
    stage.session.show(phase=Phase.STOPPED, exit_status=143)
    assert await task == 143


async def test_a_hang_up_leaves_the_job_alone(stage: Stage) -> None:
    task = stage.follow()
    await stage.until(lambda: hasattr(stage.signals, "send"), "the handlers")
    stage.signals.send(signal.SIGHUP)
    assert await task == 0
    assert stage.session.asked == []
    assert "detached" in stage.stderr
    assert "trainui attach 20261201-000000-abcd" in stage.stderr


async def test_read_only_never_stops(stage: Stage) -> None:
    task = stage.follow(read_only=True)
    await stage.until(lambda: hasattr(stage.signals, "send"), "the handlers")
    stage.signals.send(signal.SIGINT)
    assert await task == 0
    assert stage.session.asked == []
    assert "detached" in stage.stderr


async def test_a_closed_stdout_leaves_the_job_alone(stage: Stage) -> None:
    reader, stage.out_fd = os.pipe()
    os.close(reader)
    stage.log(0, b"hello\n")
    assert await stage.follow() == 0
    assert stage.session.asked == []
    assert "detached: stdout is closed" in stage.stderr


async def test_a_stdout_that_nobody_reads_does_not_stop_signals(stage: Stage) -> None:
    reader, stage.out_fd = os.pipe()
    stage.log(0, b"x" * 99 + b"\n" + (b"x" * 99 + b"\n") * 20_000)
    task = stage.follow()
    await stage.until(lambda: hasattr(stage.signals, "send"), "the handlers")
    stage.signals.send(signal.SIGINT)
    await stage.until(lambda: bool(stage.session.asked), "the stop")
    stage.session.show(phase=Phase.STOPPED, exit_status=130)

    def impatient() -> bool:
        stage.signals.send(signal.SIGINT)  # once only output is left, this gives up on it
        return task.done()

    await stage.until(impatient, "the end")
    assert await task == 130
    os.close(reader)


async def test_survivors_are_named_and_the_status_is_69(stage: Stage) -> None:
    task = stage.follow()
    stage.session.show(phase=Phase.STOPPING, survivors=(Survivor(0, "box", 4711, "D", "python train.py"),))
    assert await task == 69
    assert "could not be killed: pid 4711 on box (state D): python train.py" in stage.stderr
    assert "still alive: pid 4711" in stage.stdout


async def test_an_engine_that_vanished_is_attached_again(stage: Stage) -> None:
    stage.other = FakeSession(stage.session.snapshot)
    task = stage.follow()
    stage.session.vanish()
    await stage.until(lambda: "attaching again" in stage.stderr, "the sentence")
    stage.log(0, b"after the crash\n")
    await stage.until(lambda: "after the crash" in stage.stdout, "lines after it")
    stage.other.show(**ended(stage.session.snapshot, Phase.SUCCEEDED, 0, 0, 0))
    assert await task == 0


async def test_an_engine_that_is_gone_for_good_is_69(stage: Stage) -> None:
    task = stage.follow()
    stage.session.vanish()
    assert await task == 69
    assert "the engine does not come up" in stage.stderr


async def test_a_refused_stop_is_told(stage: Stage) -> None:
    stage.session.refuse = IntentRefused("not now")
    task = stage.follow()
    await stage.until(lambda: hasattr(stage.signals, "send"), "the handlers")
    stage.signals.send(signal.SIGINT)
    await stage.until(lambda: "not now" in stage.stderr, "the refusal")
    stage.session.show(phase=Phase.SUCCEEDED, exit_status=0)
    assert await task == 0


async def test_a_restart_goes_on_with_the_new_logs(stage: Stage) -> None:
    stage.log(0, b"first\nunfinished")
    task = stage.follow()
    await stage.until(lambda: "first" in stage.stdout, "the first attempt")
    stage.session.show(phase=Phase.FAILED, exit_status=1, restart_at=2e9)
    stage.session.show(**{**vars_of(running(stage.root, attempt=1)), "restart_at": None, "exit_status": None})
    stage.log(0, b"second\n")
    await stage.until(lambda: "second" in stage.stdout, "the second attempt")
    stage.session.show(**ended(stage.session.snapshot, Phase.SUCCEEDED, 0, 0, 0))
    assert await task == 0
    assert "box:0 | unfinished\n" in stage.stdout


def vars_of(snapshot: Snapshot) -> dict[str, Any]:
    return {"attempt": snapshot.attempt, "phase": snapshot.phase, "ranks": snapshot.ranks}


async def test_json_is_events_and_lines_and_one_summary_last(stage: Stage) -> None:
    stage.log(0, b"caf\xc3\xa9\n\r 1%\r 2%\nhalf")
    stage.tell(AttemptStarted(0, "launch"), RankSpawned(0, 0, 100, 1.0), RankEnded(0, 0, 2.0, code=0))
    task = stage.follow(as_json=True)
    stage.session.show(**ended(stage.session.snapshot, Phase.SUCCEEDED, 0, 0, 0))
    assert await task == 0
    records = stage.records()
    schema = Draft202012Validator(json.loads(SCHEMA.read_text()))
    for record in records:
        schema.validate(record)
    assert [r["event"] for r in records if r["type"] == "event"] == ["attempt_started", "rank_spawned", "rank_ended"]
    logs = [r for r in records if r["type"] == "log"]
    assert [(r["line_no"], r["text"]) for r in logs] == [(1, "café"), (2, " 2%"), (3, "half")]
    assert {(r["host"], r["rank"], r["attempt"]) for r in logs} == {("box", 0, 0)}
    assert [r.get("partial", False) for r in logs] == [False, False, True]
    assert [r["type"] for r in records].index("summary") == len(records) - 1
    last = snapshot_from_json(records[-1])
    assert last == stage.session.snapshot


async def test_json_that_is_left_ends_with_a_summary_that_says_running(stage: Stage) -> None:
    task = stage.follow(as_json=True)
    await stage.until(lambda: hasattr(stage.signals, "send"), "the handlers")
    stage.signals.send(signal.SIGHUP)
    assert await task == 0
    assert (stage.records()[-1]["type"], stage.records()[-1]["phase"]) == ("summary", "running")


async def test_a_finished_run_prints_all_and_ends(stage: Stage) -> None:
    stage.log(0, b"hello\n")
    stage.session.show(**ended(stage.session.snapshot, Phase.FAILED, 5, 5, 0))
    assert await stage.follow() == 5
    assert "box:0 | hello" in stage.stdout
