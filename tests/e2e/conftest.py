"""Real jobs through the installed command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 40.0


class Desk:
    """A user at a terminal: writes configs, starts the command, looks at what comes of it."""

    def __init__(self, trainui: Any) -> None:
        self.trainui = trainui
        self.cwd: Path = trainui.cwd
        self.started: list[subprocess.Popen[bytes]] = []

    def job(self, code: str, ranks: int = 2, name: str = "job.yml", **more: Any) -> str:
        """A config (JSON is YAML) whose ranks run `python -c code`; returns its file's name."""
        config: dict[str, Any] = {
            "task": {"command": [sys.executable, "-c", code]},
            "cluster": {"nproc_per_node": ranks, "gpu_binding": "none"},
            "stop": {"grace_s": 5},
        }
        for key, value in more.items():
            config[key] = config[key] | value if isinstance(config.get(key), dict) else value
        self.trainui.config(json.dumps(config, ensure_ascii=False), name)  # YAML knows no surrogate pairs
        return name

    def run(self, *words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.trainui.run(*words, **options)

    def start(self, *words: str, log: str = "front") -> subprocess.Popen[bytes]:
        """Start the command with stdout and stderr in the files `log`.out and `log`.err."""
        with (self.cwd / f"{log}.out").open("wb") as out, (self.cwd / f"{log}.err").open("wb") as err:
            process = subprocess.Popen(
                [self.trainui.command, *words],
                cwd=self.cwd,
                env=self.trainui.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def out(self, log: str = "front") -> str:
        return (self.cwd / f"{log}.out").read_text(errors="replace")

    def err(self, log: str = "front") -> str:
        return (self.cwd / f"{log}.err").read_text(errors="replace")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            if time.monotonic() > deadline:
                told = "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')}" for p in self.cwd.glob("*.[oe][ur]*"))
                pytest.fail(f"waited {PATIENCE_S:.0f} s for {what}\n{told}\n{self._engine_logs()}")
            time.sleep(0.02)
        return value

    def ends(self, process: subprocess.Popen[bytes]) -> int:
        """The exit status, within the time limit."""
        self.until(lambda: process.poll() is not None, "the end of the command")
        return process.returncode

    def runs(self) -> list[Path]:
        """Run directories, oldest first."""
        return sorted(p.parent for p in self.trainui.run_root.glob("*/*/plan.json") if not p.parent.is_symlink())

    def the_run(self) -> Path:
        (run,) = self.runs()
        return run

    def status(self, *words: str) -> dict[str, Any]:
        return json.loads(self.run("status", "--json", *words).stdout)

    def living(self) -> list[str]:
        """Command lines of living processes of any run of this desk: ranks, agents, engines."""
        found: list[str] = []
        ids = [run.name for run in self.runs()]
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                environ = (entry / "environ").read_bytes().decode(errors="replace")
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            ours = any(f"TRAINUI_RUN_ID={i}\0" in environ for i in ids) or str(self.trainui.run_root) in command
            if ours and state not in ("Z", "X"):
                found.append(f"{entry.name}: {command}")
        return found

    def nothing_lives(self) -> None:
        self.until(lambda: not self.living(), f"the end of {self.living()}")

    def _engine_logs(self) -> str:
        return "\n".join((run / "engine.log").read_text() for run in self.runs() if (run / "engine.log").exists())


@pytest.fixture
def desk(trainui: Any) -> Iterator[Desk]:
    made = Desk(trainui)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.wait()
