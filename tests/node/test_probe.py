"""The probe, started as a link starts it: what it tells of a machine, and that it neither hangs nor leaves a mark."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import LinkError
from engine.link.base import BOOTSTRAP, bootstrap_input
from engine.link.local import LocalLink
from engine.node import probe as look
from engine.node_report import Gpu, Machine, OtherAgent, parse_looked, parse_machine, parse_reach
from engine.probe_nodes import NodeProbe

SOURCE = Path(look.__file__).read_bytes()
# So that a test of what hangs takes no 5 s.
HASTY = SOURCE.replace(b"TOOL_TIMEOUT_S = 5.0", b"TOOL_TIMEOUT_S = 0.5")
SMI = """case "$1" in
--query-gpu=*) printf '%s\\n' {gpus};;
--query-compute-apps=*) printf '%s\\n' {apps};;
esac"""


def tool(folder: Path, name: str, lines: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
    (folder / name).chmod(0o755)


def nvidia_smi(folder: Path, gpus: list[str], apps: list[str]) -> None:
    def quoted(lines: list[str]) -> str:
        return " ".join(f"'{line}'" for line in lines) or "''"

    tool(folder, "nvidia-smi", SMI.format(gpus=quoted(gpus), apps=quoted(apps)))


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@contextlib.asynccontextmanager
async def opened(source: bytes = SOURCE, host: str = "node1") -> AsyncIterator[NodeProbe]:
    channel = await LocalLink(sys.executable, sys.stderr.buffer).open(source, {"v": 1, "nonce": "n1"})
    probe = NodeProbe(host, channel)
    try:
        yield probe
    finally:
        await probe.close()


async def machine_here(source: bytes = SOURCE) -> Machine:
    async with opened(source) as probe:
        return await probe.machine()


def until(condition: Callable[[], Any], what: str, limit_s: float = 10.0) -> Any:
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{limit_s:g} s passed without {what}"
        time.sleep(0.02)
    return value


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_asked_once_it_tells_its_facts_and_ends() -> None:
    env = {"PATH": "/usr/bin:/bin", "HOME": "/h", "CUDA_VISIBLE_DEVICES": "3", "ODD_VISIBLE_DEVICES": "x", "Y": "z"}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BOOTSTRAP],
        input=bootstrap_input(SOURCE, {"v": 1, "nonce": "abc", "once": True}),
        capture_output=True,
        env=env,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    handshake, facts, rest = done.stdout.split(b"\n")
    assert (handshake, rest) == (b"TRAINUI1 abc", b"")
    told = json.loads(facts)
    assert (told["t"], told["v"]) == ("facts", 1)
    found = parse_machine(told)
    user = pwd.getpwuid(os.getuid())
    assert (found.hostname, found.user, found.uid) == (socket.gethostname(), user.pw_name, os.getuid())
    assert (found.home, found.path, found.shell) == ("/h", "/usr/bin:/bin", user.pw_shell)
    assert (found.python, found.executable) == (sys.version_info[:3], sys.executable)
    assert found.bash in ("/usr/bin/bash", "/bin/bash")
    assert found.visible == {"CUDA_VISIBLE_DEVICES": "3", "ODD_VISIBLE_DEVICES": "x"}
    assert found.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found.net == os.readlink("/proc/self/ns/net")


def test_by_hand_it_says_that_it_is_not_for_that() -> None:
    done = subprocess.run([sys.executable, look.__file__], capture_output=True, timeout=30)
    assert done.returncode == 2
    assert b"nothing to do by hand" in done.stderr


# -- GPUs ------------------------------------------------------------------------------------------------------


async def test_gpus_and_who_is_on_them(on_path: Path) -> None:
    busy = subprocess.Popen(["sleep", "1000"])
    try:
        nvidia_smi(
            on_path,
            ["0, GPU-aa, NVIDIA H100 80GB HBM3, 81559, 41000", "1, GPU-bb, NVIDIA H100 80GB HBM3, [N/A], [N/A]"],
            [
                f"{busy.pid}, GPU-aa, sleep, 40960",
                "3999999, GPU-bb, python -c a,b, [N/A]",
                f"{os.getpid()}, GPU-bb, /other/containers/trainer, 7",
            ],
        )
        found = await machine_here()
    finally:
        busy.kill()
        busy.wait()
    assert found.gpu_vendor == "nvidia"
    assert found.gpus == (
        Gpu("0", "GPU-aa", "NVIDIA H100 80GB HBM3", 81559, 41000),
        Gpu("1", "GPU-bb", "NVIDIA H100 80GB HBM3", None, None),
    )
    first, second, third = found.gpu_users
    assert (first.gpu, first.pid, first.command, first.memory_mib) == ("0", busy.pid, "sleep 1000", 40960)
    assert first.user == pwd.getpwuid(os.getuid()).pw_name
    assert (second.gpu, second.user, second.command, second.memory_mib) == ("1", "", "python -c a,b", None)
    # In a container the number may be somebody else's here: nobody is blamed.
    assert (third.user, third.command) == ("", "/other/containers/trainer")
    assert found.gpu_faults == ()


LOST = "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


@pytest.mark.parametrize(
    ("lines", "gpus", "faults"),
    [
        (f'case "$1" in *gpu=*) echo "0, GPU-aa, A100, 1, 1";; esac; echo "{LOST}"', ["0"], [f"nvidia-smi: {LOST}"]),
        (f'echo "{NO_DRIVER}"; exit 9', [], [f"nvidia-smi fails with status 9: {NO_DRIVER}"]),
        ("echo No devices were found; exit 6", [], []),
        ("echo No devices were found", [], []),
        ("exit 0", [], []),
    ],
)
async def test_what_a_broken_driver_says_is_told(on_path: Path, lines: str, gpus: list[str], faults: list[str]) -> None:
    tool(on_path, "nvidia-smi", lines)
    found = await machine_here()
    assert [gpu.index for gpu in found.gpus] == gpus
    assert list(found.gpu_faults) == faults


async def test_who_uses_the_gpus_may_be_hidden(on_path: Path) -> None:
    tool(
        on_path,
        "nvidia-smi",
        'case "$1" in *apps*) echo "Insufficient Permissions"; exit 4;; esac; echo "0, G, A, 1, 1"',
    )
    found = await machine_here()
    assert len(found.gpus) == 1
    (fault,) = found.gpu_faults
    assert "cannot tell who uses the GPUs" in fault
    assert "Insufficient Permissions" in fault


async def test_an_nvidia_smi_that_hangs_is_told_and_ended(on_path: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    tool(on_path, "nvidia-smi", f"trap '' TERM\nsleep 1000 &\necho $$ $! >> {pids}\nwait")
    found = await machine_here(HASTY)
    assert found.gpu_faults == ("nvidia-smi does not answer within 0.5 s",)
    assert found.hostname
    started = [int(word) for word in pids.read_text().split()]
    assert len(started) == 4  # two questions, each with a child
    until(lambda: not any(map(alive, started)), "the end of nvidia-smi and its child")


async def test_leaving_in_the_middle_ends_what_it_started(on_path: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    tool(on_path, "nvidia-smi", f"echo $$ >> {pids}\nexec sleep 1000")
    async with opened():
        async with asyncio.timeout(10):
            while not pids.exists() or len(pids.read_text().split()) < 2:
                await asyncio.sleep(0.02)
    started = [int(word) for word in pids.read_text().split()]
    until(lambda: not any(map(alive, started)), "the end of nvidia-smi")


def test_amds_driver_tells_gpus_and_their_users(tmp_path: Path) -> None:
    kfd = tmp_path / "sys/class/kfd/kfd"
    for number, simd in enumerate((0, 304, 304)):
        node = kfd / f"topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 8\nsimd_count {simd}\nunique_id {number * 255}\n")
        (node / "gpu_id").write_text(f"{40000 + number if simd else 0}\n")
        (node / "name").write_text("aqua_vanjaram\n" if simd else "\n")
    user = kfd / f"proc/{os.getpid()}"
    user.mkdir(parents=True)
    (user / "pasid").write_text("32770\n")
    (user / "vram_40001").write_text("0\n")
    (user / "vram_40002").write_text(f"{3 << 30}\n")
    found = parse_machine(look.find_gpus({"PATH": "/nowhere"}, str(tmp_path)))
    assert found.gpu_vendor == "amd"
    assert [(gpu.index, gpu.uuid, gpu.name) for gpu in found.gpus] == [
        ("0", "GPU-00000000000000ff", "aqua_vanjaram"),
        ("1", "GPU-00000000000001fe", "aqua_vanjaram"),
    ]
    (one,) = found.gpu_users
    assert (one.gpu, one.pid, one.memory_mib) == ("1", os.getpid(), 3072)
    assert "pytest" in one.command or "python" in one.command


# -- what is going to be started -------------------------------------------------------------------------------


def request_for(cwd: Path, **more: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"t": "check", "cwd": str(cwd), "programs": [], "search": None, "files": [], "mkdirs": []}
    return {**asked, "node_dir": str(cwd), "bash": {}, "torch": None, "env": {}, **more}


async def test_everything_a_rank_needs_is_looked_at_and_nothing_is_left(tmp_path: Path) -> None:
    work = tmp_path / "work"
    tool(work, "mine", "")
    (work / "plain").write_text("")
    before = sorted(tmp_path.rglob("*"))
    asked = request_for(
        work,
        programs=["mine", "./plain", "./gone", "no-such-program", "sh"],
        search=".:/bin",
        files=["plain", "train.py", "nul\0"],
        mkdirs=["a/b", "plain/x"],
        node_dir=str(tmp_path / "new/nodes/0_x"),
        bash={"good": "echo 'x'", "bad": "if true; then"},
    )
    async with opened() as probe:
        found = parse_looked(await probe.ask(asked, 20.0))
    assert found.cwd == ""
    assert found.programs["mine"].path == f"{work}/./mine"
    assert found.programs["sh"].path == "/bin/sh"
    assert found.programs["no-such-program"].path == ""
    assert found.programs["no-such-program"].search == ".:/bin"
    assert found.programs["./plain"].fault == "is not executable"
    assert found.programs["./gone"].fault == "no such file or directory"
    assert found.files == {"plain": "", "train.py": "no such file or directory", "nul\0": "embedded null byte"}
    assert found.mkdirs == {"a/b": "", "plain/x": f"{work}/plain is not a folder"}
    assert found.bash["good"] == ""
    assert "end of file" in found.bash["bad"]
    assert (found.room.at, found.room.fault) == (str(tmp_path), "")
    assert found.room.free_bytes == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert sorted(tmp_path.rglob("*")) == before


async def test_a_cwd_that_is_not_there_hides_what_counts_from_it(tmp_path: Path) -> None:
    asked = request_for(tmp_path / "gone", programs=["sh"], files=["x"], node_dir="/proc/1/x")
    async with opened() as probe:
        found = parse_looked(await probe.ask(asked, 20.0))
    assert found.cwd == "no such file or directory"
    assert (found.programs, found.files) == ({}, {})
    assert "cannot be written" in found.room.fault or "may not be written" in found.room.fault


@pytest.mark.parametrize(("lines", "torch"), [("exit 0", True), ("exit 1", False), ("exec sleep 1000", None)])
async def test_torch_is_asked_for_in_the_ranks_world(tmp_path: Path, lines: str, torch: bool | None) -> None:
    seen = tmp_path / "seen"
    tool(tmp_path, "py", f'echo "$X" > {seen}; {lines}')
    asked = request_for(tmp_path, programs=["./py"], torch="./py", env={"X": "a 'b' $c"})
    async with opened(HASTY) as probe:
        found = parse_looked(await probe.ask(asked, 20.0))
    assert found.torch is torch
    assert seen.read_text() == "a 'b' $c\n"


async def test_a_full_disk_is_found_by_writing(tmp_path: Path) -> None:
    space = ["unshare", "-m", "--propagation", "private"]
    if subprocess.run([*space, "mount", "-t", "tmpfs", "none", str(tmp_path)], capture_output=True).returncode != 0:
        pytest.skip("no mount namespaces here")
    mount = f"mount -t tmpfs -o size=64k none {tmp_path} && head -c 1m /dev/zero > {tmp_path}/fill 2>/dev/null"
    (tmp_path / "python").write_text(
        f'#!/bin/sh\nexec {" ".join(space)} sh -c \'{mount}; exec "$@"\' sh {sys.executable} "$@"\n'
    )
    (tmp_path / "python").chmod(0o755)
    channel = await LocalLink(str(tmp_path / "python"), sys.stderr.buffer).open(SOURCE, {"v": 1, "nonce": "n"})
    probe = NodeProbe("node1", channel)
    try:
        found = parse_looked(await probe.ask(request_for(Path("/"), node_dir=f"{tmp_path}/run"), 20.0))
    finally:
        await probe.close()
    assert found.room.fault == f"{tmp_path} cannot be written: no space left on device"
    assert found.room.full
    assert found.room.free_bytes == 0


def test_a_folder_is_tried_also_where_files_cannot_be_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real = os.open

    def as_nfs(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        made.append(path)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", as_nfs)
    assert look.room(str(tmp_path / "new"))["fault"] == ""
    assert [os.path.dirname(path) for path in made] == [str(tmp_path)]
    assert list(tmp_path.iterdir()) == []


async def test_a_thing_that_hangs_keeps_nobody_else_waiting_and_is_named(tmp_path: Path) -> None:
    tool(tmp_path, "py", "exec sleep 1000")
    async with opened() as probe:
        await probe.machine()
        asked = request_for(tmp_path, programs=["./py"], torch="./py")
        with pytest.raises(LinkError) as caught:
            await probe.ask(asked, 0.5)
        assert f"node1: no answer for 0.5 s while it looks at {tmp_path}/./py (" in str(caught.value)
        assert abs((await probe.ask({"t": "ping"}, 5.0))["now"] - time.time()) < 60


async def test_a_request_that_it_does_not_know_or_cannot_do_is_answered() -> None:
    async with opened() as probe:
        with pytest.raises(LinkError, match="node1: the probe could not dance: the probe does not know"):
            await probe.ask({"t": "dance"}, 5.0)
        with pytest.raises(LinkError, match="could not check: KeyError"):
            await probe.ask({"t": "check"}, 5.0)
        assert (await probe.ask({"t": "ping"}, 5.0))["ok"] is True


# -- other runs ------------------------------------------------------------------------------------------------


async def test_a_run_that_is_on_the_machine_is_named(node: Any) -> None:
    node.runs("exec sleep 1000")
    bridge = node.open()
    bridge.ask("start", attempt=0)
    pid = bridge.state()["pid"]
    user = pwd.getpwuid(os.getuid()).pw_name
    assert OtherAgent(pid, user, node.run_id, "test") in (await machine_here()).agents
    bridge.send("stop", grace_s=0)
    bridge.end()
    bridge.release()
    until(lambda: not alive(pid), "the agent's end")
    assert node.run_id not in [agent.run_id for agent in (await machine_here()).agents]


# -- ports -----------------------------------------------------------------------------------------------------


def reach_request(port: int, host: str = "127.0.0.1", greeting: str = "hello") -> dict[str, Any]:
    return {"t": "reach", "host": host, "port": port, "greeting": greeting, "timeout_s": 3.0}


async def test_two_probes_find_each_other() -> None:
    async with opened() as master, opened() as other:
        told = await master.ask({"t": "listen", "port": 0, "greeting": "hello"}, 5.0)
        assert told["fault"] == ""
        for host in ("127.0.0.1", "localhost"):
            found = parse_reach(await other.ask(reach_request(told["port"], host), 20.0))
            assert (found.result, found.error) == ("ok", "")
            assert found.address in found.addresses
        # The master connects to itself as well, and many come at once.
        asked = [probe.ask(reach_request(told["port"]), 20.0) for probe in (master, other) for _ in range(20)]
        assert {answer["result"] for answer in await asyncio.gather(*asked)} == {"ok"}
        peers = (await master.ask({"t": "unlisten"}, 20.0))["peers"]
        assert len(peers) == 42
        found = parse_reach(await other.ask(reach_request(told["port"]), 20.0))
        assert (found.result, found.error) == ("refused", "connection refused")


async def test_a_stranger_that_answers_is_not_taken_for_the_master() -> None:
    async with opened() as master, opened() as other:
        port = (await master.ask({"t": "listen", "port": 0, "greeting": "somebody else"}, 5.0))["port"]
        assert (await other.ask(reach_request(port), 20.0))["result"] == "foreign"
        with socket.create_server(("127.0.0.1", 0)) as silent:
            asked = {**reach_request(silent.getsockname()[1]), "timeout_s": 0.3}
            assert (await other.ask(asked, 20.0))["result"] == "foreign"


async def test_a_name_that_means_nothing() -> None:
    async with opened() as probe:
        for name in ("no-such-host.invalid", "a..b", "x" * 70):
            found = parse_reach(await probe.ask(reach_request(1, name), 30.0))
            assert (found.result, found.addresses) == ("unresolved", ())
            assert found.error


async def test_a_port_that_is_taken_is_told_with_its_owner_and_the_way_is_tried_all_the_same() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with opened() as master:
            told = await master.ask({"t": "listen", "port": port, "greeting": "hello"}, 5.0)
            assert re.fullmatch(rf"address already in use, by .+ \(pid {os.getpid()}\)", told["fault"])
            assert told["port"] != port
            assert (await master.ask(reach_request(told["port"]), 20.0))["result"] == "ok"
    async with opened() as master:
        assert await master.ask({"t": "listen", "port": port, "greeting": "hello"}, 5.0) == {
            "t": "re",
            "id": 1,
            "ok": True,
            "port": port,
            "fault": "",
        }
