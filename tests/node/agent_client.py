"""A small synchronous client of the agent, which starts it exactly as a link does: the bootstrap's exec string."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
AGENT = REPOSITORY / "engine" / "node" / "agent.py"
HEARTBEAT = REPOSITORY / "engine" / "node" / "trainui_heartbeat.py"
BOOTSTRAP = "import sys;b=sys.stdin.buffer;exec(b.read(int(b.readline())))"
PATIENCE_S = 25.0

Frame = dict[str, Any]


class Bridge:
    """One channel to the agent."""

    def __init__(
        self,
        spec: Frame,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        extra: bytes = b"",
        umask: int = 0o022,
    ) -> None:
        self.frames: list[Frame] = []  # all that ever came
        self.eof = False
        self._buffer = b""
        self._next_id = 0
        self._nonce = str(spec["nonce"])
        self.noise = b""
        self.ready = False
        self.process = subprocess.Popen(
            [python, "-I", "-S", "-c", BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            start_new_session=True,
            umask=umask,
        )
        source, body = AGENT.read_bytes(), json.dumps(spec).encode()
        assert self.process.stdin is not None and self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.write(b"%d\n%b%d\n%b" % (len(source), source, len(body), body) + extra)

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def send(self, name: str, **fields: Any) -> int:
        """Send a request; returns its id."""
        self._next_id += 1
        self.write(json.dumps({"t": name, "id": self._next_id, **fields}).encode() + b"\n")
        return self._next_id

    def ask(self, name: str, **fields: Any) -> Frame:
        """Send a request and return its answer."""
        number = self.send(name, **fields)
        return self.until(lambda f: f["t"] == "re" and f.get("id") == number, f"the answer to {name}")

    def pump(self, seconds: float) -> None:
        """Take in what comes within `seconds`, or until something came."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return
        data = self.process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
        if not data:
            self.eof = True
        self._buffer += data or b""
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            if self.ready:
                self.frames.append(json.loads(line))
            elif line == b"TRAINUI1 " + self._nonce.encode():
                self.ready = True
            else:
                self.noise += line + b"\n"

    def until(self, condition: Callable[[Frame], object], what: str, limit_s: float = PATIENCE_S) -> Frame:
        """The first frame, old or new, for which `condition` holds."""
        at, deadline = 0, time.monotonic() + limit_s
        while True:
            while at < len(self.frames):
                if condition(self.frames[at]):
                    return self.frames[at]
                at += 1
            if self.eof or time.monotonic() > deadline:
                ended = "the channel ended before" if self.eof else f"{limit_s:g} s passed without"
                raise AssertionError(f"{ended} {what}; came: {self.frames[-12:]} {self.noise!r}")
            self.pump(0.1)

    def phase(self, name: str, limit_s: float = PATIENCE_S) -> Frame:
        """Wait for a phase; a state counts too."""
        return self.until(lambda f: f["t"] in ("phase", "state") and f["phase"] == name, f"phase {name}", limit_s)

    def state(self) -> Frame:
        """The agent's state as it is now."""
        seen = len(self.frames)
        self.send("hello")
        self.until(lambda f: f["t"] == "state" and f in self.frames[seen:], "a state")
        return [f for f in self.frames if f["t"] == "state"][-1]

    def end(self) -> Frame:
        """Wait until everything is down: the state then, with the ranks' ends."""
        self.phase("down")
        return self.state()

    def release(self) -> None:
        """Let the agent go, and see that it does."""
        self.send("release")
        deadline = time.monotonic() + PATIENCE_S
        while not self.eof and time.monotonic() < deadline:
            self.pump(0.1)
        assert self.eof, "the agent did not end"
        self.close()

    def close(self) -> None:
        """Leave the agent as it is."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.stdout.close()


class Node:
    """One node's folder, its spec, and all bridges and processes that belong to it."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self.folder = folder
        self.node_dir = folder / "run" / "nodes" / "0_here"
        self.cwd = folder / "cwd"
        self.cwd.mkdir(parents=True)
        self.run_id = run_id
        self.bridges: list[Bridge] = []
        self.spec: Frame = {
            "v": 1,
            "nonce": "n0",
            "run_id": run_id,
            "name": "test",
            "node_rank": 0,
            "host": "here",
            "node_dir": str(self.node_dir),
            "run_dir": str(folder / "run"),
            "cwd": str(self.cwd),
            "mkdirs": [],
            "ranks": [{"rank": 0, "local_rank": 0}],
            "group_signal": False,
            "before_start": False,
            "after_stop": False,
            "stop_grace_s": 2.0,
            "files": {"agent.py": {"text": AGENT.read_text(), "mode": 0o600}},
        }

    def runs(self, *scripts: str) -> None:
        """One rank for each bash text."""
        self.spec["ranks"] = [{"rank": i, "local_rank": i} for i in range(len(scripts))]
        branches = "".join(f"{i})\n{text}\n;;\n" for i, text in enumerate(scripts))
        self.file("run.sh", f'cd {self.cwd}\ncase "$LOCAL_RANK" in\n{branches}esac\n')

    def python(self, code: str) -> str:
        """Bash that turns into a Python which runs `code`."""
        path = self.folder / f"script_{len(list(self.folder.glob('script_*')))}.py"
        path.write_text(code)
        return f"exec {sys.executable} -S {path}"

    def file(self, name: str, text: str, mode: int = 0o700) -> None:
        self.spec["files"][name] = {"text": text, "mode": mode}

    def hook(self, name: str, text: str) -> None:
        self.spec[name] = True
        self.file(f"{name}.sh", text)

    def open(self, **options: Any) -> Bridge:
        """Start the agent, or find it."""
        bridge = self.dial(**options)
        bridge.until(lambda f: f["t"] == "state", "the first state")
        return bridge

    def dial(self, **options: Any) -> Bridge:
        """The same without waiting for an answer."""
        bridge = Bridge({**self.spec, "nonce": f"n{len(self.bridges)}"}, **options)
        self.bridges.append(bridge)
        return bridge

    def start(self, attempt: int = 0, **env: str) -> Bridge:
        """Start the agent and an attempt."""
        bridge = self.open()
        assert bridge.ask("start", attempt=attempt, env=env)["ok"]
        return bridge

    def stop_by_hand(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-S", str(self.node_dir / "agent.py"), "stop", *words],
            capture_output=True,
            text=True,
            timeout=50,
        )

    def text(self, name: str) -> str:
        return (self.node_dir / name).read_text()

    def json(self, name: str) -> Frame:
        """A file of the agent, once it is there."""
        self.wait_for((self.node_dir / name).exists, name)
        return json.loads(self.text(name))

    def log(self, rank: int = 0, attempt: int = 0) -> str:
        path = self.node_dir / f"attempt_{attempt}" / f"rank_{rank:05d}.log"
        return path.read_text(errors="surrogateescape") if path.exists() else ""

    def agent_pid(self) -> int:
        return int(self.json("agent.json")["pid"])

    def kill_agent(self) -> None:
        """`kill -9` of the agent, and proof that it is gone."""
        pid = self.agent_pid()
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while is_alive(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def pids(self) -> dict[str, int]:
        """What the ranks wrote into files named *.pid in the working directory."""
        return {p.stem: int(p.read_text()) for p in self.cwd.glob("*.pid") if p.read_text().strip()}

    def wait_for(self, condition: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
        deadline = time.monotonic() + limit_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}"
            time.sleep(0.02)
        return value

    def wait_pids(self, *names: str) -> dict[str, int]:
        """Wait until processes have told their pids."""
        return self.wait_for(lambda: (p := self.pids()) and set(names) <= set(p) and p, f"the pids of {names}")

    def left(self) -> list[str]:
        """What lives of this node: ranks and what descends from them, the agent and the bridges not."""
        named = set(self.pids().values())
        mark = f"TRAINUI_RUN_ID={self.run_id}".encode()
        found: list[str] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or not is_alive(int(entry.name)):
                continue
            try:
                environ, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark in environ.split(b"\0") or str(self.folder).encode() in command or int(entry.name) in named:
                found.append(f"{entry.name} {command!r}")
        return found

    def clean_up(self) -> None:
        """Leave nothing, whatever the test left."""
        for bridge in self.bridges:
            bridge.close()
        if (self.node_dir / "node.json").exists() and (self.node_dir / "agent.py").exists():
            self.stop_by_hand("--kill")
            pid = self.agent_pid() if (self.node_dir / "agent.json").exists() else 0
            if pid and is_alive(pid) and self.holds_the_lock(pid):
                os.kill(pid, signal.SIGTERM)
                self.wait_for(lambda: not is_alive(pid), "the agent's end")

    def holds_the_lock(self, pid: int) -> bool:
        """True for this node's agent, so that no other process is ever signalled."""
        try:
            open_files = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            return False
        return any(name.startswith(str(self.node_dir / "agent.lock")) for name in open_files)


def is_alive(pid: int) -> bool:
    """False for a zombie: some machines reap late."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")
