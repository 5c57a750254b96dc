"""The config that `trainui init` writes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from engine.config.load import load_config
from engine.config.schema import Config
from engine.config.shape import all_keys, is_section, keys_of
from engine.config.starter import STARTER, write_starter
from engine.errors import TrainUIError

DOCS = Path(__file__).parents[2] / "docs/config.md"


def test_it_loads_and_its_command_runs(tmp_path: Path) -> None:
    file = tmp_path / "start.yml"
    write_starter(file)
    loaded = load_config(str(file), ["env.STEPS=2"])
    assert loaded.warnings == ()
    assert loaded.config.cluster.nproc_per_node == 2
    command = loaded.config.task.command
    assert isinstance(command, list)
    numbers = {"RANK": "1", "WORLD_SIZE": "2"}
    run = subprocess.run(
        command, env={**os.environ, **loaded.config.env, **numbers}, capture_output=True, text=True, check=True
    )
    lines = run.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["step", "1/2"], ["step", "2/2"]]
    assert all("rank 1 of 2" in line for line in lines)


def test_what_is_commented_out_is_right_too(tmp_path: Path) -> None:
    # Every line that only wants its `# ` removed, but for the second of two alternatives.
    text = STARTER.replace("# mode: per_node ", "mode: per_node ").replace("# cwd: .", "cwd: .")
    for key in (
        "name:",
        "run_root:",
        "HF_TOKEN:",
        "env_expand:",
        "  PATH:",
        "hooks:",
        "  activate:",
        "  before_start:",
    ):
        text = text.replace(f"# {key}", key)
    for key in ("  after_stop:", "mkdirs:", "gpu_binding:", "torchrun:"):
        text = text.replace(f"# {key}", key)
    assert text.count("\n# ") == 4  # only prose is left
    (tmp_path / "all.yml").write_text(text)
    config = load_config(str(tmp_path / "all.yml"), environ={"HF_TOKEN": "hf_x"}).config
    assert config.env_expand == {"PATH": "/opt/tools/bin:$PATH"}
    assert config.hooks.activate == "source venv/bin/activate"


def test_it_replaces_nothing_unasked(tmp_path: Path) -> None:
    file = tmp_path / "a.yml"
    file.write_text("mine")
    with pytest.raises(TrainUIError, match=r"a\.yml is there already \(give another name\)"):
        write_starter(file)
    assert file.read_text() == "mine"
    write_starter(file, force=True)
    assert file.read_text() == STARTER
    with pytest.raises(TrainUIError, match="there is no folder"):
        write_starter(tmp_path / "none/a.yml")
    with pytest.raises(TrainUIError, match="cannot be written"):
        write_starter(tmp_path, force=True)


def test_the_docs_describe_every_key() -> None:
    text = DOCS.read_text()
    assert len(all_keys()) > 60
    sections = {name for name, hint in keys_of(Config).items() if is_section(hint)}
    missing = [key for key in all_keys() if key not in sections and f"`{key}`" not in text]
    assert missing == []


def test_the_docs_name_no_key_that_is_not_there() -> None:
    import re

    tops = "|".join(keys_of(Config))
    named = set(re.findall(rf"^\| `((?:{tops})[a-z_.]*)`", DOCS.read_text(), flags=re.MULTILINE))
    assert len(named) > 50
    assert named - set(all_keys()) == set()
