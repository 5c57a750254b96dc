"""The console without a terminal: keys in, screen text out."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.strip import Strip

from engine.clock import ManualClock
from engine.job.snapshot import Snapshot
from tui.app import ConsoleResult
from tui.console import Console


def _load_fake() -> ModuleType:
    """The neighbour module: test folders are no packages."""
    name = "trainui_fake_session"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("fake_session.py"))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


fake = _load_fake()


class World:
    """One console on a fake session."""

    def __init__(self, console: Console, session: Any, clock: ManualClock, pilot: Pilot[ConsoleResult]) -> None:
        self.console = console
        self.session = session
        self.clock = clock
        self.pilot = pilot

    @property
    def text(self) -> str:
        """What a person sees, row by row."""
        return "\n".join(strip.text.rstrip() for strip in self.strips)

    @property
    def strips(self) -> list[Strip]:
        """The whole screen, which only the compositor knows."""
        return self.console.screen._compositor.render_strips(self.console.size)

    def row(self, number: int) -> str:
        return self.text.split("\n")[number]

    @property
    def log_rows(self) -> list[str]:
        """The rows of the log pane, without its scrollbar."""
        view = self.console._main.log_view
        region = view.region
        rows = self.strips[region.y : region.bottom]
        return [strip.crop(region.x, region.right - 1).text.rstrip() for strip in rows]

    @property
    def rank(self) -> int | None:
        return self.console._main.table.selected

    @property
    def focus(self) -> str:
        return "" if self.console.focused is None else str(self.console.focused.id)

    async def press(self, *keys: str) -> None:
        """Press keys, each with a moment in between, as people do; dialogs are past their deaf moment."""
        for key in keys:
            self.clock.advance(1)
            await self.pilot.press(key)
            await self.pilot.pause()

    async def wait(self, condition: str | Callable[[], Any], limit_s: float = 10.0) -> None:
        """Until the screen shows a text, or a condition holds."""
        held = (lambda: condition in self.text) if isinstance(condition, str) else condition
        deadline = time.monotonic() + limit_s
        while not held():
            if time.monotonic() > deadline:
                pytest.fail(f"waited for {condition!r} on this screen:\n{self.text}")
            await asyncio.sleep(0.01)
            await self.pilot.pause()

    def log_path(self, rank: int = 0) -> Path:
        snapshot: Snapshot = self.session.snapshot
        return Path(snapshot.run_dir) / snapshot.ranks[rank].log

    def append(self, data: bytes, rank: int = 0) -> None:
        with self.log_path(rank).open("ab") as file:
            file.write(data)


Opener = Callable[..., Any]


@pytest.fixture
def plain_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that can show everything, whoever runs the tests."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def open_console(tmp_path: Path, plain_env: None) -> Opener:
    """`async with open_console(...) as world`."""
    del plain_env

    @asynccontextmanager
    async def opened(
        snapshot: Snapshot | None = None, size: tuple[int, int] = (80, 24), *, lines: int = 100, **options: Any
    ) -> AsyncIterator[World]:
        shown = snapshot or fake.make_snapshot(tmp_path)
        if lines:
            fake.make_logs(shown, lines)
        session = fake.FakeSession(shown)
        clock = ManualClock(fake.START + 62.0)
        console = Console(session, clock=clock, **options)
        async with console.run_test(size=size) as pilot:
            world = World(console, session, clock, pilot)
            await pilot.pause()
            yield world

    return opened


@pytest.fixture
def snapshots(tmp_path: Path) -> Any:
    """The module `fake_session`."""
    return fake
