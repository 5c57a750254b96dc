"""stop.sh: stops everything of the run on its node, by hand, without trainui."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.render.shell import comment, quote

if TYPE_CHECKING:
    from engine.plan import NodePlan, Plan

_SCRIPT = """\
#!/usr/bin/env bash
# Stops everything of {name} on node {node_rank}, {host} (run {run_id}), as trainui would.
# By hand: bash stop.sh [--kill]. Exit status 0: nothing is left; 1: it says what is.

here=${{BASH_SOURCE[0]%/*}}
case ${{BASH_SOURCE[0]}} in
  /*) ;;
  */*) here=$PWD/$here ;;
  *) here=$PWD ;;
esac
python={python}
if ! command -v -- "$python" >/dev/null; then
  printf 'stop.sh: no %s on PATH (%s); set python=... in this script to a Python 3.8 or newer\\n' "$python" "$PATH" >&2
  exit 69
fi
cd -- "$here" || exit 69
exec -- "$python" -I -S "$here/agent.py" stop "$@"
"""


def stop_script(plan: Plan, node: NodePlan) -> str:
    """The text of stop.sh. It keeps to its own folder, so a copied or moved run still stops itself only."""
    return _SCRIPT.format(
        name=comment(plan.name),
        node_rank=node.node_rank,
        host=comment(node.host),
        run_id=comment(plan.run_id),
        python=quote(node.agent_python),
    )
