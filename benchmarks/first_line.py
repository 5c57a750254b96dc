"""From the command to the first rank's first line: when it was written, and when it was shown."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import time
from pathlib import Path

from measure import PYTHON, TRAINUI, Workplace, alternate, table, workplace

# CLOCK_MONOTONIC is the same in every process of a machine.
RANK = "import sys, time; print('first line at', time.monotonic_ns(), flush=True)"
MARK = b"first line at "


def torchrun() -> list[str] | None:
    """torchrun's words, where there is one."""
    if importlib.util.find_spec("torch") is not None:
        return [PYTHON, "-m", "torch.distributed.run"]
    found = shutil.which("torchrun")
    return [found] if found else None


def first_line(place: Workplace, words: list[str]) -> tuple[float, float]:
    """Seconds until the first line was (written by the rank, read here)."""
    begun = time.monotonic_ns()
    process = place.popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    written = shown = 0
    for line in process.stdout:
        if MARK in line:
            stamp = int(line.partition(MARK)[2].split()[0])
            written = min(written or stamp, stamp)
            shown = shown or time.monotonic_ns()
    if process.wait() or not shown:
        raise RuntimeError(f"{words}: exit status {process.returncode}, first line seen: {bool(shown)}")
    return (written - begun) / 1e9, (shown - begun) / 1e9


def main(rounds: int, nproc: int = 4) -> str:
    rank = [PYTHON, "-I", "-S", "-c", RANK]
    shown: dict[str, list[float]] = {}
    with workplace() as place:
        config = place.config("first", rank, nproc)
        launcher = torchrun()
        if launcher:
            yardstick = "torchrun", [*launcher, f"--nproc-per-node={nproc}", "--no-python", *rank]
        else:
            plain = str(Path(__file__).with_name("plain_launcher.py"))
            yardstick = "plain subprocesses", [PYTHON, plain, str(nproc), *rank]

        def contestant(name: str, words: list[str]) -> float:
            written, seen = first_line(place, words)
            shown.setdefault(name, []).append(seen)
            if words[0] == TRAINUI:
                place.wait_engines()
            return written

        ours = "trainui --no-ui", [TRAINUI, str(config), "--no-ui"]
        results = alternate({n: lambda n=n, w=w: contestant(n, w) for n, w in (yardstick, ours)}, rounds)
    seen = [type(r)(r.name, tuple(shown[r.name][1:])) for r in results]
    note = "" if launcher else "torchrun is not installed here; the yardstick is a script that only starts processes."
    return (
        table(f"From the command to the first rank's first line, {nproc} ranks: written", results)
        + "\n"
        + table("The same: shown", seen, note=note)
    )
