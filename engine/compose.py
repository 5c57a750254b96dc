"""Where the parts meet: config -> plan -> run directory -> supervisor. The only place that knows every part."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from engine.clock import Clock
from engine.errors import PlanError, RunDirError, RunNotFound
from engine.job.snapshot import Snapshot
from engine.job.state import initial, to_snapshot
from engine.journal import Journal, read_lines, replay
from engine.link.local import LocalLink
from engine.plan import Plan, make_plan
from engine.plan_json import masked_plan_json, plan_from_json, plan_to_json
from engine.render.node_spec import node_spec, render_node, stored_spec
from engine.rundir import (
    RunPaths,
    absolute,
    create_run_dir,
    default_run_root,
    explained,
    list_runs,
    new_run_id,
    os_error_text,
    point_latest,
    write_atomically,
    write_json,
)
from engine.supervisor import Supervisor
from engine.whereabouts import engine_lives, starts_now

if TYPE_CHECKING:
    from engine.preflight import Finding

NOBODY_LOOKS = "no engine is looking after this run; `trainui attach` starts one"
ENGINE_SILENT = "the engine of this run does not answer; this is what it last wrote down"
STARTS_NOW = "this run is being started"
NEVER_STARTED = "this run was rendered (--dry-run) and never started; `trainui restart` starts it"


BY_HAND = "what still runs of it is stopped by `bash stop.sh` in its nodes/ folders"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A config that can be launched: nothing of it is on disk yet."""

    plan: Plan
    config_yaml: str  # resolved, secrets masked
    secrets: tuple[str, ...]
    warnings: tuple[str, ...]
    run_root: Path


def prepare(
    source: str,
    overrides: Sequence[str],
    *,
    run_root: Path | None,
    name: str | None,
    environ: Mapping[str, str],
    cwd: Path,
    stdin: TextIO | None,
) -> Prepared:
    """Read, check, probe and plan.

    Args:
        source: the config's path, or `-` for `stdin`.
        run_root: overrides the config's and the environment's.
        name: overrides the config's.

    Raises:
        ConfigError, PlanError: what is wrong with it.
    """
    from engine.config.load import load_config
    from engine.probe import probe_local

    words = [*overrides, *([f"name={name}"] if name else [])]
    loaded = load_config(source, words, environ=environ, stdin=stdin)
    config = loaded.config
    root = run_root or (Path(config.run_root) if config.run_root else default_run_root(environ))
    root = absolute(root, cwd)
    assert config.name is not None  # the loader fills it in
    for path in (root, cwd):
        if not is_text(str(path)):
            raise PlanError(
                f"{str(path)!r} is not UTF-8, and the run's files are", "rename that folder, or use another"
            )
    run_id = new_run_id(datetime.now().astimezone())
    facts = probe_local(environ, str(cwd))
    plan = make_plan(config, (facts,), run_id=run_id, run_dir=str(root / config.name / run_id))
    plan = replace(plan, warnings=(*loaded.warnings, *plan.warnings))
    return Prepared(plan, loaded.resolved_yaml, loaded.secrets, plan.warnings, root)


def is_text(text: str) -> bool:
    """False where a path or the like holds bytes that are no UTF-8 (surrogates, as Python keeps them)."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def check(prepared: Prepared) -> tuple[Finding, ...]:
    """The preflight of every node, without starting anything."""
    from engine.preflight import check_local

    return check_local(prepared.plan)


def write_run(prepared: Prepared, mark: Callable[[RunPaths], None] | None = None) -> RunPaths:
    """Make the run directory with everything in it that exists before the start.

    Args:
        mark: called before the run can be found by others.

    Raises:
        RunDirError: it cannot be made or written; nothing of it is left.
    """
    plan = prepared.plan
    paths = create_run_dir(prepared.run_root, plan.name, plan.run_id)
    try:
        _write_files(prepared, paths)
        if mark is not None:
            mark(paths)
        # Last: a directory with a plan.json is a run.
        write_json(paths.plan, masked_plan_json(prepared.plan, prepared.secrets))
    except BaseException:
        discard_run(paths)
        raise
    return paths


def _write_files(prepared: Prepared, paths: RunPaths) -> None:
    plan = prepared.plan
    write_atomically(paths.config, prepared.config_yaml)
    for node in plan.nodes:
        folder = paths.node(node.folder)
        with explained(folder):
            folder.mkdir(mode=0o700, parents=True)
        for file in render_node(plan, node):
            target = folder / file.name
            with explained(target):
                target.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(target, file.text, file.mode)
        # The agent writes the same; here it is for who runs the scripts by hand without ever starting it.
        write_json(folder / "node.json", stored_spec(plan, node))
    write_json(paths.launch, plan_to_json(plan))


def discard_run(paths: RunPaths) -> None:
    """Remove a run that never started, and the `latest` link where it points at it."""
    link = paths.root.parent / "latest"
    shutil.rmtree(paths.root, ignore_errors=True)
    with suppress(OSError):
        if link.exists():
            return  # a run that began meanwhile
        link.unlink(missing_ok=True)
        older = [run.root for run in list_runs(paths.root.parent.parent) if run.root.parent == paths.root.parent]
        if older:
            point_latest(older[0])
        else:
            paths.root.parent.rmdir()
            paths.root.parent.parent.rmdir()


def describe(prepared: Prepared, paths: RunPaths) -> str:
    """The text of `--dry-run`."""
    from engine.dryrun import describe as describe_plan

    return describe_plan(prepared.plan, paths, prepared.secrets)


def load_plan(paths: RunPaths) -> Plan:
    """The plan that a run was launched with.

    Raises:
        RunNotFound: the folder holds none that can be read.
    """
    try:
        return plan_from_json(json.loads(paths.launch.read_text(encoding="utf-8")))
    except OSError as err:
        raise RunNotFound(f"{paths.launch} cannot be read: {os_error_text(err)}", BY_HAND) from err
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise RunNotFound(f"{paths.launch} is not a launch plan of this version ({err})", BY_HAND) from err


def refuse_moved(plan: Plan, paths: RunPaths) -> None:
    """Keep a run from going on in a folder it was not made for: its nodes would write where it was before.

    Raises:
        RunDirError: the folder is another one than when the run was launched.
    """
    planned = Path(plan.run_dir)
    with suppress(OSError):
        if planned.samefile(paths.root):
            return
    raise RunDirError(
        f"{paths.root} was moved: its scripts and its nodes know it as {planned}",
        "move it back, or launch its config again",
    )


def replayed(paths: RunPaths) -> Snapshot:
    """The run as its journal tells it, for a run without an engine and without a summary.

    Raises:
        RunNotFound: the folder does not hold a run.
    """
    plan = load_plan(paths)
    state = initial(plan)
    if not paths.events.is_file():
        return to_snapshot(state, (*plan.warnings, STARTS_NOW if starts_now(paths) else NEVER_STARTED))
    state = replay(state, read_lines(paths.events))
    looks = ENGINE_SILENT if engine_lives(paths) else NOBODY_LOOKS
    findings = plan.warnings if state.phase.final else (*plan.warnings, looks)
    return to_snapshot(state, findings)


def agent_source() -> bytes:
    """The agent's source, as it is sent to a node."""
    return (Path(__file__).parent / "node" / "agent.py").read_bytes()


def build_supervisor(paths: RunPaths, clock: Clock) -> Supervisor:
    """The supervisor of a run, with the state that its journal tells.

    Raises:
        RunNotFound: the folder does not hold a run.
        RunDirError: the journal cannot be opened.
    """
    plan = load_plan(paths)
    refuse_moved(plan, paths)
    state = initial(plan)
    if paths.events.is_file():
        state = replay(state, read_lines(paths.events))
    with explained(paths.events):
        journal = Journal(paths.events)
    nodes = {node.node_rank: node for node in plan.nodes}

    def make_spec(node_rank: int) -> dict[str, Any]:
        node = nodes[node_rank]
        return node_spec(plan, node, render_node(plan, node), secrets.token_hex(8))

    links = {n.node_rank: LocalLink(n.agent_python, sys.stderr.buffer) for n in plan.nodes}
    return Supervisor(plan, paths, state, journal, clock, links, agent_source(), make_spec)
