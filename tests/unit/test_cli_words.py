"""Which command is meant, and what a wrong word is answered with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tui import cli


@pytest.mark.parametrize(
    ("words", "name", "rest"),
    [
        (["job.yml", "a=1"], "run", ["job.yml", "a=1"]),
        (["--no-ui", "job.yml"], "run", ["--no-ui", "job.yml"]),
        (["--name", "status", "job.yml"], "run", ["--name", "status", "job.yml"]),
        (["--run-root", "x", "ls"], "ls", ["--run-root", "x"]),
        (["ls", "--run-root", "x"], "ls", ["--run-root", "x"]),
        (["-"], "run", ["-"]),
        (["./status"], "run", ["./status"]),
        (["--", "status"], "run", ["--", "status"]),
        (["logs", "--rank", "0", "2-3", "-f"], "logs", ["--rank", "0", "--rank", "2-3", "-f"]),
        (["logs", "20261201", "--rank", "0", "20261201"], "logs", ["20261201", "--rank", "0", "20261201"]),
        (["logs", "--rank", "0", "demo"], "logs", ["--rank", "0", "demo"]),
        (["logs", "--node", "hostA", "1"], "logs", ["--node", "hostA", "--node", "1"]),
    ],
)
def test_the_first_word_decides(words: list[str], name: str, rest: list[str]) -> None:
    assert cli.split_command(words) == (name, rest)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRAINUI_RUN_ROOT", raising=False)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("trainui ")


def test_help_lists_every_command_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert f"trainui {command}" in out
    assert "diagnose" not in out


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    assert f"Usage: trainui {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name a config"),
        (["attch"], 'did you mean "trainui attach"'),
        (["statsu"], 'did you mean "trainui status"'),
        (["diagnose", "x"], "not yet"),
        (["status", "--nonsense"], "--nonsense"),
        (["status", "nosuchrun"], 'no run "nosuchrun"'),
        (["attach", "--no-ui"], "there is no run below"),
        (["logs", "--attempt", "x"], "--attempt"),
        (["job.yml", "--dry-run", "--check"], "exclude"),
        (["job.yml", "--json", "--check"], "--json does not go with --check"),
        (["--no-ui"], "CFG"),
    ],
)
def test_a_wrong_word_is_one_line_and_status_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("trainui: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert os.listdir() == []


def test_a_bug_of_ours_is_called_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_words: list[str]) -> int:
        raise KeyError("boom")

    monkeypatch.setattr(cli, "_main", broken)
    monkeypatch.setenv("TMPDIR", os.getcwd())
    monkeypatch.setattr("tempfile.tempdir", None)
    assert cli.main(["x"]) == cli.EXIT_BUG
    err = capsys.readouterr().err
    assert "this is a bug in trainui: KeyError: 'boom'" in err
    assert err.count("\n") == 1
    report = Path(err.rsplit(" ", 1)[1].strip())
    assert "Traceback" in report.read_text()


def test_a_bug_shows_its_traceback_where_debug_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_words: list[str]) -> int:
        raise KeyError("boom")

    monkeypatch.setattr(cli, "_main", broken)
    assert cli.main(["x", "--log-level", "debug"]) == cli.EXIT_BUG
    assert "Traceback" in capsys.readouterr().err
