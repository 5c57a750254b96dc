"""A small but genuine data-parallel training: every rank has its own data, gradients are averaged over TCP.

It reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT like any torch job, so it also runs without trainui:

    RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500 python train.py --pace 0
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from allreduce import AllReduce
from model import Adam, Mlp, make_shard

try:
    import trainui_heartbeat as heartbeat  # every rank that trainui starts can import it
except ImportError:
    heartbeat = None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learn three spiral arms, data-parallel, with numpy.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64, help="points for each rank and step")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--pace", type=float, default=0.1, help="a step takes at least so many seconds, to be watched")
    parser.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    default = Path(os.environ.get("TRAINUI_RUN_DIR", "."), "checkpoints")
    parser.add_argument("--checkpoints", type=Path, default=default, metavar="DIR")
    parser.add_argument("--fail-rank", type=int, help="this rank meets a broken batch ...")
    parser.add_argument("--fail-at-step", type=int, default=80, help="... at this step")
    return parser.parse_args()


def learning_rate(peak: float, step: int, steps: int) -> float:
    """Linear warm-up over 20 steps, then half a cosine down to a tenth of the peak."""
    if step <= 20:
        return peak * step / 20
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - 20) / max(1, steps - 20)))


class Training:
    """One rank's half of it all: model, data, group, and the way to and from disk."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.model = Mlp()
        self.adam = Adam(np.zeros_like(self.model.theta), np.zeros_like(self.model.theta))
        self.x, self.y = make_shard(self.rank)
        self.asked_to_stop = False
        self.joined = False
        signal.signal(signal.SIGTERM, self.on_sigterm)
        addr, port = os.environ.get("MASTER_ADDR", "localhost"), int(os.environ.get("MASTER_PORT", "29500"))
        say(f"rank {self.rank}/{self.world} meets the others at {addr}:{port}")
        self.group = AllReduce(self.rank, self.world, addr, port)
        self.joined = True

    def on_sigterm(self, _signal: int, _frame: object) -> None:
        if not self.joined:
            sys.exit(128 + signal.SIGTERM)  # still waiting for the others: there is nothing to save
        # Only a flag: leaving now would break the all-reduce of the others. They learn of it with the gradients.
        self.asked_to_stop = True

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.random.default_rng([self.rank, step]).integers(0, len(self.y), self.args.batch)
        x, y = self.x[rows], self.y[rows]
        if self.rank == self.args.fail_rank and step == self.args.fail_at_step:
            x = np.where(np.arange(self.args.batch)[:, None] == 7, np.nan, x)
        return x, y

    def step(self, step: int) -> tuple[float, float, float, bool]:
        """One step on all ranks: own loss, the ranks' mean loss and accuracy, and whether somebody must stop."""
        x, y = self.batch(step)
        loss, accuracy, grad = self.model.loss_and_grad(x, y)
        if not math.isfinite(loss):
            bad = np.flatnonzero(~np.isfinite(x).all(axis=1)).tolist()
            raise FloatingPointError(
                f"loss is {loss} at step {step} on rank {self.rank}: NaN in rows {bad} of the batch"
            )
        shared = self.group.mean(np.concatenate([grad, [loss, accuracy, float(self.asked_to_stop)]]))
        self.adam.update(self.model.theta, shared[:-3], learning_rate(self.args.lr, step, self.args.steps))
        return loss, float(shared[-3]), float(shared[-2]), bool(shared[-1] > 0)

    def save(self, step: int) -> None:
        """Rank 0 writes; a reader sees a whole file or none."""
        with heartbeat.checkpoint(step) if heartbeat else contextlib.nullcontext():
            if self.rank == 0:
                self.args.checkpoints.mkdir(parents=True, exist_ok=True)
                path = self.args.checkpoints / f"step_{step:06d}.npz"
                temporary = path.with_suffix(".part")
                with temporary.open("wb") as file:
                    np.savez(file, theta=self.model.theta, m=self.adam.m, v=self.adam.v, step=step)
                temporary.replace(path)
                say(f"saved checkpoint {path}")

    def resume(self) -> int:
        """The step to go on from (0: from scratch). Rank 0 reads, so no disk need be shared."""
        size = len(self.model.theta)
        state = np.concatenate([self.model.theta, np.zeros(2 * size + 1)])
        if self.rank == 0 and (found := sorted(self.args.checkpoints.glob("step_*.npz"))):
            with np.load(found[-1]) as data:
                state = np.concatenate([data["theta"], data["m"], data["v"], [float(data["step"])]])
            say(f"resume from {found[-1]}")
        state = self.group.from_rank_0(state)
        step = int(state[-1])
        self.model.theta = state[:size].copy()
        self.adam = Adam(state[size : 2 * size].copy(), state[2 * size : 3 * size].copy(), step)
        return step

    def run(self) -> None:
        args, begun = self.args, time.monotonic()
        first = last = self.resume()
        stop = False
        for step in range(first + 1, args.steps + 1):
            started = time.monotonic()
            own, loss, accuracy, stop = self.step(step)
            last = step
            if heartbeat:
                heartbeat.step(step)
            time.sleep(max(0.0, args.pace - (time.monotonic() - started)))
            took = time.monotonic() - started
            if step % args.log_every == 0 or step == args.steps:
                shown = f"loss {loss:.4f} acc {accuracy:.3f}" if self.rank == 0 else f"loss {own:.4f}"
                say(
                    f"step {step}/{args.steps} {shown} lr {learning_rate(args.lr, step, args.steps):.2e} "
                    f"step_time {took:.3f} s samples/s {args.batch * self.world / took:.0f}"
                )
            if stop or step % args.save_every == 0 or step == args.steps:
                self.save(step)
            if stop:
                say(f"asked to stop: leaving after step {step}, all ranks together")
                break
        self.group.close()
        fingerprint = np.bitwise_xor.reduce(self.model.theta.view(np.uint64))
        say(f"done: step {last}, {time.monotonic() - begun:.1f} s, parameters {int(fingerprint):016x}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    try:
        Training(arguments()).run()
    except KeyboardInterrupt:
        sys.exit(130)
