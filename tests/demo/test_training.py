"""The demo's training by itself, without trainui: four real processes that must learn together."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

TRAIN = Path(__file__).parents[2] / "configs" / "demo" / "train.py"
WORLD = 4


class Job:
    """WORLD ranks of the training, each writing to a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranks: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        for rank in range(WORLD):
            env = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(WORLD),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            }
            command = [sys.executable, str(TRAIN), "--checkpoints", str(self.folder / "checkpoints"), *options]
            with (self.folder / f"rank_{rank}.log").open("wb") as log:
                self.ranks.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))

    def wait(self) -> list[int]:
        codes = [rank.wait(timeout=40) for rank in self.ranks]
        self.ranks.clear()
        return codes

    def log(self, rank: int) -> str:
        return (self.folder / f"rank_{rank}.log").read_text()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    for rank in job.ranks:
        rank.kill()
        rank.wait()


def losses(log: str) -> list[float]:
    return [float(found) for found in re.findall(r"step \d+/\d+ loss (\S+)", log)]


def parameters(log: str) -> str:
    found = re.search(r"parameters ([0-9a-f]{16})", log)
    assert found, log
    return found[1]


def test_four_ranks_learn_together(job: Job) -> None:
    job.start("--steps", "400", "--pace", "0")
    assert job.wait() == [0] * WORLD, job.log(0)
    curve = losses(job.log(0))
    assert len(curve) == 40
    assert np.mean(curve[-5:]) < 0.5 * np.mean(curve[:5]), curve
    assert len({parameters(job.log(rank)) for rank in range(WORLD)}) == 1


def test_resume_gives_the_same_parameters_as_one_go(job: Job) -> None:
    job.start("--steps", "40", "--pace", "0", "--save-every", "20")
    assert job.wait() == [0] * WORLD
    in_one_go = parameters(job.log(0))
    (job.folder / "checkpoints" / "step_000040.npz").unlink()
    job.start("--steps", "40", "--pace", "0", "--save-every", "20")
    assert job.wait() == [0] * WORLD
    assert "resume from" in job.log(0)
    assert "step 20/40" not in job.log(0)
    assert parameters(job.log(0)) == in_one_go


def test_sigterm_saves_a_checkpoint_and_all_leave_with_0(job: Job, wait_until: Callable[..., object]) -> None:
    job.start("--steps", "100000", "--pace", "0.01", "--save-every", "100000")
    wait_until(lambda: "step 20/" in job.log(0), 20, "step 20")
    job.ranks[3].send_signal(signal.SIGTERM)  # one is told; the others learn of it from it
    assert job.wait() == [0] * WORLD, job.log(0)
    (saved,) = (job.folder / "checkpoints").glob("*.npz")
    step = int(saved.stem.removeprefix("step_"))
    assert step >= 20
    assert f"leaving after step {step}" in job.log(1)


def test_a_failing_rank_says_why_and_its_peers_die_of_it(job: Job) -> None:
    job.start("--steps", "100", "--pace", "0", "--fail-rank", "2", "--fail-at-step", "30")
    assert job.wait() == [1] * WORLD
    assert "FloatingPointError: loss is nan at step 30 on rank 2" in job.log(2)
    assert "rank 2 closed the connection" in job.log(0) or "Connection reset" in job.log(0)
