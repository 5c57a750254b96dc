"""run.sh and the hooks' scripts: all that runs on a node as the user's own doing, readable and runnable by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.config.mask import MIN_LENGTH, is_secret_name, secrets_in
from engine.render.shell import comment, expand, quote
from engine.render.torchrun import torchrun_command

if TYPE_CHECKING:
    from engine.plan import NodePlan, Plan

SECRETS_FILE = "secrets.sh"
# Where neither the config nor the caller names a port: torch's own default.
DEFAULT_MASTER_PORT = 29500
_MAX_LINE = 100

_RULE = "-" * 40

# The status 126 ("found, but cannot be run") keeps these apart from anything that the command itself may say.
_DIE = """\
trainui_die() {
  printf 'trainui: %s\\n' "$1" >&2
  exit 126
}
"""

_HERE = """\
trainui_here=${BASH_SOURCE[0]%/*}
case ${BASH_SOURCE[0]} in
  /*) ;;
  */*) trainui_here=$PWD/$trainui_here ;;
  *) trainui_here=$PWD ;;
esac
TRAINUI_NODE_DIR=${TRAINUI_NODE_DIR:-$trainui_here}
"""

_LOCAL_RANK = """\
trainui_local_rank=${{LOCAL_RANK:-0}}
case $trainui_local_rank in
  '' | *[!0-9]*) trainui_die "LOCAL_RANK is not a number: $trainui_local_rank" ;;
esac
trainui_local_rank=$((10#$trainui_local_rank))
if [ "$trainui_local_rank" -ge {count} ]; then
  trainui_die "there is no local rank $trainui_local_rank on this node; the last one is {last}"
fi
"""

_ACTIVATE = """\
# shellcheck disable=SC2317 # called by the trap
trainui_activate_failed() {{
  [ "${{#BASH_SOURCE[@]}}" -gt 2 ] || # a script that was sourced may try things
    trainui_die "hooks.activate failed with status $1 at: $2 (if that is fine, write || true behind it)"
}}
trap 'trainui_activate_failed "$?" "$BASH_COMMAND"' ERR
# hooks.activate {rule}
{lines}
# end of hooks.activate {rule}
trap - ERR
set +a # a `set -a` that was left on would export our own variables
"""

_EXEC_TAIL = """\
if [ "$trainui_status" -eq 127 ]; then
  printf 'trainui: command not found: %s (folder: %s; PATH: %s)\\n' "$trainui_program" "$PWD" "${PATH-}" >&2
else
  printf 'trainui: the command cannot be run: %s (folder: %s)\\n' "$trainui_program" "$PWD" >&2
fi
exit "$trainui_status"
"""


def run_script(plan: Plan, node: NodePlan) -> str:
    """run.sh: one rank (in `per_node` mode: the node's one process), from its numbers to its command.

    It takes `LOCAL_RANK`, `TRAINUI_ATTEMPT`, `MASTER_PORT` and `TRAINUI_NODE_DIR` from the environment and derives
    all other numbers, so that the same text serves every rank and every attempt.
    """
    per_gpu = plan.mode == "per_gpu"
    by_hand = "LOCAL_RANK=1 bash run.sh" if per_gpu and len(node.ranks) > 1 else "bash run.sh"
    what = "one rank of" if per_gpu else "the node's process of"
    parts = [
        _header(plan, node, f"Runs {what}", by_hand),
        _DIE,
        _HERE,
        _LOCAL_RANK.format(count=len(node.ranks), last=len(node.ranks) - 1) if per_gpu else "",
        _attempt_lines(),
        _numbers(plan, node),
        _defaults(plan),
        _change_folder(node),
        _activate(node),
        _environment(node),
        "# The rank's own numbers, whatever the lines above have set.\ntrainui_numbers\n",
        _devices(node),
        'export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$TRAINUI_NODE_DIR/lib"\n',
        _command(plan, node),
    ]
    return "\n".join(part for part in parts if part)


def hook_script(plan: Plan, node: NodePlan, name: str, lines: str) -> str:
    """before_start.sh or after_stop.sh: the hook's lines with the node's part of the environment."""
    parts = [
        _header(plan, node, f"Runs hooks.{name} of", f"bash {name}.sh"),
        _DIE,
        _HERE,
        _attempt_lines(),
        _node_numbers(plan, node),
        _defaults(plan),
        _change_folder(node),
        _environment(node),
        "trainui_numbers\n",
        f"# hooks.{name} {_RULE}\n{_closed(lines)}",
    ]
    return "\n".join(part for part in parts if part)


def secrets_script(node: NodePlan) -> str | None:
    """secrets.sh, sourced by the others: what may not be shown. None where there is nothing of that kind."""
    literal, expanded = _secret_names(node)
    if not literal and not expanded:
        return None
    lines = [
        "# shellcheck shell=bash",
        "# The values of the config's env that look like secrets. Never shown; mode 0600.",
    ]
    for name in literal:
        lines += _export(name, node.env[name])
    for name in expanded:
        lines += _export_expanded(name, node.env_expand[name])
    return "\n".join(lines) + "\n"


def _header(plan: Plan, node: NodePlan, what: str, by_hand: str) -> str:
    return (
        "#!/usr/bin/env bash\n"
        f"# {comment(what)} {comment(plan.name)} on node {node.node_rank}, {comment(node.host)}"
        f" (run {comment(plan.run_id)}).\n"
        f"# Written by trainui. By hand, in the foreground: {by_hand}\n"
    )


def _attempt_lines() -> str:
    return "trainui_attempt=${TRAINUI_ATTEMPT:-0}\ntrainui_node_dir=$TRAINUI_NODE_DIR\n"


def _numbers(plan: Plan, node: NodePlan) -> str:
    """The function that sets them: called before `activate`, which may want them, and again after the user's env."""
    if plan.mode != "per_gpu":
        return _node_numbers(plan, node)
    first = node.ranks[0].rank
    rank = f"$(({first} + trainui_local_rank))" if first else "$trainui_local_rank"
    return _numbers_function(
        plan,
        node,
        [
            f"export RANK={rank}",
            "export GLOBAL_RANK=$RANK",
            "export LOCAL_RANK=$trainui_local_rank",
            f"export NPROCS={plan.world_size}",
        ],
    )


def _node_numbers(plan: Plan, node: NodePlan) -> str:
    return _numbers_function(plan, node, ["unset RANK GLOBAL_RANK LOCAL_RANK NPROCS # those of a rank"])


def _numbers_function(plan: Plan, node: NodePlan, lines: list[str]) -> str:
    lines = [
        *lines,
        f"export WORLD_SIZE={plan.world_size} LOCAL_WORLD_SIZE={node.local_world_size}",
        f"export NODE_RANK={node.node_rank} NNODES={plan.nnodes}",
        f"export GROUP_RANK={node.node_rank} GROUP_WORLD_SIZE={plan.nnodes}",
        f"export TRAINUI_RUN_ID={quote(plan.run_id)}",
        *_export("TRAINUI_RUN_DIR", node.run_dir),
        'export TRAINUI_NODE_DIR="$trainui_node_dir" TRAINUI_ATTEMPT="$trainui_attempt"',
        'export TRAINUI_HEARTBEAT_DIR="$trainui_node_dir/attempt_$trainui_attempt/heartbeat"',
        f"export TRAINUI_HEARTBEAT_INTERVAL_S={plan.heartbeat_interval_s:g}",
        "# The names that FlagScale's publisher reads for the same things.",
        'export FLAGSCALE_GPU_HEARTBEAT_ENABLE=1 FLAGSCALE_GPU_HEARTBEAT_RUN_ID="$TRAINUI_RUN_ID"',
        'export FLAGSCALE_GPU_HEARTBEAT_DIR="$TRAINUI_HEARTBEAT_DIR"',
        'export FLAGSCALE_GPU_HEARTBEAT_INTERVAL_SEC="$TRAINUI_HEARTBEAT_INTERVAL_S"',
    ]
    body = "\n".join(f"  {line}" for line in lines)
    return f"trainui_numbers() {{\n{body}\n}}\ntrainui_numbers\n"


def _defaults(plan: Plan) -> str:
    """What the config's env may replace."""
    port = plan.master_port or DEFAULT_MASTER_PORT
    return (
        f"export MASTER_ADDR={quote(plan.master_addr)}\n"
        f'export MASTER_PORT="${{MASTER_PORT:-{port}}}"\n'
        "export PYTHONUNBUFFERED=1\n"
    )


def _change_folder(node: NodePlan) -> str:
    return (
        "\n".join([*_literal_note([node.cwd]), f"trainui_cwd={quote(node.cwd)}"])
        + '\ncd -- "$trainui_cwd" || trainui_die "the folder of task.cwd cannot be entered: $trainui_cwd"\n'
    )


def _activate(node: NodePlan) -> str:
    if not node.activate.strip():
        return ""
    return _ACTIVATE.format(lines=node.activate.rstrip("\n"), rule=_RULE)


def _environment(node: NodePlan) -> str:
    """The config's env, its secrets, and env_expand: in this order."""
    secret_literal, secret_expanded = _secret_names(node)
    lines: list[str] = []
    for name, value in node.env.items():
        lines += [] if name in secret_literal else _export(name, value)
    if secret_literal or secret_expanded:
        file = f'"$trainui_node_dir/{SECRETS_FILE}"'
        lines += [
            f"# {', '.join(comment(name) for name in (*secret_literal, *secret_expanded))}:"
            f" in {SECRETS_FILE}, which is not shown.",
            f'[ -r {file} ] || trainui_die "{SECRETS_FILE} cannot be read in $trainui_node_dir"',
            "# shellcheck source=/dev/null # written beside this script",
            f". {file}",
        ]
    plain = {name: value for name, value in node.env_expand.items() if name not in secret_expanded}
    if plain:
        lines.append("# env_expand: $NAME is replaced, no command is run.")
        for name, value in plain.items():
            lines += _export_expanded(name, value)
    return "\n".join(lines) + "\n" if lines else ""


def _secret_names(node: NodePlan) -> tuple[list[str], list[str]]:
    """The names in env and in env_expand whose values may not be shown: by name, or by holding such a value."""
    values = [value for value in secrets_in(node.env) if len(value) >= MIN_LENGTH]

    def secret(name: str, value: str) -> bool:
        return is_secret_name(name) or any(part in value for part in values)

    literal = [name for name, value in node.env.items() if secret(name, value)]
    return literal, [name for name, value in node.env_expand.items() if secret(name, value)]


def _export(name: str, value: str) -> list[str]:
    return [*_literal_note([value]), f"export {name}={quote(value)}"]


def _literal_note(texts: Iterable[str]) -> list[str]:
    """Tell shellcheck, and a reader, that what looks like an expansion or an escape is none."""
    suspects = {"SC2016": r"[$`]", "SC1003": r"\\", "SC2088": r"^~"}
    words = list(texts)
    codes = [code for code, pattern in suspects.items() if any(re.search(pattern, word) for word in words)]
    return [f"# shellcheck disable={','.join(codes)} # meant as it is written"] if codes else []


def _export_expanded(name: str, value: str) -> list[str]:
    before, word = expand(value, f"env_expand.{name}")
    note = _literal_note([value.replace("$", "")])
    return [*before, *note, f"export {name}={word}"]


def _devices(node: NodePlan) -> str:
    if node.device_var is None:
        return ""
    devices = " ".join(quote(rank.device or "") for rank in node.ranks)
    return (
        "# The devices of this node's ranks, by local rank.\n"
        f"trainui_devices=({devices})\n"
        f'export {node.device_var}="${{trainui_devices[trainui_local_rank]}}"\n'
    )


def _command(plan: Plan, node: NodePlan) -> str:
    if node.argv is None:
        return f"# task.script {_RULE}\n{_closed(node.script or '')}"
    words = torchrun_command(plan, node) if node.torchrun is not None else [quote(word) for word in node.argv]
    note = "".join(f"{row}\n" for row in _literal_note(node.argv))
    line = " ".join(["exec", "--", *words])
    if len(line) > _MAX_LINE and len(words) > 1:
        line = " \\\n  ".join([f"exec -- {words[0]}", *_rows(words[1:])])
    return (
        "# Only a failed exec gets past this command; by itself bash would not say where it looked.\n"
        f"shopt -s execfail\ntrainui_status=0\n{note}trainui_program={words[0]}\n{note}{line} || trainui_status=$?\n"
        + _EXEC_TAIL
    )


def _rows(words: list[str]) -> list[str]:
    """One row for each word, but an option's value stays beside it: only for the eye."""
    rows: list[list[str]] = []
    for word in words:
        last = rows[-1] if rows else []
        takes_value = len(last) == 1 and last[0].startswith("-") and "=" not in last[0]
        if takes_value and not word.startswith("-"):
            last.append(word)
        else:
            rows.append([word])
    return [" ".join(row) for row in rows]


def _closed(lines: str) -> str:
    return lines if lines.endswith("\n") else lines + "\n"
