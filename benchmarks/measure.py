"""Shared by the benchmarks: contestants in turn, medians, and ratios to a yardstick of the same run."""

from __future__ import annotations

import fcntl
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PYTHON = sys.executable
TRAINUI = str(Path(PYTHON).parent / "trainui")


@dataclass(frozen=True)
class Result:
    """Seconds of one contestant, one for each round."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def alternate(contestants: Mapping[str, Callable[[], float]], rounds: int) -> list[Result]:
    """Run every contestant once a round, each round beginning with another one: drift then hits all alike.

    One round before the first warms the disk cache and is thrown away.
    """
    names = list(contestants)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1, rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            seconds = contestants[name]()
            if number >= 0:
                taken[name].append(seconds)
    return [Result(name, tuple(taken[name])) for name in names]


def table(title: str, results: list[Result], unit: str = "ms", note: str = "") -> str:
    """Median, range and ratio to the first contestant, as text."""
    factor = {"ms": 1000.0, "s": 1.0}[unit]
    yardstick = results[0].median
    width = max(len(result.name) for result in results)
    lines = ["", f"{title} ({len(results[0].seconds)} rounds)", "-" * (width + 48)]
    lines.append(f"{'':{width}}  {'median ' + unit:>10}  {'min':>8}  {'max':>8}  {'ratio':>6}  {'more ' + unit:>9}")
    for result in results:
        low, high, mid = min(result.seconds), max(result.seconds), result.median
        lines.append(
            f"{result.name:{width}}  {mid * factor:10.2f}  {low * factor:8.2f}  {high * factor:8.2f}"
            f"  {mid / yardstick:6.2f}  {(mid - yardstick) * factor:+9.2f}"
        )
    if note:
        lines.append(note)
    return "\n".join(lines)


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll every 2 ms.

    Raises:
        TimeoutError: it did not come true in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.002)


def engine_lives(run: Path) -> bool:
    """True while an engine holds the run's lock."""
    with (run / "engine.lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@dataclass
class Workplace:
    """A folder and an environment of this benchmark's own."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def fresh(self, name: str) -> Path:
        """An empty folder of that name."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def config(self, name: str, command: list[str], nproc: int) -> Path:
        """A config that runs `command` on `nproc` ranks of this machine."""
        words = ", ".join('"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in command)
        path = self.folder / f"{name}.yml"
        path.write_text(
            f"task: {{command: [{words}]}}\ncluster: {{nproc_per_node: {nproc}, gpu_binding: none}}\n", encoding="utf-8"
        )
        return path

    def popen(self, words: list[str], **options: object) -> subprocess.Popen[bytes]:
        """Start a program here, with nothing on stdin."""
        return subprocess.Popen(words, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload,no-any-return]

    def seconds(self, words: list[str]) -> float:
        """How long a program takes from start to end; it must exit 0."""
        begun = time.monotonic()
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        took = time.monotonic() - begun
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: exit status {done.returncode}\n{done.stderr.decode()}")
        return took

    def wait_engines(self) -> None:
        """Until the engines of finished runs have left, so that they do not slow down the next contestant."""
        runs = [path.parent for path in (self.folder / "runs").glob("*/2*/engine.lock")]
        wait_for(lambda: not any(map(engine_lives, runs)), 20, "the engine to leave")


@contextmanager
def workplace() -> Iterator[Workplace]:
    """A temporary workplace; runs that are left in it are stopped."""
    with tempfile.TemporaryDirectory(prefix="trainui-bench-") as name:
        folder = Path(name)
        dropped = ("PYTHONPATH", "TRAINUI_RUN_ID", "TRAINUI_RUN_DIR")
        env = {k: v for k, v in os.environ.items() if k not in dropped}
        env |= {"TRAINUI_RUN_ROOT": str(folder / "runs"), "HOME": name, "PATH": f"{Path(PYTHON).parent}:{env['PATH']}"}
        place = Workplace(folder, env)
        try:
            yield place
        finally:
            for run in (folder / "runs").glob("*/2*"):
                if not (run / "summary.json").exists():
                    subprocess.run([TRAINUI, "stop", "--kill", str(run)], env=env, capture_output=True, check=False)
