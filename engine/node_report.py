"""What a node's probe found, as values: parsed from its frames, read by the preflight and the plan. Pure.

A frame may come from a machine that is not as it should be: what is missing or of another type becomes "nothing".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from engine.plan import NodeFacts


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Memory in MiB; None where it is not told."""

    index: str
    uuid: str = ""
    name: str = ""
    memory_mib: int | None = None
    used_mib: int | None = None


@dataclass(frozen=True, slots=True)
class GpuUser:
    """A process on a GPU. `gpu`: its index, `user`: "" where they cannot be told (another container's)."""

    pid: int
    gpu: str = ""
    user: str = ""
    command: str = ""
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class OtherAgent:
    """An agent that runs there. `run_id`: "" where it is another user's."""

    pid: int
    user: str
    run_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is so on a node whatever is going to be started.

    Attributes:
        hostname: as the machine calls itself.
        python: version of the Python that runs the agent, at `executable`.
        path: PATH of a non-login shell there, which the ranks inherit.
        bash: where bash is, or "".
        visible: the `*_VISIBLE_DEVICES` of the environment that ranks inherit.
        net: the network namespace; with boot id and machine id, it tells one machine by two names.
        kills_user_processes: logind ends what this user left when the last session closes.
        gpu_faults: why the GPUs are not known well, sentences.
    """

    hostname: str = ""
    user: str = ""
    uid: int = -1
    home: str = ""
    shell: str = ""
    python: tuple[int, ...] = ()
    executable: str = ""
    path: str = ""
    bash: str = ""
    visible: Mapping[str, str] = field(default_factory=dict[str, str])
    boot_id: str = ""
    machine_id: str = ""
    net: str = ""
    kills_user_processes: bool = False
    gpu_vendor: str = ""
    gpus: tuple[Gpu, ...] = ()
    gpu_users: tuple[GpuUser, ...] = ()
    gpu_faults: tuple[str, ...] = ()
    agents: tuple[OtherAgent, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """Where a program is (`path`, "" for nowhere on `search`), and why it cannot be run ("" for no reason)."""

    path: str
    fault: str = ""
    search: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """The folder for the run's files, or the nearest above it. Numbers are None where the file system tells none."""

    at: str = ""
    fault: str = ""
    full: bool = False
    free_bytes: int | None = None
    free_files: int | None = None


@dataclass(frozen=True, slots=True)
class Looked:
    """What a plan's node will find. Values are faults, "" where there is none; names are the plan's."""

    cwd: str = ""
    programs: Mapping[str, Program] = field(default_factory=dict[str, Program])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    mkdirs: Mapping[str, str] = field(default_factory=dict[str, str])
    bash: Mapping[str, str] = field(default_factory=dict[str, str])
    room: Room = field(default_factory=Room)
    torch: bool | None = None  # None: not asked, or no answer


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a node's clock is ahead of ours (seconds), give or take `error_s`."""

    offset_s: float
    error_s: float


@dataclass(frozen=True, slots=True)
class Reach:
    """How a connection to the master's listener went.

    Attributes:
        result: ok | unresolved | refused | timeout | unreachable | foreign | error.
        addresses: what the master's name means there.
        address: the one that was reached, or tried last.
    """

    result: str
    addresses: tuple[str, ...] = ()
    address: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """All that was found out about one node; what could not be is None.

    Attributes:
        host: as the user names it.
        fault, hint: why the node, or an answer of it, is missing; "" where nothing is.
        port_fault: on the master, why a chosen `cluster.master_port` cannot be had; "" where it can; None: not asked.
    """

    host: str
    fault: str = ""
    hint: str = ""
    machine: Machine | None = None
    looked: Looked | None = None
    clock: Offset | None = None
    reach: Reach | None = None
    port_fault: str | None = None


def node_facts(host: str, machine: Machine, cwd: str) -> NodeFacts:
    """What planning needs of a node.

    Args:
        host: as the user names it.
        cwd: where trainui was started, absolute; a relative `task.cwd` starts there on every node.
    """
    return NodeFacts(
        host=host,
        cwd=cwd,
        gpus=tuple(gpu.index for gpu in machine.gpus),
        gpu_vendor=machine.gpu_vendor if machine.gpus else "",
        visible=dict(machine.visible),
        home=machine.home,
    )


def parse_machine(facts: Mapping[str, Any]) -> Machine:
    """The probe's `facts` frame."""
    return Machine(
        hostname=_text(facts.get("host")),
        user=_text(facts.get("user")),
        uid=_int(facts.get("uid"), -1),
        home=_text(facts.get("home")),
        shell=_text(facts.get("shell")),
        python=tuple(_int(part) for part in _list(facts.get("python"))),
        executable=_text(facts.get("executable")),
        path=_text(facts.get("path")),
        bash=_text(facts.get("bash")),
        visible=_texts(facts.get("visible")),
        boot_id=_text(facts.get("boot_id")),
        machine_id=_text(facts.get("machine_id")),
        net=_text(facts.get("net")),
        kills_user_processes=facts.get("kills_user_processes") is True,
        gpu_vendor=_text(facts.get("gpu_vendor")),
        gpus=tuple(_gpu(_object(item)) for item in _list(facts.get("gpus"))),
        gpu_users=tuple(_gpu_user(_object(item)) for item in _list(facts.get("gpu_users"))),
        gpu_faults=tuple(_text(item) for item in _list(facts.get("gpu_faults"))),
        agents=tuple(_agent(_object(item)) for item in _list(facts.get("agents"))),
    )


def parse_looked(answer: Mapping[str, Any]) -> Looked:
    """The probe's answer to `check`."""
    room = _object(answer.get("room"))
    torch = answer.get("torch")
    return Looked(
        cwd=_text(answer.get("cwd")),
        programs={
            name: Program(*(_text(_object(item).get(key)) for key in ("path", "fault", "search")))
            for name, item in _object(answer.get("programs")).items()
        },
        files=_texts(answer.get("files")),
        mkdirs=_texts(answer.get("mkdirs")),
        bash=_texts(answer.get("bash")),
        room=Room(
            at=_text(room.get("at")),
            fault=_text(room.get("fault")),
            full=room.get("full") is True,
            free_bytes=_whole(room.get("free_bytes")),
            free_files=_whole(room.get("free_files")),
        ),
        torch=torch if isinstance(torch, bool) else None,
    )


def parse_reach(answer: Mapping[str, Any]) -> Reach:
    """The probe's answer to `reach`."""
    return Reach(
        result=_text(answer.get("result")) or "error",
        addresses=tuple(_text(item) for item in _list(answer.get("addresses"))),
        address=_text(answer.get("address")),
        error=_text(answer.get("error")),
    )


def _gpu(item: Mapping[str, Any]) -> Gpu:
    return Gpu(
        index=_text(item.get("index")),
        uuid=_text(item.get("uuid")),
        name=_text(item.get("name")),
        memory_mib=_whole(item.get("memory_mib")),
        used_mib=_whole(item.get("used_mib")),
    )


def _gpu_user(item: Mapping[str, Any]) -> GpuUser:
    return GpuUser(
        pid=_int(item.get("pid")),
        gpu=_text(item.get("gpu")),
        user=_text(item.get("user")),
        command=_text(item.get("command")),
        memory_mib=_whole(item.get("memory_mib")),
    )


def _agent(item: Mapping[str, Any]) -> OtherAgent:
    return OtherAgent(
        pid=_int(item.get("pid")),
        user=_text(item.get("user")),
        run_id=_text(item.get("run_id")),
        name=_text(item.get("name")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _int(value: object, default: int = 0) -> int:
    whole = _whole(value)
    return default if whole is None else whole


def _list(value: object) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _object(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _texts(value: object) -> dict[str, str]:
    return {key: item for key, item in _object(value).items() if isinstance(item, str)}
