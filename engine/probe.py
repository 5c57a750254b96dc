"""What is found on this machine before anything is planned. Absent tools cost nothing: PATH is looked at first."""

from __future__ import annotations

import os
import platform
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from engine.devices import VISIBLE_DEVICES
from engine.plan import NodeFacts

# nvidia-smi takes about 1 s without the persistence daemon, and hangs for good when a GPU fell off the bus.
TOOL_TIMEOUT_S = 5.0


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
        home=home_folder(environ),
    )


def _others(environ: Mapping[str, str]) -> dict[str, str]:
    # One that we do not know can still be named by cluster.gpu_binding.
    return {name: value for name, value in environ.items() if name.endswith("_VISIBLE_DEVICES")}


def short_hostname() -> str:
    """The machine's name up to the first dot."""
    return platform.node().partition(".")[0] or "localhost"


def home_folder(environ: Mapping[str, str]) -> str:
    """`$HOME`, else the user's home folder, else ""."""
    if environ.get("HOME", "").startswith("/"):
        return environ["HOME"]
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def find_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[str, tuple[str, ...]]:
    """The maker and the indices of this machine's GPUs; ("", ()) where there are none.

    Args:
        root: where `sys` and `dev` are.
    """
    for vendor, find in (("nvidia", _nvidia), ("amd", _amd), ("ascend", _ascend)):
        gpus = find(environ, root)
        if gpus:
            return vendor, gpus
    return "", ()


def run_tool(words: list[str], environ: Mapping[str, str]) -> str | None:
    """A tool's output, or None where it is not there, fails or does not answer in time."""
    program = shutil.which(words[0], path=environ.get("PATH", os.defpath))
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TOOL_TIMEOUT_S,
            env=dict(environ),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _nvidia(environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
    del root
    listing = run_tool(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], environ)
    if listing is None:
        return ()
    first = [line.strip() for line in listing.split("\n")]
    return tuple(word for word in first if word.isdecimal())


def _amd(environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
    """The kernel driver lists CPUs as nodes too; those have no SIMD units."""
    del environ
    found = 0
    for properties in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        try:
            text = properties.read_text(encoding="ascii", errors="replace")
        except OSError:  # another user's container may see the node but not read it
            continue
        count = re.search(r"^simd_count (\d+)$", text, re.MULTILINE)
        found += count is not None and int(count.group(1)) > 0
    return tuple(str(i) for i in range(found))


def _ascend(environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
    del environ
    try:
        names = [path.name for path in (root / "dev").iterdir()]
    except OSError:
        return ()
    # davinci_manager is there too, and is no device.
    numbers = sorted(int(name[7:]) for name in names if re.fullmatch(r"davinci\d+", name))
    return tuple(str(i) for i in numbers)
