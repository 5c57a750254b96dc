"""A real tmux on a socket of its own: keys in, screen text out."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 30.0


class Terminal:
    """One pane, running a shell; `screen()` is what a person sees."""

    def __init__(self, folder: Path, env: dict[str, str], width: int, height: int) -> None:
        self.socket = f"trainui-test-{uuid.uuid4().hex[:8]}"
        clean = ["env", "-i", *[f"{k}={v}" for k, v in env.items()]]
        shell = shlex.join([*clean, "PS1=$ ", "sh"])
        self.tmux("new-session", "-d", "-s", "t", "-x", str(width), "-y", str(height), "-c", str(folder), shell)
        self.tmux("set", "-g", "escape-time", "0")

    def tmux(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-L", self.socket, *words], capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"tmux {words}: {done.stderr}")
        return done.stdout

    def keys(self, *names: str) -> None:
        """Press keys by tmux's names (`Enter`, `Escape`, `C-c`, `x`)."""
        self.tmux("send-keys", "-t", "t", *names)

    def type(self, text: str) -> None:
        """Type a shell line."""
        self.tmux("send-keys", "-t", "t", "-l", text)
        self.keys("Enter")

    def screen(self) -> str:
        return self.tmux("capture-pane", "-t", "t", "-p")

    def value(self, name: str) -> str:
        """A tmux format variable, such as `alternate_on`."""
        return self.tmux("display-message", "-t", "t", "-p", f"#{{{name}}}").strip()

    def wait(self, wanted: str | Callable[[str], Any], limit_s: float = PATIENCE_S) -> str:
        """The screen, as soon as it shows `wanted` (a text, or a condition on the screen)."""
        condition = wanted if callable(wanted) else lambda text: wanted in text
        deadline = time.monotonic() + limit_s
        while not condition(text := self.screen()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {limit_s:.0f} s for {wanted!r} on this screen:\n{text}")
            time.sleep(0.05)
        return text

    def resize(self, width: int, height: int) -> None:
        self.tmux("resize-window", "-t", "t", "-x", str(width), "-y", str(height))

    def close(self) -> None:
        self.tmux("kill-server", check=False)


@pytest.fixture
def terminal(trainui: Any) -> Iterator[Callable[..., Terminal]]:
    """`terminal(width, height)`: a tmux pane in the test's folder, with `trainui` on PATH."""
    if not shutil.which("tmux"):
        pytest.skip("tmux is not installed")
    opened: list[Terminal] = []

    def make(width: int = 80, height: int = 24, **env: str) -> Terminal:
        path = f"{Path(trainui.command).parent}:{trainui.env.get('PATH', '/usr/bin:/bin')}"
        one = Terminal(trainui.cwd, {**trainui.env, "PATH": path, **env}, width, height)
        opened.append(one)
        return one

    yield make
    for one in opened:
        one.close()
