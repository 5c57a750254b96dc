"""The command line of `python -m torch.distributed.run` around the user's command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import PlanError
from engine.render.shell import quote

if TYPE_CHECKING:
    from engine.plan import NodePlan, Plan

_OPTION = re.compile(r"[a-z][a-z0-9_-]*\Z")
INTERPRETER = re.compile(r"(?:.*/)?(?:python|pypy)[0-9.]*\Z")
# What follows from the plan. Two truths about how many processes there are would give ranks the wrong numbers.
_OURS = {
    "nnodes": "cluster.nnodes",
    "nproc-per-node": "cluster.nproc_per_node",
    "node-rank": "nothing: the plan has it",
}


def torchrun_words(options: Mapping[str, Any]) -> tuple[str, ...]:
    """`task.torchrun` as command line words: `{max_restarts: 3, no_python: true}` -> `--max-restarts 3 --no-python`.

    Raises:
        PlanError: an option that is no option, or that the plan decides.
    """
    words: list[str] = []
    for key, value in options.items():
        option = str(key).lower().replace("_", "-")
        if not _OPTION.match(option):
            raise PlanError(f'task.torchrun: "{key}" is not an option of torchrun', "write it as in max_restarts: 3")
        if option in _OURS:
            raise PlanError(f"task.torchrun.{key} comes from the plan", f"set {_OURS[option]}")
        if value is None or value is False:
            continue
        words.append(f"--{option}")
        if value is not True:
            if not isinstance(value, str | int | float):
                raise PlanError(f"task.torchrun.{key} must be a number, a text, true or false")
            words.append(str(value))
    return tuple(words)


def torchrun_command(plan: Plan, node: NodePlan) -> list[str]:
    """The whole command, as words of bash source (already quoted).

    The user's command loses its interpreter, because torchrun starts the script with the one that runs itself;
    an interpreter with options of its own is kept, since torchrun would forget them.
    """
    assert node.argv is not None
    assert node.torchrun is not None
    interpreter, target = split_command(node.argv)
    options: list[tuple[str, str]] = [
        ("--nnodes", str(plan.nnodes)),
        ("--nproc-per-node", str(node.local_world_size)),
        ("--node-rank", str(node.node_rank)),
    ]
    if "--standalone" not in node.torchrun:
        options += [
            ("--rdzv-backend", "c10d"),
            ("--rdzv-endpoint", '"$MASTER_ADDR:$MASTER_PORT"'),
            ("--rdzv-id", '"$TRAINUI_RUN_ID-$TRAINUI_ATTEMPT"'),
        ]
        if _plan_has_the_master(plan, node):
            options.append(("--rdzv-conf", f"is_host={'true' if node.node_rank == 0 else 'false'}"))
    words = [quote(interpreter), "-m", "torch.distributed.run"]
    for option, value in options:
        if option not in node.torchrun:
            words += [option, value]
    words += [quote(word) for word in node.torchrun]
    return words + [quote(word) for word in target]


def _plan_has_the_master(plan: Plan, node: NodePlan) -> bool:
    """True where the first node is to hold the rendezvous' store, and torchrun need not guess who does.

    It guesses by its host name: an alias, or an address that a router translates, fits no node, and all would wait.
    """
    chosen = {"--rdzv-backend", "--rdzv-endpoint"}.intersection(node.torchrun or ())
    return plan.nnodes > 1 and not chosen and "MASTER_ADDR" not in {**node.env, **node.env_expand}


def split_command(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The interpreter that runs torchrun, and what torchrun is told to run."""
    if not INTERPRETER.match(argv[0]):
        return "python", ["--no-python", *argv]
    rest = list(argv[1:])
    while rest[:1] == ["-u"]:
        del rest[0]  # torchrun gives it to every process
    if rest[:1] == ["-m"] and len(rest) > 1:
        return argv[0], ["--module", *rest[1:]]
    if not rest or rest[0].startswith("-"):
        return argv[0], ["--no-python", *argv]
    return argv[0], rest
