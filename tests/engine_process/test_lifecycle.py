"""Real runs: their ends, their faults, and who may die without hurting them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from typing import Any

import pytest

from engine import client
from engine.errors import EngineGone, IntentRefused
from engine.model import Phase, RankState
from engine.session import MoreGrace, RestartJob, StopJob

SLEEPER = "import time; print('up', flush=True); time.sleep(300)"
# Needs a moment to obey, so that a second stop finds the first one at work.
SLOW_TO_OBEY = """
import os, signal, time
def obey(number, frame):
    time.sleep(1)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
signal.signal(signal.SIGTERM, obey)
print('up', flush=True)
time.sleep(300)
"""
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
COUNTER = """
import os, sys
with open(sys.argv[1] if len(sys.argv) > 1 else os.devnull, 'w') as f: pass
import time
for i in range(60):
    print(f'line {i:05d} of rank {os.environ["RANK"]}', flush=True)
    time.sleep(0.05)
"""


async def test_a_run_that_goes_well(lab: Any, tools: Any) -> None:
    paths, session = await lab.launch("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])", 3)
    end = await lab.over(session)
    assert (end.phase, end.exit_status) == (Phase.SUCCEEDED, 0)
    for rank in end.ranks:
        assert (paths.root / rank.log).read_text() == f"rank {rank.rank} of 3\n"
        assert (rank.state, rank.exit_code) == (RankState.EXITED, 0)
    await tools.eventually(paths.summary.is_file, "summary.json")
    await session.close()
    await tools.eventually(lambda: not tools.engine_pid(paths), "the engine's end when nobody is attached")
    assert tools.of_run(paths) == []
    summary = json.loads(paths.summary.read_text())
    assert summary["phase"] == "succeeded" and len(summary["ranks"]) == 3


@pytest.mark.parametrize(
    ("code", "status", "state"),
    [
        ("raise SystemExit(3)", 3, "exited"),
        ("import os; os.kill(os.getpid(), 9)", 137, "signalled"),
        ("import os; os.kill(os.getpid(), 11)", 139, "signalled"),
        ("1/0", 1, "exited"),
    ],
)
async def test_the_code_of_the_rank_that_failed_first_is_the_jobs(lab: Any, code: str, status: int, state: str) -> None:
    program = f"import os, time\nif os.environ['RANK'] == '1':\n    {code}\ntime.sleep(300)"
    _, session = await lab.launch(program, 3, fail={"grace_s": 0})
    end = await lab.over(session)
    assert (end.phase, end.exit_status) == (Phase.FAILED, status)
    assert end.root_cause.rank == 1
    assert end.ranks[1].state == state
    assert all(end.ranks[r].by_us for r in (0, 2))
    if code == "1/0":
        assert "ZeroDivisionError: division by zero" in end.root_cause.reason
        assert end.root_cause.evidence[0].text == "ZeroDivisionError: division by zero"


async def test_stop_and_two_stops_at_once(lab: Any, tools: Any) -> None:
    paths, session = await lab.launch(SLOW_TO_OBEY, stop={"grace_s": 20})
    await lab.running(session)
    await tools.eventually(lambda: all((paths.root / r.log).read_bytes() for r in session.snapshot.ranks), "output")
    other = await lab.attach(paths)
    await asyncio.gather(session.do(StopJob()), other.do(StopJob()))
    end = await lab.over(session)
    assert (end.phase, end.exit_status) == (Phase.STOPPED, 143)
    assert {(r.state, r.signal, r.by_us) for r in end.ranks} == {(RankState.SIGNALLED, 15, True)}
    assert tools.of_run(paths) == []
    with pytest.raises(IntentRefused, match="over"):
        await session.do(StopJob())


async def test_a_rank_that_ignores_sigterm_is_killed_and_more_grace_is_given(lab: Any, tools: Any) -> None:
    paths, session = await lab.launch(STUBBORN, stop={"grace_s": 600})
    await lab.running(session)
    await tools.eventually(lambda: all((paths.root / r.log).read_bytes() for r in session.snapshot.ranks), "output")
    await session.do(StopJob())
    stopping = await lab.until(session, lambda s: s.stop_deadline is not None, "a deadline")
    await session.do(MoreGrace(30))
    await lab.until(session, lambda s: s.stop_deadline >= stopping.stop_deadline + 29, "a later deadline")
    await session.do(StopJob(kill=True))
    end = await lab.over(session)
    assert {(r.signal, r.by_us) for r in end.ranks} == {(9, True)}
    assert tools.of_run(paths) == []


async def test_stop_during_start(lab: Any, tools: Any) -> None:
    paths = lab.write(
        {"task": {"command": ["sleep", "300"]}, "hooks": {"before_start": "sleep 300"}, "stop": {"grace_s": 1}}
    )
    client.start_engine(paths)
    session = await lab.attach(paths)
    await session.do(StopJob("sigint"))
    end = await lab.over(session)
    assert (end.phase, end.exit_status) == (Phase.STOPPED, 130)
    assert {r.state for r in end.ranks} <= {RankState.NEVER_STARTED, RankState.SIGNALLED}
    assert tools.of_run(paths) == []


async def test_before_start_that_fails_is_the_cause(lab: Any) -> None:
    paths = lab.write({"task": {"command": ["true"]}, "hooks": {"before_start": "echo no data here; exit 4"}})
    client.start_engine(paths)
    session = await lab.attach(paths)
    end = await lab.over(session)
    assert (end.phase, end.exit_status) == (Phase.FAILED, 69)
    assert "before_start" in end.root_cause.reason and "no data here" in end.root_cause.reason
    assert [r.state for r in end.ranks] == [RankState.NEVER_STARTED]


async def test_kill_9_on_the_engine_and_a_new_one_finds_everything(lab: Any, tools: Any) -> None:
    paths, session = await lab.launch(COUNTER, 2)
    await lab.running(session)
    tools.kill(tools.engine_pid(paths))
    with pytest.raises(EngineGone):
        await lab.until(session, lambda s: False)
    pids = [r.pid for r in session.snapshot.ranks]
    assert all(tools.alive(pid) for pid in pids)
    again = await lab.attach(paths)
    assert again.live and [r.pid for r in again.snapshot.ranks] == pids
    end = await lab.over(again)
    assert (end.phase, end.exit_status) == (Phase.SUCCEEDED, 0)
    for rank in end.ranks:
        expected = "".join(f"line {i:05d} of rank {rank.rank}\n" for i in range(60))
        assert (paths.root / rank.log).read_text() == expected


async def test_a_job_that_ended_while_no_engine_lived_is_told_as_it_was(lab: Any, tools: Any) -> None:
    program = "import os, time; time.sleep(1); raise SystemExit(5 if os.environ['RANK'] == '1' else 0)"
    paths, session = await lab.launch(program, 2)
    await lab.running(session)
    tools.kill(tools.engine_pid(paths))
    await tools.eventually(lambda: len(list(paths.root.rglob("*.exit"))) == 2, "exit records without an engine")
    again = await lab.attach(paths)
    end = await lab.over(again)
    assert (end.phase, end.exit_status) == (Phase.FAILED, 5)
    assert [r.exit_code for r in end.ranks] == [0, 5]


async def test_kill_9_on_the_agent_is_survived(lab: Any, tools: Any) -> None:
    paths, session = await lab.launch(SLEEPER, 2)
    running = await lab.running(session)
    first = tools.agent_pid(paths)
    tools.kill(first)
    await tools.eventually(lambda: tools.agent_pid(paths) != first, "a fresh agent")
    await lab.until(session, lambda s: s.nodes[0].state == "running", "the node's return")
    assert all(tools.alive(r.pid) for r in running.ranks)
    await session.do(StopJob())
    end = await lab.over(session)
    assert end.phase is Phase.STOPPED
    assert tools.of_run(paths) == []


async def test_an_end_that_nobody_could_wait_for_is_lost(lab: Any, tools: Any) -> None:
    paths, session = await lab.launch("import time; print('up', flush=True); time.sleep(300)", 1)
    running = await lab.running(session)
    first = tools.agent_pid(paths)
    tools.kill(first)
    await tools.eventually(lambda: tools.agent_pid(paths) != first, "a fresh agent")
    await lab.until(session, lambda s: s.nodes[0].state == "running", "the node's return")
    os.kill(running.ranks[0].pid, signal.SIGKILL)
    end = await lab.over(session)
    assert (end.phase, end.exit_status) == (Phase.LOST, 69)
    assert end.ranks[0].state is RankState.LOST and "not known" in end.root_cause.reason


async def test_restart_is_a_new_attempt_of_the_same_run(lab: Any, tools: Any) -> None:
    paths, session = await lab.launch("import os; print(os.environ['TRAINUI_ATTEMPT'], os.environ['MASTER_PORT'])", 2)
    await lab.over(session)
    await session.do(RestartJob())
    end = await lab.until(session, lambda s: s.attempt == 1 and s.phase.final, "the second attempt's end")
    assert end.phase is Phase.SUCCEEDED
    first, second = (log.read_text() for log in sorted(paths.root.glob("nodes/*/attempt_*/rank_00000.log")))
    assert first.split()[0] == "0" and second.split()[0] == "1"
    assert first.split()[1] != second.split()[1]


async def test_restart_after_the_engine_has_gone(lab: Any, tools: Any) -> None:
    paths, session = await lab.launch("import os; print(os.environ['TRAINUI_ATTEMPT'])", 1)
    await lab.over(session)
    await session.close()
    await tools.eventually(lambda: not tools.engine_pid(paths), "the engine's end")
    again = await client.restart(paths)
    lab.sessions.append(again)
    end = await lab.until(again, lambda s: s.attempt == 1 and s.phase.final, "the second attempt's end")
    assert (paths.root / end.ranks[0].log).read_text() == "1\n"


async def test_restart_of_a_run_that_was_only_rendered_is_its_first_attempt(lab: Any) -> None:
    paths = lab.write({"task": {"command": ["true"]}, "cluster": {"gpu_binding": "none"}})
    session = await client.restart(paths)
    lab.sessions.append(session)
    end = await lab.over(session)
    assert (end.attempt, end.phase) == (0, Phase.SUCCEEDED)


async def test_restart_of_a_running_job_stops_it_first(lab: Any, tools: Any) -> None:
    _, session = await lab.launch(SLEEPER, 2)
    before = await lab.running(session)
    await session.do(RestartJob())
    after = await lab.until(session, lambda s: s.attempt == 1 and s.phase == "running", "attempt 1")
    assert not any(tools.alive(r.pid) for r in before.ranks)
    assert all(tools.alive(r.pid) for r in after.ranks)


async def test_a_second_engine_of_the_same_run_changes_nothing(lab: Any, tools: Any) -> None:
    paths, session = await lab.launch(SLEEPER, 1)
    await lab.running(session)
    pid = tools.engine_pid(paths)
    await asyncio.to_thread(client.start_engine, paths)
    assert tools.engine_pid(paths) == pid
    assert session.snapshot.phase == "running"


async def test_sigterm_to_the_engine_stops_the_job(lab: Any, tools: Any) -> None:
    paths, session = await lab.launch(SLEEPER, 1)
    await lab.running(session)
    os.kill(tools.engine_pid(paths), signal.SIGTERM)
    await tools.eventually(lambda: not tools.engine_pid(paths), "the engine's end")
    assert tools.of_run(paths) == []
    assert json.loads(paths.summary.read_text())["exit_status"] == 143


async def test_sighup_to_the_engine_changes_nothing(lab: Any, tools: Any) -> None:
    paths, session = await lab.launch(SLEEPER, 1)
    await lab.running(session)
    os.kill(tools.engine_pid(paths), signal.SIGHUP)
    other = await lab.attach(paths)
    assert other.snapshot.phase == "running"


FLOOD = """
import hashlib, os, sys
block = bytes(range(256)) * 256
digest = hashlib.sha256()
for _ in range(320):
    os.write(1, block); digest.update(block)
tail = ('x' * 1_000_000 + chr(10) + 'no newline at the end').encode()
view = memoryview(tail)
while view: view = view[os.write(1, view):]
digest.update(tail)
open(os.environ['TRAINUI_RUN_DIR'] + '/digest', 'w').write(digest.hexdigest())
"""


async def test_logs_are_byte_exact_whatever_is_in_them(lab: Any) -> None:
    paths, session = await lab.launch(FLOOD, 1)
    end = await lab.over(session)
    assert end.phase is Phase.SUCCEEDED
    log = (paths.root / end.ranks[0].log).read_bytes()
    assert hashlib.sha256(log).hexdigest() == (paths.root / "digest").read_text()


async def test_heartbeats_and_steps_are_seen(lab: Any) -> None:
    program = "import time, trainui_heartbeat as h\nfor i in range(300): h.step(i); time.sleep(0.1)"
    _, session = await lab.launch(program, 1)
    seen = await lab.until(session, lambda s: (s.ranks[0].step or 0) >= 3, "steps")
    assert seen.ranks[0].beat.source == "file"
    await session.do(StopJob(kill=True))


async def test_automatic_restart_after_progress(lab: Any) -> None:
    program = (
        "import os, time, trainui_heartbeat as h\n"
        "for i in range(5): h.step(i); time.sleep(0.3)\n"
        "time.sleep(3)\n"
        "raise SystemExit(0 if os.environ['TRAINUI_ATTEMPT'] == '1' else 7)"
    )
    _, session = await lab.launch(program, 1, restart={"policy": "on_failure", "max": 2, "backoff_s": 0.1})
    end = await lab.over(session)
    assert (end.attempt, end.phase) == (1, Phase.SUCCEEDED)
