"""Real daemons on loopback; what belongs to a test ends with it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load(name: str) -> ModuleType:
    # Test folders are no packages, so a helper beside the tests is loaded by its path.
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"ssh_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def lab() -> Any:
    """The module `lab`."""
    return _load("lab")


@pytest.fixture
async def world(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A home directory, its key, and daemons that take it."""
    if reason := lab.why_no_sshd():
        pytest.skip(reason)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    made = lab.World(tmp_path)
    yield made
    await made.close()


@pytest.fixture
def network(world: Any) -> Iterator[Any]:
    """Hosts in network namespaces, with cables."""
    netns = _load("netns")
    if reason := netns.why_not():
        pytest.skip(reason)
    made = netns.Network()
    try:
        yield made
        for daemon in world.daemons:
            daemon.stop()
    finally:
        made.close()
