"""Which devices a node's ranks may use, and how many ranks that makes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.config.host_entry import some
from engine.errors import PlanError

# Variable -> the maker whose runtime reads it. HIP before ROCR: HIP's numbers count within what ROCR leaves
# visible, so where both are set it is HIP's that may be narrowed on its own.
VISIBLE_DEVICES: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": "nvidia",
    "HIP_VISIBLE_DEVICES": "amd",
    "ROCR_VISIBLE_DEVICES": "amd",
    "ASCEND_RT_VISIBLE_DEVICES": "ascend",
    "MUSA_VISIBLE_DEVICES": "mthreads",
    "MLU_VISIBLE_DEVICES": "cambricon",
    "MACA_VISIBLE_DEVICES": "metax",
}
# The CUDA runtime stops reading at the first entry that is no device, and these are the usual ways to say "none".
_NOTHING = frozenset({"", "-1", "nodevfiles", "none", "void"})


@dataclass(frozen=True, slots=True)
class Pool:
    """The devices of a node.

    Attributes:
        variable: the variable that is narrowed for each rank; None: nothing is.
        devices: indices or UUIDs, in order; None: not known, there may be none.
        origin: where `devices` comes from, in words, for messages.
        hidden: a variable says that no device may be used.
        limits: a number of ranks above `len(devices)` is a mistake.
        warnings: what the user should know about the choice.
    """

    variable: str | None
    devices: tuple[str, ...] | None
    origin: str
    hidden: bool = False
    limits: bool = True
    warnings: tuple[str, ...] = ()


def parse_devices(value: str) -> tuple[str, ...]:
    """The entries of a `*_VISIBLE_DEVICES` value, up to the first that means "none"."""
    devices: list[str] = []
    for entry in value.split(","):
        word = entry.strip()
        if word.lower() in _NOTHING:
            break
        devices.append(word)
    return tuple(devices)


def find_pool(
    binding: str, env: Mapping[str, str], inherited: Mapping[str, str], gpus: tuple[str, ...], vendor: str
) -> Pool:
    """Decide which variable is narrowed, and from which devices.

    Args:
        binding: `cluster.gpu_binding`: auto, none, or a variable's name.
        env: the config's `env`; it wins over `inherited`.
        inherited: the `*_VISIBLE_DEVICES` of the environment that ranks inherit.
        gpus: what probing found.
        vendor: whose GPUs these are, or "".
    """
    named = binding not in ("auto", "none")
    candidates = [binding] if named else _set_variables(env, inherited, vendor)
    for variable in candidates:
        for origin, values in (("env", env), ("the environment", inherited)):
            if variable in values:
                return _listed(variable, values[variable], origin, binding, candidates, gpus, vendor)
    narrowed = None if binding == "none" else binding if named else _default_variable(vendor)
    if gpus and (not named or VISIBLE_DEVICES.get(binding, vendor) == vendor):
        return Pool(narrowed, gpus, "the GPUs found", limits=binding != "none")
    return Pool(binding if named else None, None, "nothing")


def _set_variables(env: Mapping[str, str], inherited: Mapping[str, str], vendor: str) -> list[str]:
    """The known variables that are set: this machine's maker's first, the config's before inherited ones.

    Slurm sets those of all makers at once: inherited ones that nobody here reads are passed over.
    """
    read_here = {name for name, maker in VISIBLE_DEVICES.items() if not vendor or maker == vendor}
    if vendor == "amd":
        read_here.add("CUDA_VISIBLE_DEVICES")  # HIP reads it too
    names = [name for name in VISIBLE_DEVICES if name in env or (name in inherited and name in read_here)]
    return sorted(names, key=lambda name: (VISIBLE_DEVICES[name] != vendor if vendor else False, name not in env))


def _default_variable(vendor: str) -> str | None:
    return next((name for name, maker in VISIBLE_DEVICES.items() if maker == vendor), None)


def _listed(
    variable: str, value: str, origin: str, binding: str, candidates: list[str], gpus: tuple[str, ...], vendor: str
) -> Pool:
    devices = parse_devices(value)
    warnings: list[str] = []
    source = f"{variable} of {origin}"
    if len(candidates) > 1 and binding == "auto" and devices:
        others = ", ".join(candidates[1:])
        warnings.append(
            f"{variable} is narrowed for each rank, {others} is left as it is; cluster.gpu_binding names another one"
        )
    if gpus and VISIBLE_DEVICES.get(variable) == vendor:
        beyond = [d for d in devices if d.isdecimal() and int(d) >= len(gpus)]
        if beyond:
            warnings.append(f"{source} names device {', '.join(beyond)}, but this machine has {len(gpus)}")
    return Pool(
        variable if devices and binding != "none" else None,
        devices,
        source,
        hidden=not devices,
        limits=bool(devices) and binding != "none",
        warnings=tuple(warnings),
    )


def count_processes(
    wanted: int | str | None, pool: Pool, hosts: Sequence[str], slots: int | None = None
) -> tuple[int, tuple[str, ...]]:
    """How many processes a node runs, and what to warn of: the least of what was asked for and what there is.

    Args:
        wanted: `cluster.nproc_per_node`: a number, "auto", or None.
        hosts: the nodes of which all this is true, for messages.
        slots: what the hostfile grants; None: it does not say.

    Raises:
        PlanError: "auto", and there is no device.
    """
    available = len(pool.devices or ())
    if isinstance(wanted, str):
        _check_found(pool, hosts)
        return min(available, slots or available), ()
    if wanted is None and slots is None:
        return available or 1, ()
    asked = f"slots={slots}" if wanted is None else f"cluster.nproc_per_node is {wanted}"
    count = min(n for n in (wanted, slots) if n is not None)
    have = "has" if len(hosts) == 1 else "have"
    if pool.limits and pool.devices and count > available:
        text = f"{asked}, but {some(hosts)} {have} {available} ({pool.origin}): {available} run"
        hint = "cluster.gpu_binding: none lets several ranks share a device"
        return available, (f"{text}; {hint}",)
    if wanted is not None and count < wanted:
        return count, (f"{asked}, but {some(hosts)} {have} slots={slots}: {count} run",)
    return count, ()


def _check_found(pool: Pool, hosts: Sequence[str]) -> None:
    if pool.hidden:
        raise PlanError(
            f"cluster.nproc_per_node: auto finds no GPU on {some(hosts)}: {pool.origin} hides them all",
            "write a number, or let it show some",
        )
    if not pool.devices:
        raise PlanError(
            f"cluster.nproc_per_node: auto finds no GPU on {some(hosts)}",
            "write a number, or see why nvidia-smi lists none",
        )


def assign(pool: Pool, count: int) -> tuple[str | None, ...]:
    """The device of each local rank; None where nothing is narrowed."""
    if pool.variable is None:
        return (None,) * count
    if pool.devices is None:
        # A variable that was asked for by name, for devices that we cannot count.
        return tuple(str(i) for i in range(count))
    return pool.devices[:count]
