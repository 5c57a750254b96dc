"""What can be known to go wrong before anything is started: every check, all findings at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.plan import Plan

OK, WARN, FAIL = "ok", "warn", "fail"
_WORST_FIRST = {FAIL: 0, WARN: 1, OK: 2}
_COLOURS = {FAIL: "31", WARN: "33", OK: "32"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        level: ok | warn | fail; a `fail` keeps the run from starting.
        what: what was looked at, in a word or two.
        text: what was found.
        hint: what to do about it, or "".
    """

    level: str
    host: str
    what: str
    text: str
    hint: str = ""


def check_local(plan: Plan, environ: Mapping[str, str] | None = None) -> tuple[Finding, ...]:
    """Check this machine for `launcher: local`; takes a few process starts, at most some seconds.

    Args:
        environ: what the ranks will inherit; None: this process's.
    """
    from engine.preflight_checks import check_here

    env = dict(os.environ if environ is None else environ)
    found: list[Finding] = []
    for node in plan.nodes:
        found += check_here(plan, node, env)
    return worst_first(found)


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Failures, then warnings, then what is well; otherwise as they came."""
    return tuple(sorted(findings, key=lambda f: _WORST_FIRST.get(f.level, 0)))


def failed(findings: Sequence[Finding]) -> bool:
    """True where the run must not be started."""
    return any(f.level == FAIL for f in findings)


def format_findings(findings: Sequence[Finding], color: bool) -> str:
    """A table, worst first; ends with a newline unless it is empty."""
    rows = worst_first(findings)
    host_width = max((len(f.host) for f in rows), default=0)
    what_width = max((len(f.what) for f in rows), default=0)
    lines: list[str] = []
    for finding in rows:
        level = f"{finding.level:<4}"
        if color:
            level = f"\x1b[{_COLOURS.get(finding.level, '0')}m{level}\x1b[0m"
        lines.append(f"{level}  {finding.host:<{host_width}}  {finding.what:<{what_width}}  {finding.text}")
        if finding.hint:
            lines.append(" " * (4 + 2 + host_width + 2 + what_width + 2) + finding.hint)
    return "".join(line + "\n" for line in lines)
