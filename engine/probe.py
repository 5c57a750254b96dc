"""What is found on this machine before anything is planned. Absent tools cost nothing: PATH is looked at first."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from engine.devices import VISIBLE_DEVICES
from engine.node import probe
from engine.node_report import parse_machine
from engine.plan import NodeFacts


def probe_local(environ: Mapping[str, str], cwd: str) -> NodeFacts:
    """The facts of this machine.

    Args:
        environ: the environment that the ranks will inherit.
        cwd: where trainui was started, absolute.
    """
    vendor, gpus = find_gpus(environ)
    return NodeFacts(
        host=short_hostname(),
        cwd=cwd,
        gpus=gpus,
        gpu_vendor=vendor,
        visible={name: environ[name] for name in VISIBLE_DEVICES if name in environ} | _others(environ),
        home=probe.home_folder(environ),
    )


def _others(environ: Mapping[str, str]) -> dict[str, str]:
    # One that we do not know can still be named by cluster.gpu_binding.
    return {name: value for name, value in environ.items() if name.endswith("_VISIBLE_DEVICES")}


def short_hostname() -> str:
    """The machine's name up to the first dot."""
    return platform.node().partition(".")[0] or "localhost"


def find_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[str, tuple[str, ...]]:
    """The maker and the indices of this machine's GPUs; ("", ()) where there are none.

    Args:
        root: where `sys` and `dev` are.
    """
    machine = parse_machine(probe.find_gpus(environ, str(root)))
    gpus = tuple(gpu.index for gpu in machine.gpus)
    return (machine.gpu_vendor if gpus else ""), gpus
