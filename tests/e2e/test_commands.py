"""status, stop, restart, logs, ls, init, --check, --dry-run, --json: on real runs, live and finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "trainui.schema.json"
RAW = b"one\r\n\xff\x00\x1b[31mtwo\x1b[0m\n10%\r20%\nlast"
WRITER = f"import os, sys; sys.stdout.buffer.write({RAW!r} + os.environ['RANK'].encode())"


def validate(records: list[dict[str, Any]], part: str = "") -> None:
    """Against the schema: lines of the stream, or `part` of it."""
    schema = json.loads(SCHEMA.read_text())
    if part:
        schema = {"$ref": f"#/$defs/{part}", "$defs": schema["$defs"]}
    for record in records:
        errors = [f"{e.json_path}: {e.message}" for e in Draft202012Validator(schema).iter_errors(record)]
        assert not errors, (record, errors)


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.split("\n") if line]


def test_json_is_only_json_and_ends_with_the_summary(desk: Any) -> None:
    code = "import os, sys; print('hello\\u2028x'); sys.exit(int(os.environ['RANK']) * 3)"
    done = desk.run(desk.job(code), "--json", env={"PYTHONUTF8": "1"})
    assert done.returncode == 3, done.stderr
    found = records(done.stdout)
    validate(found)
    assert [r["type"] for r in found].count("summary") == 1
    assert found[-1]["type"] == "summary"
    assert (found[-1]["phase"], found[-1]["exit_status"], found[-1]["root_cause"]["rank"]) == ("failed", 3, 1)
    assert sorted((r["rank"], r["line_no"]) for r in found if r["type"] == "log") == [(0, 1), (1, 1)]
    events = [r["event"] for r in found if r["type"] == "event"]
    assert events.count("rank_spawned") == 2
    assert events.count("rank_ended") == 2
    summary = json.loads((desk.the_run() / "summary.json").read_text())
    status = desk.status()
    same = ("run_id", "phase", "exit_status", "root_cause", "ranks", "nodes", "started_at", "ended_at")
    assert {k: found[-1][k] for k in same} == {k: summary[k] for k in same} == {k: status[k] for k in same}
    desk.nothing_lives()


def test_json_of_a_config_that_is_wrong_is_empty(desk: Any) -> None:
    done = desk.run("missing.yml", "--no-ui", "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "missing.yml" in done.stderr


def test_logs_of_one_rank_are_its_bytes(desk: Any) -> None:
    assert desk.run(desk.job(WRITER), "--no-ui").returncode == 0
    for rank in (0, 1):
        one = desk.run("logs", "--rank", str(rank))
        assert one.returncode == 0
        assert one.stdout.encode("utf-8", "surrogateescape") == universal(RAW + b"%d" % rank)
    tail = desk.run("logs", "--rank", "1", "-n", "1")
    assert tail.stdout == "last1"


def universal(raw: bytes) -> bytes:
    """What the helper's text mode makes of line ends."""
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def test_logs_of_several_ranks_have_prefixes(desk: Any) -> None:
    code = "import os; print('a', os.environ['RANK']); print('b', os.environ['RANK'])"
    assert desk.run(desk.job(code, 3), "--no-ui", "--quiet").returncode == 0
    texts = [x.split(":", 1)[1] for x in desk.run("logs").stdout.split("\n") if x]
    assert texts == [f"{r} | {word} {r}" for r in range(3) for word in "ab"]
    some = desk.run("logs", "--rank", "0", "2", "--grep", "^b").stdout
    assert [x.split(" | ")[1] for x in some.split("\n") if x] == ["b 0", "b 2"]
    last = desk.run("logs", "-n", "1", "--node", "0").stdout
    assert [x.split(" | ")[1] for x in last.split("\n") if x] == ["b 0", "b 1", "b 2"]


def test_the_last_lines_with_a_pattern_are_the_last_that_match(desk: Any) -> None:
    code = "[print('\\x1b[1m' + ('loss' if i % 10 == 0 else 'noise'), i) for i in range(100)]; print('tail', end='')"
    assert desk.run(desk.job(code, 1), "--no-ui", "--quiet").returncode == 0
    for words in ("", "-f"):
        last = desk.run("logs", "-n", "3", "--grep", "^loss", *words.split()).stdout
        assert [x.split(" | ")[1] for x in last.split("\n") if x] == ["loss 70", "loss 80", "loss 90"]
        assert desk.run("logs", "-n", "3", "--grep", "tail", *words.split()).stdout.endswith(" | tail\n")
        assert desk.run("logs", "-n", "3", "--grep", "nothing", *words.split()).stdout == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rank", "7"], "no log of that rank or node"),
        (["--rank", "x"], 'no rank'),
        (["--attempt", "5"], "has no attempt 5"),
        (["--grep", "("], "--grep"),
        (["--node", "nowhere"], "no log of that rank or node"),
    ],
)  # fmt: skip
def test_logs_that_are_not_there(desk: Any, words: list[str], says: str) -> None:
    assert desk.run(desk.job("print(1)", 1), "--no-ui", "--quiet").returncode == 0
    done = desk.run("logs", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_logs_follow_until_the_end(desk: Any) -> None:
    code = "import os, time; print('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('end')"
    front = desk.start(desk.job(code), "--no-ui")
    desk.until(lambda: desk.out().count("| up") == 2, "all ranks")
    raw = desk.start("logs", "-f", "--rank", "0", log="raw")
    merged = desk.start("logs", "-f", log="merged")
    desk.until(lambda: desk.out("raw") == "up\n" and desk.out("merged").count("| up") == 2, "what was there")
    (desk.cwd / "go").touch()
    assert [desk.ends(p) for p in (raw, merged, front)] == [0, 0, 0]
    assert desk.out("raw") == "up\nend\n"
    assert desk.out("merged").count("| end") == 2


def test_status_of_a_live_and_a_finished_run(desk: Any) -> None:
    front = desk.start(desk.job(SLEEPER), "--no-ui")
    desk.until(lambda: desk.out().count("| up") == 2, "all ranks")
    live = desk.status()
    assert live["phase"] == "running"
    assert [r["state"] for r in live["ranks"]] == ["running", "running"]
    assert all(r["pid"] for r in live["ranks"])
    validate([live], "snapshot")
    text = desk.run("status")
    assert text.returncode == 0
    assert "2 ranks: 2 running" in text.stdout
    assert desk.run("stop").returncode == 0
    assert desk.ends(front) == 143
    over = desk.status()
    assert (over["phase"], over["exit_status"]) == ("stopped", 143)
    validate([over], "snapshot")
    again = desk.run("stop")
    assert again.returncode == 0
    assert "over already: stopped" in again.stderr
    desk.nothing_lives()


def test_runs_are_named_by_directory_id_prefix_and_newest(desk: Any) -> None:
    cfg = desk.job("print(1)", 1)
    assert desk.run(cfg, "--no-ui", "--name", "first").returncode == 0
    time.sleep(1.1)  # run ids count seconds
    assert desk.run(cfg, "--no-ui", "--name", "second").returncode == 0
    first, second = sorted(desk.runs(), key=lambda p: p.name)
    assert desk.status()["name"] == "second"
    assert desk.status(str(first))["name"] == "first"
    assert desk.status(first.name)["name"] == "first"
    assert desk.status(first.name[:-1])["name"] == "first"
    both = desk.run("status", first.name[:8])
    assert both.returncode == 2
    assert "could be any of 2 runs" in both.stderr
    listed = json.loads(desk.run("ls", "--json").stdout)
    assert [(r["name"], r["phase"], r["exit_status"], r["ranks"]) for r in listed] == [
        ("second", "succeeded", 0, 1),
        ("first", "succeeded", 0, 1),
    ]
    table = desk.run("ls").stdout.split("\n")
    assert table[0].split() == ["run", "name", "phase", "started", "duration", "ranks", "exit"]
    assert table[1].startswith(second.name)


def test_restart_of_a_running_and_a_finished_run(desk: Any) -> None:
    code = "import os, time; print('attempt', os.environ['TRAINUI_ATTEMPT'], flush=True)\n"
    code += "while not os.path.exists('go'): time.sleep(0.02)"
    front = desk.start(desk.job(code), "--no-ui")
    desk.until(lambda: desk.out().count("| attempt 0") == 2, "all ranks")
    raw = desk.start("logs", "-f", "--rank", "1", log="raw")
    desk.until(lambda: desk.out("raw") == "attempt 0\n", "the first attempt's log")
    done = desk.run("restart")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{desk.the_run().name} attempt 1\n"
    desk.until(lambda: desk.out().count("| attempt 1") == 2, "the next attempt")
    (desk.cwd / "go").touch()
    assert desk.ends(front) == 0
    assert desk.ends(raw) == 0
    assert desk.out("raw") == "attempt 0\nattempt 1\n"
    desk.nothing_lives()
    followed = desk.run("restart", "--no-ui")
    assert followed.returncode == 0, followed.stderr
    assert followed.stdout.count("| attempt 2") == 2
    assert desk.status()["attempt"] == 2
    assert "attempt 0" in desk.run("logs", "--attempt", "0").stdout
    desk.nothing_lives()


def test_read_only_attach_cannot_stop(desk: Any) -> None:
    front = desk.start(desk.job(SLEEPER), "--no-ui")
    desk.until(lambda: desk.out().count("| up") == 2, "all ranks")
    guest = desk.start("attach", "--no-ui", "--read-only", log="guest")
    desk.until(lambda: desk.out("guest").count("| up") == 2, "the guest")
    guest.send_signal(signal.SIGINT)
    assert desk.ends(guest) == 0
    assert "detached" in desk.err("guest")
    assert desk.status()["phase"] == "running"
    front.send_signal(signal.SIGINT)
    assert desk.ends(front) == 130


def test_dry_run_starts_nothing_and_says_what_would_run(desk: Any) -> None:
    cfg = desk.job("open('ran', 'w')", 2)
    done = desk.run(cfg, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "run.sh" in done.stdout
    assert (desk.the_run() / "plan.json").is_file()
    assert not desk.living()
    assert not (desk.cwd / "ran").exists()
    assert not (desk.the_run() / "events.jsonl").exists()
    attached = desk.run("attach", "--no-ui")
    assert attached.returncode == 2
    assert "never started" in attached.stderr
    stopped = desk.run("stop")
    assert stopped.returncode == 0
    assert "never started" in stopped.stderr
    assert not desk.living()
    assert not (desk.cwd / "ran").exists()
    assert desk.run("restart", "--no-ui").returncode == 0
    assert (desk.cwd / "ran").exists()
    desk.nothing_lives()


def test_check_is_a_table_and_a_status(desk: Any) -> None:
    good = desk.run(desk.job("print(1)", 1), "--check")
    assert good.returncode == 0, good.stdout + good.stderr
    assert good.stdout.strip()
    bad = desk.run(desk.job("print(1)", 1, task={"command": ["no-such-command"]}), "--check")
    assert bad.returncode == 69
    assert "no-such-command" in bad.stdout
    assert desk.runs() == []


def test_init_writes_a_config_that_runs(desk: Any) -> None:
    assert desk.run("init").returncode == 0
    done = desk.run("trainui.yml", "--no-ui")
    assert done.returncode == 0, done.stderr
    assert "succeeded" in done.stdout
    again = desk.run("init")
    assert again.returncode == 2
    assert "trainui.yml" in again.stderr


def test_a_config_from_stdin_with_overrides(desk: Any) -> None:
    text = (desk.cwd / desk.job("import os; print('X is', os.environ['X'])", 1)).read_text()
    done = desk.run("-", "env.X=007", "--no-ui", "--name", "piped", stdin=text)
    assert done.returncode == 0, done.stderr
    assert "| X is 007" in done.stdout
    assert desk.the_run().parent.name == "piped"


def test_a_reader_that_has_seen_enough_is_no_fault(desk: Any) -> None:
    code = "for i in range(200000): print('line', i)"
    assert desk.run(desk.job(code, 1), "--no-ui", "--quiet").returncode == 0
    for words in ("logs", "logs --rank 0", "logs --grep line -f"):
        script = f"{desk.trainui.command} {words} | head -1; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=desk.cwd, env=desk.trainui.env, capture_output=True, text=True
        )
        assert done.stdout.split("\n")[-2] == "141"  # as of any command that SIGPIPE ended
        assert "line 0" in done.stdout
        assert done.stderr == ""


def test_a_full_disk_behind_stdout_is_one_line(desk: Any) -> None:
    assert desk.run(desk.job("print(1)", 1), "--no-ui", "--quiet").returncode == 0
    for words in ("status", "ls", "logs"):
        script = f"exec {desk.trainui.command} {words} > /dev/full"
        done = subprocess.run(
            ["bash", "-c", script], cwd=desk.cwd, env=desk.trainui.env, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (74, "trainui: no space left on device\n")


def test_stop_goes_on_when_the_engine_dies_meanwhile(desk: Any) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    front = desk.start(desk.job(code, stop={"grace_s": 4}), "--no-ui")
    desk.until(lambda: desk.out().count("| up") == 2, "all ranks")
    stop = desk.start("stop", log="stop")
    desk.until(lambda: "SIGKILL in" in desk.err("stop"), "the stop")
    os.kill(json.loads((desk.the_run() / "engine.json").read_text())["pid"], signal.SIGKILL)
    assert desk.ends(stop) == 0
    assert "asking again" in desk.err("stop")
    assert desk.ends(front) == 143
    desk.nothing_lives()
