"""The text of `--dry-run`: what would run where, and every script, byte for byte. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config.mask import mask_env, mask_text, ordered, secrets_in
from engine.plan import NodePlan, Plan
from engine.render.node_spec import OWN_FILES, render_scripts, shown_files
from engine.render.run_script import SECRETS_FILE
from engine.render.shell import comment, quote
from engine.render.torchrun import torchrun_command
from engine.rundir import RunPaths

_WIDTH = 79


def describe(plan: Plan, paths: RunPaths, secrets: Sequence[str]) -> str:
    """The dry run's text; it ends with a newline.

    Args:
        paths: the run directory, into which the scripts were rendered.
        secrets: values that must not be shown, wherever they occur.
    """
    hidden = ordered([*secrets, *(value for node in plan.nodes for value in secrets_in(node.env))])
    lines = [*_overview(plan, paths)]
    for node in plan.nodes:
        lines += ["", *_node(plan, node, hidden)]
        lines += ["", *_files(plan, node, paths)]
    lines += ["", "Nothing was started. The scripts, as they would run:"]
    for node in plan.nodes:
        for file in shown_files(plan, node):
            title = f"--- {paths.node(node.folder) / file.name} "
            lines += ["", title + "-" * max(3, _WIDTH - len(title)), file.text.removesuffix("\n")]
    return mask_text("\n".join(lines) + "\n", hidden)


def _overview(plan: Plan, paths: RunPaths) -> list[str]:
    processes = f"{plan.world_size} processes" if plan.world_size != 1 else "1 process"
    shape = "one process for each device slot" if plan.mode == "per_gpu" else "one process for each node"
    rows = [
        ("run", f"{plan.name}, {plan.run_id}"),
        ("directory", str(paths.root)),
        ("size", f"{plan.nnodes} node{'s' * (plan.nnodes != 1)}, {processes} ({plan.mode}: {shape})"),
        ("launcher", plan.launcher),
        ("master", f"{plan.master_addr}, port {plan.master_port or 'found free at each start'}"),
        ("a rank fails", _failing(plan)),
        ("stop", f"SIGTERM, SIGKILL after {plan.stop_grace_s:g} s"),
        ("restart", _restarting(plan)),
    ]
    return [*_table(rows), *(f"warning: {text}" for text in plan.warnings)]


def _failing(plan: Plan) -> str:
    if plan.fail_policy == "continue":
        return "the others go on"
    return f"the others have {plan.fail_grace_s:g} s, then the job is stopped"


def _restarting(plan: Plan) -> str:
    if plan.restart_policy == "never":
        return "never"
    times = "once" if plan.restart_max == 1 else f"up to {plan.restart_max} times"
    return f"{plan.restart_policy}, {times}, {plan.restart_backoff_s:g} s after everything is down"


def _node(plan: Plan, node: NodePlan, hidden: Sequence[str]) -> list[str]:
    rows = [("folder", node.cwd)]
    if node.mkdirs:
        rows.append(("made before", ", ".join(node.mkdirs)))
    rows.append(("command", _command(plan, node)))
    if node.activate.strip():
        rows.append(("after", "hooks.activate"))
    lines = [f"node {node.node_rank}: {comment(node.host)}", *_table(rows, "  "), "", *_ranks(plan, node)]
    lines += ["", "  environment, on top of the one trainui was started in:"]
    shown = {**mask_env({name: mask_text(value, hidden) for name, value in node.env.items()})}
    for name, value in shown.items():
        lines.append(f"    {name}={quote(value)}")
    for name, value in mask_env(node.env_expand).items():
        lines.append(f"    {name}={quote(value)} ($NAME expanded on the node)")
    if not node.env and not node.env_expand:
        lines.append("    nothing of the config's")
    return lines


def _command(plan: Plan, node: NodePlan) -> str:
    if node.argv is None:
        count = len((node.script or "").strip().split("\n"))
        return f"task.script, {count} line{'s' * (count != 1)} of bash"
    if node.torchrun is not None:
        return " ".join(torchrun_command(plan, node))
    return " ".join(quote(word) for word in node.argv)


def _ranks(plan: Plan, node: NodePlan) -> list[str]:
    if plan.mode != "per_gpu":
        return [f"  one process; it has {node.local_world_size} of {plan.world_size} slots"]
    head = ("rank", "local rank", node.device_var or "device")
    rows = [(str(r.rank), str(r.local_rank), r.device if r.device is not None else "not bound") for r in node.ranks]
    return [f"  {a:>6}  {b:>10}  {c}" for a, b, c in (head, *rows)]


def _files(plan: Plan, node: NodePlan, paths: RunPaths) -> list[str]:
    folder = paths.node(node.folder)
    lines = [f"  scripts in {folder}:"]
    for file in render_scripts(plan, node):
        hidden = file.name == SECRETS_FILE
        lines.append(f"    {file.name}" + ("  (values that look like secrets; not shown)" if hidden else ""))
    lines += [f"    {name}  (trainui's own; not shown)" for name in OWN_FILES]
    return lines


def _table(rows: Sequence[tuple[str, str]], indent: str = "") -> list[str]:
    return [f"{indent}{name:<12}  {text}" for name, text in rows]
