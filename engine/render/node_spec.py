"""Everything a node is sent: the rendered files, and the spec that its agent starts from (docs/agent-protocol.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engine.plan import NodePlan, Plan
from engine.render.run_script import SECRETS_FILE, hook_script, run_script, secrets_script
from engine.render.stop_script import stop_script

SPEC_VERSION = 1
_SCRIPT_MODE = 0o700
_DATA_MODE = 0o600
# Not rendered: our own sources, the same for every run.
OWN_FILES = ("lib/trainui_heartbeat.py", "agent.py")
_NODE_SOURCES = Path(__file__).parent.parent / "node"


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """One file of the node's folder; `name` may have a folder in front (`lib/...`)."""

    name: str
    text: str
    mode: int


def render_node(plan: Plan, node: NodePlan) -> tuple[RenderedFile, ...]:
    """All files of a node's folder that are known before the start, the same bytes each time.

    Raises:
        PlanError: an `env_expand` value cannot be understood.
    """
    own = (RenderedFile(name, _source(name.rpartition("/")[2]), _DATA_MODE) for name in OWN_FILES)
    return (*render_scripts(plan, node), *own)


def render_scripts(plan: Plan, node: NodePlan) -> tuple[RenderedFile, ...]:
    """Those of `render_node` that come from the plan alone."""
    files = [RenderedFile("run.sh", run_script(plan, node), _SCRIPT_MODE)]
    for name, lines in (("before_start", node.before_start), ("after_stop", node.after_stop)):
        if lines.strip():
            files.append(RenderedFile(f"{name}.sh", hook_script(plan, node, name, lines), _SCRIPT_MODE))
    files.append(RenderedFile("stop.sh", stop_script(plan, node), _SCRIPT_MODE))
    secrets = secrets_script(node)
    if secrets is not None:
        files.append(RenderedFile(SECRETS_FILE, secrets, _DATA_MODE))
    return tuple(files)


def shown_files(plan: Plan, node: NodePlan) -> tuple[RenderedFile, ...]:
    """Those of `render_scripts` that may be shown: they tell a reader what will run."""
    return tuple(file for file in render_scripts(plan, node) if file.name != SECRETS_FILE)


def node_spec(plan: Plan, node: NodePlan, files: Iterable[RenderedFile], nonce: str) -> dict[str, Any]:
    """The spec of docs/agent-protocol.md.

    Args:
        files: what `render_node` gave.
        nonce: what the agent's first line must repeat.
    """
    return {
        "v": SPEC_VERSION,
        "nonce": nonce,
        "run_id": plan.run_id,
        "name": plan.name,
        "node_rank": node.node_rank,
        "host": node.host,
        "node_dir": node.node_dir,
        "run_dir": node.run_dir,
        "cwd": node.cwd,
        "mkdirs": list(node.mkdirs),
        "ranks": [{"rank": r.rank, "local_rank": r.local_rank} for r in node.ranks],
        # Under a script the leader is bash, which only handles a signal when its foreground child has ended.
        "group_signal": node.argv is None,
        "before_start": bool(node.before_start.strip()),
        "after_stop": bool(node.after_stop.strip()),
        "stop_grace_s": plan.stop_grace_s,
        "files": {f.name: {"text": f.text, "mode": f.mode} for f in files},
    }


def stored_spec(plan: Plan, node: NodePlan) -> dict[str, Any]:
    """The spec as it is kept in the node's folder: node.json."""
    spec = node_spec(plan, node, (), "")
    return {key: value for key, value in sorted(spec.items()) if key not in ("files", "nonce")}


@cache
def _source(name: str) -> str:
    return (_NODE_SOURCES / name).read_text(encoding="utf-8")
