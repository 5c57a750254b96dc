"""The configs that are shipped: each can be planned, and the demo shows what it promises."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
CONFIGS = sorted(path.name for path in (REPOSITORY / "configs").glob("*.yml"))


@pytest.fixture
def in_checkout(trainui: Any) -> Any:
    """The command, started where `make demo` starts it."""
    return dataclasses.replace(trainui, cwd=REPOSITORY)


def fast(*options: str) -> str:
    """The demo's command without its pace."""
    words = ["python", "configs/demo/train.py", "--pace", "0", *options]
    return f"task.command={json.dumps(words)}"


def summary(run_root: Path, name: str) -> dict[str, Any]:
    return json.loads((run_root / name / "latest" / "summary.json").read_text())


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_can_be_planned(in_checkout: Any, name: str) -> None:
    done = in_checkout.run(f"configs/{name}", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "configs/demo/train.py" in done.stdout
    assert not list(in_checkout.run_root.rglob("rank_*.log"))


def test_the_demo_trains_on_four_ranks(in_checkout: Any) -> None:
    done = in_checkout.run("configs/demo.yml", fast("--steps", "500"), "--no-ui")
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(found) for found in re.findall(r"step \d+/500 loss (\S+) acc", done.stdout)]
    assert len(losses) == 50
    assert losses[-1] < 0.5 * losses[0], losses
    said = summary(in_checkout.run_root, "demo")
    assert [(rank["rank"], rank["exit_code"]) for rank in said["ranks"]] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert {rank["step"] for rank in said["ranks"]} == {500}
    assert {rank["heartbeat"]["source"] for rank in said["ranks"]} == {"file"}


def test_the_failing_demo_names_the_rank_that_broke_and_why(in_checkout: Any) -> None:
    done = in_checkout.run(
        "configs/demo-failure.yml", fast("--steps", "300", "--fail-rank", "2", "--fail-at-step", "80"), "--no-ui"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    cause = summary(in_checkout.run_root, "demo-failure")["root_cause"]
    assert (cause["rank"], cause["code"]) == (2, 1)
    assert any("loss is nan at step 80 on rank 2" in line["text"] for line in cause["evidence"]), cause
    assert "loss is nan at step 80 on rank 2" in done.stdout + done.stderr
