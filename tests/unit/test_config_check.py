"""Which variables a config may set, shown with the bash that would have to carry them."""

# ruff: noqa: E501  tables of names
from __future__ import annotations

import os
import subprocess

import pytest

from engine.config.check import MAX_WORD, check
from engine.config.schema import Config, Task
from engine.config.variables import BASH_OWN, RANK_NUMBERS, reserved


def arrives(name: str) -> bool:
    """True if a variable that bash exports reaches the program that it becomes."""
    script = f"export {name}='as it is' 2>/dev/null; cd /; exec env -0"
    run = subprocess.run(["bash", "--noprofile", "--norc", "-c", script], capture_output=True, check=False)
    return f"{name}=as it is".encode() in run.stdout.split(b"\0")


@pytest.mark.parametrize("name", sorted(BASH_OWN - {"PIPESTATUS"}))
def test_what_is_refused_would_not_arrive(name: str) -> None:
    # PIPESTATUS, an array, arrives from some versions of bash only.
    assert not arrives(name)


@pytest.mark.parametrize(
    "name", ["A", "_A9", "HOME", "LANG", "TERM", "IFS", "PS1", "HOSTNAME", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH", "TZ", "BASHFUL"]
)  # fmt: skip
def test_what_is_allowed_arrives(name: str) -> None:
    assert reserved(name) is None
    assert arrives(name)


@pytest.mark.parametrize(
    "name", [*RANK_NUMBERS, "TRAINUI_RUN_ID", "TRAINUI_X", "", "1A", "A B", "A-B", "A\n", "Ä", "BASH_ENV", "COMP_WORDS"]
)
def test_what_is_refused_for_other_reasons(name: str) -> None:
    assert reserved(name) is not None


def config(**task: object) -> Config:
    return Config(name="x", task=Task(**task))  # type: ignore[arg-type]


def test_a_sound_config_has_no_problem() -> None:
    assert check(config(command=["true"])) == []
    assert check(config(script="true\n")) == []
    assert check(config(command="torch.py", torchrun={"max_restarts": 1})) == []


def test_mode_contradicts_torchrun_only_where_it_was_written() -> None:
    both = config(command=["x"], torchrun={})
    assert check(both) == []
    assert [p.path for p in check(both, {"task.mode"})] == ["task.mode"]


@pytest.mark.parametrize("name", ["nnodes", "nproc-per-node", "node_rank", "--max-restarts", "a b", ""])
def test_options_that_torchrun_cannot_be_given(name: str) -> None:
    assert [p.path for p in check(config(command=["x"], torchrun={name: 1}))] == [f"task.torchrun.{name}"]


def test_words_longer_than_linux_passes_on() -> None:
    longest = "x" * (MAX_WORD - 20)
    assert check(config(command=["true", longest])) == []
    assert subprocess.run(["true", longest], check=False).returncode == 0
    (problem,) = check(config(command=["true", "x" * MAX_WORD]))
    assert problem.path == "task.command[1]"
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["true", "x" * MAX_WORD], check=False)


def test_half_a_character_is_refused() -> None:
    (problem,) = check(config(command=["true", os.fsdecode(b"\xff")]))
    assert "half a character" in problem.text
