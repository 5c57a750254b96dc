"""Real OpenSSH daemons of a test's own, a home directory with a user's SSH files, and an agent's job to run there."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.config.schema import Ssh
from engine.link.ssh import SshLink
from engine.link.ssh_model import Target
from engine.link.ssh_pool import SshPool

AGENT = Path(__file__).parents[2] / "engine" / "node" / "agent.py"
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
USER = getpass.getuser()
PATIENCE_S = 30.0


def why_no_sshd() -> str:
    """Why no daemon can run here, or ""."""
    if SSHD is None:
        return "no sshd: apt-get install openssh-server"
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # its privilege separation directory
    return ""


def free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


def make_key(path: Path, passphrase: str = "", kind: str = "ed25519") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", path], check=True)
    return path


def alive(pid: int) -> bool:
    """False for a zombie: some machines reap late."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def until(condition: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{limit_s:g} s passed without {what}"
        time.sleep(0.02)
    return value


async def soon(condition: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
    """`until` on the loop."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{limit_s:g} s passed without {what}"
        await asyncio.sleep(0.02)
    return value


class Sshd:
    """One daemon on loopback (or in `netns`), with a host key and a log of its own."""

    def __init__(self, folder: Path, name: str, keys: Path, *options: str, address: str = "127.0.0.1") -> None:
        self.folder, self.name, self.address = folder, name, address
        self.host_key = make_key(folder / f"{name}.hostkey")
        self.port = free_port()
        self.log_file = folder / f"{name}.log"
        self.options = [*options, f"AuthorizedKeysFile {keys}"]
        self.netns: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Sshd:
        assert SSHD is not None
        pid_file = self.folder / f"{self.name}.pid"
        pid_file.unlink(missing_ok=True)
        config = self.folder / f"{self.name}.conf"
        # The first value counts, so the test's own come first.
        lines = [*self.options, f"HostKey {self.host_key}", f"Port {self.port}", f"ListenAddress {self.address}"]
        lines += [f"PidFile {pid_file}", "UsePAM no", "StrictModes no", "PermitRootLogin yes", "LogLevel VERBOSE"]
        config.write_text("".join(f"{line}\n" for line in lines))
        with self.log_file.open("ab") as log:
            command = [*self.netns, SSHD, "-D", "-e", "-f", str(config)]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
        process = self.process
        until(lambda: pid_file.exists() or process.poll() is not None, "sshd's start")
        assert process.poll() is None, self.log()
        return self

    def stop(self) -> None:
        """End the daemon and, as a reboot would, the connections that it serves."""
        if self.process is None:
            return
        pids = [self.process.pid, *self.sessions()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9 if pid != self.process.pid else 15)
        self.process.wait(10)
        self.process = None

    def sessions(self) -> list[int]:
        """The processes that serve connections."""
        assert self.process is not None
        return _descendants(self.process.pid)

    def commands(self) -> list[int]:
        """What was started on the connections' channels."""
        below = [child for pid in self.sessions() for child in _children(pid)]
        return [pid for pid in below if pid not in self.sessions()]

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def connections(self) -> int:
        """How often somebody came."""
        return self.log().count("Connection from ")

    def known_line(self) -> str:
        name = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return f"{name} {' '.join(self.host_key.with_name(f'{self.name}.hostkey.pub').read_text().split()[:2])}"

    def fingerprint(self) -> str:
        return fingerprint(self.host_key)


def fingerprint(key: Path) -> str:
    return subprocess.run(["ssh-keygen", "-l", "-f", key], capture_output=True, text=True, check=True).stdout.split()[1]


def _descendants(pid: int) -> list[int]:
    """sshd's own processes below `pid`: those that are still called sshd (agents are on their own by then)."""
    found: list[int] = []
    for child in _children(pid):
        with contextlib.suppress(OSError):
            if "sshd" in Path(f"/proc/{child}/comm").read_text():
                found += [child, *_descendants(child)]
    return found


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class World:
    """A user's home with a key that all daemons take, and everything that was started for one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.ssh_dir = self.home / ".ssh"
        self.ssh_dir.mkdir(parents=True, mode=0o700)
        self.key = make_key(self.ssh_dir / "id_ed25519")
        self.authorized = folder / "authorized_keys"
        self.authorized.write_text((self.ssh_dir / "id_ed25519.pub").read_text())
        self.known_hosts = self.ssh_dir / "known_hosts"
        self.known_hosts.write_text("")
        self.daemons: list[Sshd] = []
        self.pools: list[SshPool] = []
        self.jobs: list[Job] = []

    def sshd(self, name: str, *options: str, known: bool = True, **more: Any) -> Sshd:
        """A running daemon whose key the user knows."""
        return self.sshd_stopped(name, *options, known=known, **more).start()

    def sshd_stopped(self, name: str, *options: str, known: bool = True, **more: Any) -> Sshd:
        """The same, to be started by the test."""
        daemon = Sshd(self.folder, name, self.authorized, *options, **more)
        self.daemons.append(daemon)
        if known:
            self.know(daemon.known_line())
        return daemon

    def know(self, line: str) -> None:
        with self.known_hosts.open("a") as file:
            file.write(line + "\n")

    def config(self, text: str) -> None:
        """The user's ~/.ssh/config."""
        (self.ssh_dir / "config").write_text(text)

    def alias(self, name: str, daemon: Sshd, *more: str) -> str:
        """A Host block for `daemon`."""
        lines = [f"HostName {daemon.address}", f"Port {daemon.port}", *more]
        return f"Host {name}\n" + "".join(f"  {line}\n" for line in lines)

    def pool(self, **options: Any) -> SshPool:
        made = SshPool(Ssh(**{"connect_timeout_s": 10.0, "keepalive_s": 5.0} | options), home=self.home)
        self.pools.append(made)
        return made

    def job(self, *scripts: str) -> Job:
        made = Job(self.folder / f"job{len(self.jobs)}", scripts)
        self.jobs.append(made)
        return made

    async def close(self) -> None:
        for pool in self.pools:
            await pool.close()
        for job in self.jobs:
            job.clean_up()
        for daemon in self.daemons:
            daemon.stop()

    def target(self, daemon: Sshd) -> Target:
        return Target(daemon.address, port=daemon.port)


class Job:
    """A run on one node, as the agent is told of it."""

    def __init__(self, folder: Path, scripts: tuple[str, ...]) -> None:
        self.folder = folder
        self.run_id = f"ssh-{os.getpid()}-{os.urandom(4).hex()}"
        self.node_dir = folder / "run" / "nodes" / "0_node"
        self.cwd = folder / "cwd"
        self.cwd.mkdir(parents=True)
        self._opened = 0
        branches = "".join(f"{i})\n{text}\n;;\n" for i, text in enumerate(scripts))
        run = f'cd {self.cwd}\ncase "$LOCAL_RANK" in\n{branches}esac\n'
        self.files: dict[str, Any] = {
            "run.sh": {"text": run, "mode": 0o700},
            "agent.py": {"text": AGENT.read_text(), "mode": 0o600},
        }
        self.ranks = [{"rank": i, "local_rank": i} for i in range(len(scripts))]

    def spec(self) -> dict[str, Any]:
        """A new one for each opening: the nonce differs."""
        self._opened += 1
        return {
            "v": 1,
            "nonce": f"n{self._opened}-{os.urandom(4).hex()}",
            "run_id": self.run_id,
            "name": "test",
            "node_rank": 0,
            "host": "node",
            "node_dir": str(self.node_dir),
            "run_dir": str(self.folder / "run"),
            "cwd": str(self.cwd),
            "mkdirs": [],
            "ranks": self.ranks,
            "group_signal": False,
            "before_start": False,
            "after_stop": False,
            "stop_grace_s": 2.0,
            "files": self.files,
        }

    async def open(self, pool: SshPool, target: Target, python: str = sys.executable) -> Conversation:
        channel = await SshLink(pool, target, python).open(AGENT.read_bytes(), self.spec())
        return Conversation(channel)

    def log(self, rank: int = 0) -> bytes:
        return (self.node_dir / "attempt_0" / f"rank_{rank:05d}.log").read_bytes()

    def left(self) -> list[str]:
        """Living processes of this run: ranks by their environment, the agent by its open files."""
        mark = f"TRAINUI_RUN_ID={self.run_id}".encode()
        found: list[str] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid() or not alive(int(entry.name)):
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                ours = mark in (entry / "environ").read_bytes().split(b"\0") or os.fsencode(self.folder) in command
                if ours or any(os.readlink(fd).startswith(str(self.folder)) for fd in (entry / "fd").iterdir()):
                    found.append(f"{entry.name} {command!r}")
        return found

    async def gone(self) -> None:
        """Everything of the run has ended by itself, the released agent too."""
        await soon(lambda: not self.left(), "the end of everything that belongs to the run")

    def clean_up(self) -> None:
        """Leave nothing, whatever the test left."""
        if self.left() and (self.node_dir / "agent.py").exists() and (self.node_dir / "node.json").exists():
            words = [sys.executable, "-I", "-S", str(self.node_dir / "agent.py"), "stop", "--kill"]
            subprocess.run(words, capture_output=True, timeout=50)
        left = self.left
        until(lambda: not left(), "the end of everything that belongs to the run")


class Conversation:
    """Requests and frames over a channel."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.frames: list[dict[str, Any]] = []
        self.ended = asyncio.Event()
        self._id = 0
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for frame in self.channel.frames():
            self.frames.append(frame.head)
            self._news.set()
        self.ended.set()
        self._news.set()

    async def ask(self, name: str, **fields: Any) -> dict[str, Any]:
        self._id += 1
        number = self._id
        await self.channel.send({"t": name, "id": number, **fields})
        return await self.until(lambda f: f["t"] == "re" and f.get("id") == number, f"the answer to {name}")

    async def until(self, condition: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        """The first frame, old or new, for which `condition` holds."""
        at = 0
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    self._news.clear()
                    while at < len(self.frames):
                        if condition(self.frames[at]):
                            return self.frames[at]
                        at += 1
                    assert not self.ended.is_set(), f"the channel ended before {what}; came: {self.frames[-8:]}"
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"no {what} in {PATIENCE_S:g} s; came: {self.frames[-8:]}") from None

    async def phase(self, name: str) -> dict[str, Any]:
        return await self.until(lambda f: f["t"] in ("phase", "state") and f.get("phase") == name, f"phase {name}")

    async def start(self) -> None:
        answer = await self.ask("start", attempt=0, env={})
        assert answer["ok"], answer

    async def finish(self) -> dict[int, dict[str, Any]]:
        """Wait for the end of all, let the agent go; the ranks' ends by rank."""
        await self.phase("down")
        ends = {f["rank"]: f for f in self.frames if f["t"] == "exit"}
        await self.channel.send({"t": "release"})
        await asyncio.wait_for(self.ended.wait(), PATIENCE_S)
        await self.close()
        return ends

    async def stop(self) -> None:
        assert (await self.ask("stop", grace_s=2.0))["ok"]
        await self.finish()

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self.channel.close()
