"""A plan as JSON: launch.json (whole) and plan.json (fit to be shown)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from engine.config.mask import mask_data
from engine.plan import NodePlan, Plan, RankPlan

_NODE_TUPLES = ("argv", "torchrun", "mkdirs")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The whole plan, secrets included: only for a file of mode 0600."""
    return asdict(plan)


def plan_from_json(data: dict[str, Any]) -> Plan:
    """What `plan_to_json` gave, also after a way through JSON text; equal to the plan it came from.

    Raises:
        KeyError, TypeError, ValueError: it is no plan of this version.
    """
    values = _only(data, Plan)
    values["nodes"] = tuple(_node_from_json(node) for node in data["nodes"])
    values["warnings"] = tuple(data["warnings"])
    return Plan(**values)


def _node_from_json(data: dict[str, Any]) -> NodePlan:
    values = _only(data, NodePlan)
    values["ranks"] = tuple(RankPlan(**_only(rank, RankPlan)) for rank in data["ranks"])
    for name in _NODE_TUPLES:
        values[name] = None if data[name] is None else tuple(data[name])
    return NodePlan(**values)


def _only(data: dict[str, Any], kind: type) -> dict[str, Any]:
    """The fields of `kind` in `data`; a field that a later version adds is passed over."""
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in data.items() if name in names}


def masked_plan_json(plan: Plan, secrets: Sequence[str]) -> dict[str, Any]:
    """The plan with every secret replaced: by the name of its variable, and wherever one of `secrets` occurs."""
    return mask_data(plan_to_json(plan), secrets)
