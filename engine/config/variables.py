"""Which environment variables a config may set. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A rank's own numbers (contract, section 5). MASTER_ADDR and MASTER_PORT are not among them: a config may set those.
RANK_NUMBERS = _words(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK GROUP_WORLD_SIZE NNODES GLOBAL_RANK NPROCS"
)

# What bash sets, changes or guards by itself (bash(1), "Shell Variables"): readonly ones make
# `export` fail, the others do not arrive as they were set.
BASH_OWN = _words(
    "_ BASHOPTS BASHPID DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD LINENO OLDPWD OPTIND "
    "PIPESTATUS PPID PWD RANDOM SECONDS SHELLOPTS SHLVL SRANDOM UID"
)
_BASH_PREFIXES = ("BASH_", "COMP_")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def reserved(name: str) -> tuple[str, str] | None:
    """Why a config cannot set this variable, and what to do about it; None where it can."""
    rules: list[tuple[Callable[[str], bool], str, str]] = [
        (
            lambda n: not _NAME.fullmatch(n),
            "cannot be the name of a variable",
            "use letters, digits and `_`, and no digit first",
        ),
        (
            lambda n: n in RANK_NUMBERS or n.startswith("TRAINUI_"),
            "trainui sets this variable for each rank",
            "remove it",
        ),
        (
            lambda n: n in BASH_OWN or n.startswith(_BASH_PREFIXES),
            "bash keeps this variable for itself",
            "rename it, or set it in task.script",
        ),
    ]
    return next(((text, hint) for applies, text, hint in rules if applies(name)), None)
