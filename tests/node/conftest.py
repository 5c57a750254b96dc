"""Real agents with real trees below them; each test proves that it leaves nothing."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load(name: str) -> ModuleType:
    # Test folders are no packages, so a helper beside the tests is loaded by its path.
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"node_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def client() -> Any:
    """The module `agent_client`."""
    return _load("agent_client")


@pytest.fixture
def make_node(tmp_path: Path, client: Any) -> Iterator[Any]:
    """`make_node(folder)`: a node of a run of its own; afterwards nothing of it may live."""
    nodes: list[Any] = []

    def make(folder: Path | None = None) -> Any:
        made = client.Node(folder or tmp_path / f"n{len(nodes)}", f"test-{os.getpid()}-{os.urandom(4).hex()}")
        nodes.append(made)
        return made

    yield make
    left = [line for made in nodes for line in (made.clean_up(), made.left())[1]]
    assert not left, f"these were left: {left}"


@pytest.fixture
def node(make_node: Any) -> Any:
    """One node."""
    return make_node()
