"""Whether a frozen front end slows the training down: 8 ranks write 100 MB while it is stopped with SIGSTOP."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from measure import PYTHON, TRAINUI, Workplace, alternate, table, wait_for, workplace

RANKS = 8
BYTES = 100_000_000
HERE = Path(__file__).parent


class Round:
    """One job of writers: they get ready, are let go together, and leave their times."""

    def __init__(self, place: Workplace) -> None:
        self.place = place
        self.folder = place.fresh("round")
        names = (str(self.folder / name) for name in ("ready", "go", "done"))
        self.command = [PYTHON, "-I", "-S", str(HERE / "writer.py"), str(BYTES // RANKS), *names]

    def run(self, process: subprocess.Popen[bytes], freeze: bool) -> float:
        """Seconds that the slowest rank took to write its share."""
        self.wait_files("ready")
        if freeze:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            (self.folder / "go").touch()
            self.wait_files("done")
        finally:
            if freeze:
                os.kill(process.pid, signal.SIGCONT)
        if process.wait(timeout=120):
            raise RuntimeError(f"{process.args}: exit status {process.returncode}")
        return max(float((self.folder / f"done.{rank}").read_text()) for rank in range(RANKS))

    def wait_files(self, name: str) -> None:
        wait_for(lambda: all((self.folder / f"{name}.{r}").exists() for r in range(RANKS)), 120, f"all ranks {name}")


def plain(place: Workplace) -> float:
    """Each rank's output straight into a file: nothing can be faster."""
    this = Round(place)
    script = 'exec "$@" >"$OUT/rank.$RANK"'
    words = [PYTHON, str(HERE / "plain_launcher.py"), str(RANKS), "bash", "-c", script, "bash", *this.command]
    place.env["OUT"] = str(this.folder)
    return this.run(place.popen(words), freeze=False)


def ours(place: Workplace, freeze: bool) -> float:
    """Under trainui; afterwards every byte must be in the logs."""
    this = Round(place)
    config = place.config("writers", this.command, RANKS)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    took = this.run(place.popen([TRAINUI, str(config), "--no-ui"], **quiet), freeze)
    logs = list((place.folder / "runs" / "writers" / "latest").glob("nodes/*/attempt_0/rank_*.log"))
    if [log.stat().st_size for log in logs] != [BYTES // RANKS] * RANKS:
        raise RuntimeError(f"the logs are not complete: {[log.stat().st_size for log in logs]}")
    place.wait_engines()
    for log in logs:
        log.unlink()  # so many rounds would fill a small disk
    return took


def main(rounds: int) -> str:
    with workplace() as place:
        contestants: dict[str, Callable[[], float]] = {
            "plain files, no launcher": lambda: plain(place),
            "trainui, front end frozen": lambda: ours(place, True),
            "trainui, front end printing": lambda: ours(place, False),
        }
        results = alternate(contestants, rounds)
    title = f"{RANKS} ranks write {BYTES // 1_000_000} MB: seconds of the slowest rank"
    note = "frozen: SIGSTOP before the first byte, SIGCONT after the last; all bytes were in the logs each time."
    return table(title, results, unit="s", note=note)
