"""The node agent: parents the ranks of one run on one node, and leaves nothing of them behind.

One file, standard library only, run by whatever `python3` a node has (3.8 or newer; the annotations are such that an
older one still gets as far as saying so). `docs/agent-protocol.md` tells what is said to it. It is run as

- `exec` of this text by the bootstrap, which left its stdin in `b`: starts or finds the agent, then is its bridge;
- `agent.py stop [--kill] [--grace S]` in a node's folder: stops by hand what runs from there.

No threads and no asyncio: the agent forks, and must go on when everything else on the node has trouble.
"""

import errno
import fcntl
import hashlib
import json
import os
import resource
import selectors
import signal
import socket
import stat
import struct
import sys
import time
import traceback
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, NoReturn, Optional, Set, Tuple

EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h

IDLE, BEFORE_START, RUNNING = "idle", "before_start", "running"
STOPPING, AFTER_STOP, DOWN = "stopping", "after_stop", "down"

LEFTOVER_GRACE_S = 5.0  # for what a rank left behind: it had the rank's own grace already
SURVIVORS_AFTER_S = 10.0  # SIGKILL acts at once, except on a process that waits for a device
LINGER_S = 10.0  # the agent's stay after everything is down and nobody is connected
SCAN_S = 1.0
FULL_SCAN_S = 10.0
MAX_ROOTS = 20_000
SOCKET_CHECK_S = 5.0
SPARE_FDS = 16
MAX_BACKLOG = 8 * 1024 * 1024  # bytes kept for a slow reader
MAX_HEADER = 1024 * 1024
FIND_AGENT_S = 20.0  # until a lock's holder has a socket
FIRST_FRAME_S = 5.0
BRIDGE_SILENCE_S = 30.0  # three pings of the engine
MAX_BEAT_LINE = 64 * 1024
MAX_BEAT_READ = 256 * 1024
MAX_SOCKET_PATH = 100  # sun_path holds 108 bytes
LOG_CHUNK = 256 * 1024
SLOW_LOG_CHUNK = 64 * 1024  # where that much takes long: a frame must arrive within the engine's patience
SLOW_S = 0.5
LOG_ROOM = 256 * 1024  # no log frame is made while more than this waits for its reader
MAX_LOG_READ = 1024 * 1024
MAX_LOG_READS = 64
SHORTEST_LOOK_S, USUAL_LOOK_S, LONGEST_LOOK_S = 0.005, 0.02, 0.1
LOG_TAIL = 64  # bytes by which a log is known again
MAX_LOG_TAIL = 64 * 1024
MAX_TOLD_ATTEMPTS = 100
F_SETPIPE_SZ = 1031  # linux/fcntl.h; `fcntl` has it since Python 3.10
PR_SET_NAME, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 15, 36, 37

Frame = Dict[str, Any]


class Fatal(Exception):
    """The agent cannot be started; the message is a sentence for the user."""

    def __init__(self, kind: str, error: str) -> None:
        super().__init__(error)
        self.kind = kind
        self.error = error


# -- small things ----------------------------------------------------------------------------------------------


def log(text: str) -> None:
    """Into agent.log; a full disk is no reason to fail."""
    try:
        os.write(2, ("%s %s\n" % (rfc3339(time.time()), text)).encode("utf-8", "replace"))
    except OSError:
        pass


def rfc3339(unix_s: float) -> str:
    """`2026-12-01T03:26:54.123Z`."""
    ms = int(unix_s * 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms // 1000)) + ".%03dZ" % (ms % 1000)


def words(err: OSError) -> str:
    """The system's words for an error, in lower case at the start."""
    text = err.strerror or str(err)
    return text[:1].lower() + text[1:]


def write_atomically(path: str, data: bytes, mode: int = 0o600) -> None:
    """A reader sees the old file or the new one.

    Raises:
        OSError: it could not be written; the old one is still there.
    """
    temporary = "%s.%d.tmp" % (path, os.getpid())
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            os.fchmod(fd, mode)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise


def as_object(value: Any) -> Frame:
    """What was decoded, if it is a JSON object.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]


def read_json(path: str) -> Dict[str, Any]:
    """The JSON object in a file; empty where there is none that can be read."""
    try:
        with open(path, "rb") as file:
            return as_object(json.loads(file.read().decode("utf-8")))
    except (OSError, ValueError, RecursionError):
        return {}


def read_file(path: str, limit: int = 1 << 20) -> bytes:
    """The first `limit` bytes of a file, b"" where it cannot be read.

    Raises:
        OSError: this process can open nothing at all now. To take that for "there is no such process" would be fatal.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as err:
        if err.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return b""
    try:
        return os.read(fd, limit)
    except OSError:
        return b""
    finally:
        os.close(fd)


def boot_id() -> str:
    """Which boot of the machine this is: pids of another one say nothing."""
    return read_file("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()


def prctl(option: int, argument: Any) -> int:
    """prctl(2).

    Raises:
        OSError: the kernel refuses.
        ImportError: this Python has no ctypes.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.prctl(option, argument, 0, 0, 0)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def signal_number(value: Any) -> int:
    """15 for 15, "TERM" and "SIGTERM".

    Raises:
        ValueError: there is no such signal.
    """
    if isinstance(value, str):
        name = value.upper()
        found = getattr(signal, name if name.startswith("SIG") else "SIG" + name, None)
        if not isinstance(found, signal.Signals):
            raise ValueError("there is no signal %s" % value)
        return int(found)
    number = int(value)
    if not 0 < number < signal.NSIG:
        raise ValueError("there is no signal %d" % number)
    return number


# -- frames ----------------------------------------------------------------------------------------------------


def encode(head: Frame) -> bytes:
    """One frame without a payload."""
    return json.dumps(head, separators=(",", ":")).encode("ascii") + b"\n"


class Decoder:
    """Bytes in, headers out; payloads are skipped, because no request has one.

    `feed` raises ValueError where the peer does not speak our protocol.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._buffer += data
        while self._buffer:
            if self._skip:
                cut = min(self._skip, len(self._buffer))
                del self._buffer[:cut]
                self._skip -= cut
                continue
            end = self._buffer.find(b"\n")
            if end < 0:
                if len(self._buffer) > MAX_HEADER:
                    raise ValueError("a frame header without an end")
                return
            head = as_object(json.loads(bytes(self._buffer[:end]).decode("utf-8")))
            del self._buffer[: end + 1]
            size = head.get("n", 0)
            if not isinstance(size, int) or size < 0:
                raise ValueError("a payload's size that is none")
            self._skip = size
            yield head


# -- processes -------------------------------------------------------------------------------------------------


class Proc:
    """One line of /proc/PID/stat. `ticks` (start time since boot) makes the pid an identity."""

    __slots__ = ("pid", "ppid", "root", "session", "state", "threads", "ticks")

    def __init__(self, pid: int, fields: List[bytes]) -> None:
        self.pid = pid
        self.state = fields[0].decode("ascii")
        self.ppid = int(fields[1])
        self.session = int(fields[3])
        self.threads = int(fields[17])
        self.ticks = int(fields[19])
        self.root = 0  # the rank leader or hook it descends from; 0: not known

    @property
    def alive(self) -> bool:
        # A main thread that ended is a zombie while its other threads work on.
        return self.state not in "ZXx" or (self.state == "Z" and self.threads > 1)


def read_proc(pid: int) -> Optional[Proc]:
    """What /proc says of a pid, or None where there is none."""
    data = read_file("/proc/%d/stat" % pid, 4096)
    # The command in parentheses may itself hold spaces and parentheses.
    fields = data.rpartition(b")")[2].split()
    return Proc(pid, fields) if len(fields) > 19 else None


def all_pids() -> Set[int]:
    """Every process that is visible here."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def newest_pid() -> int:
    """The pid that was given out last, 0 where that is not told."""
    fields = read_file("/proc/loadavg", 256).split()
    return int(fields[4]) if len(fields) > 4 and fields[4].isdigit() else 0


def owner_of(pid: int) -> int:
    """The real uid of a process, -1 where it is gone."""
    for line in read_file("/proc/%d/status" % pid, 8192).splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return -1


def environ_of(pid: int) -> Dict[bytes, bytes]:
    """The environment that a process was started with; empty where it is not for us to read."""
    found: Dict[bytes, bytes] = {}
    fd = -1
    try:
        fd = os.open("/proc/%d/environ" % pid, os.O_RDONLY | os.O_CLOEXEC)
        data = b""
        while True:
            piece = os.read(fd, 1 << 16)
            data += piece
            if not piece or len(data) > 1 << 22:
                break
    except OSError:
        return found
    finally:
        if fd >= 0:
            os.close(fd)
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name:
            found.setdefault(name, value)
    return found


def self_and_ancestors() -> Dict[int, int]:
    """pid -> start ticks of this process and of all above it: never to be signalled."""
    found: Dict[int, int] = {}
    pid = os.getpid()
    while pid > 0 and pid not in found:
        proc = read_proc(pid)
        if proc is None:
            break
        found[pid] = proc.ticks
        pid = proc.ppid
    return found


def describe_process(proc: Proc) -> Frame:
    """A survivor, in words that help to find out why it does not die."""
    command = ""
    if proc.state != "D":  # to read its memory could block us as it is blocked
        data = read_file("/proc/%d/cmdline" % proc.pid, 4096)
        command = data.replace(b"\0", b" ").decode("utf-8", "replace").strip()
    if not command:
        command = "[%s]" % read_file("/proc/%d/comm" % proc.pid, 64).decode("utf-8", "replace").strip()
    wchan = read_file("/proc/%d/wchan" % proc.pid, 64).decode("ascii", "replace").strip()
    return {"pid": proc.pid, "state": proc.state, "command": command[:200], "wchan": wchan if wchan != "0" else ""}


class Family:
    """The processes of this run on this node: all descendants, and what an agent before this one left.

    A subreaper's descendant stays one as long as it lives, so a scan needs to look at new pids only. A fresh agent
    is no ancestor of what its predecessor started: then (`adopting`) new processes are also known by the run's mark
    in their environment.
    """

    def __init__(self, run_id: str, node_dir: str, protected: Dict[int, int]) -> None:
        self.me = os.getpid()
        self.members: Dict[int, Proc] = {}
        self.roots: Dict[int, int] = {}  # also of the dead: a heartbeat may be read after its writer's end
        self.leaders: Set[int] = set()
        self.adopting = False
        self._protected = protected
        self._mark = {b"TRAINUI_RUN_ID": os.fsencode(run_id), b"TRAINUI_NODE_DIR": os.fsencode(node_dir)}
        self._sightings: Dict[int, int] = {}

    def refresh(self, full: bool) -> List[Proc]:
        """Look again; returns the members that were not known before. Only a full look renews their states."""
        pids = all_pids()
        pids.discard(self.me)
        old = self.members
        # Twice, because the first look may have caught a process between fork and exec.
        wanted = pids if full else {pid for pid in pids if self._sightings.get(pid, 0) < 2}
        fresh: Dict[int, Proc] = {}
        for pid in wanted:
            proc = read_proc(pid)
            if proc is not None:
                fresh[pid] = proc
        self.members = {} if full else {pid: proc for pid, proc in old.items() if pid in pids and pid not in wanted}
        for pid, proc in fresh.items():
            known = old.get(pid)
            if known is not None and known.ticks == proc.ticks:
                proc.root = known.root
                self.members[pid] = proc
        self._grow(fresh)
        if self.adopting:
            for pid, proc in fresh.items():
                # The environment of one in state D may not be readable without waiting as it does.
                if pid not in self.members and proc.state != "D" and self.is_marked(pid):
                    self.add(proc)
            self._grow(fresh)
        self._sightings = {pid: min(2, self._sightings.get(pid, 0) + 1) for pid in pids}
        if len(self.roots) > MAX_ROOTS:
            # A rank that starts a process in each step, for weeks.
            self.roots = {pid: root for pid, root in self.roots.items() if pid in self.members or pid in self.leaders}
        return [p for pid, p in self.members.items() if pid not in old or old[pid].ticks != p.ticks]

    def _grow(self, fresh: Dict[int, Proc]) -> None:
        """Take in the children of members, and theirs."""
        children: Dict[int, List[Proc]] = {}
        for proc in fresh.values():
            if proc.pid not in self.members:
                children.setdefault(proc.ppid, []).append(proc)
        queue = [self.me]
        queue.extend(self.members)
        while queue:
            parent = queue.pop()
            for proc in children.pop(parent, ()):
                if self.add(proc):
                    queue.append(proc.pid)

    def add(self, proc: Proc) -> bool:
        """Make it a member, unless it is one that must never be signalled."""
        if proc.pid <= 1 or self._protected.get(proc.pid) == proc.ticks:
            return False
        parent = self.members.get(proc.ppid)
        if proc.pid in self.leaders:
            proc.root = proc.pid
        elif parent is not None and parent.root:
            proc.root = parent.root
        elif proc.session in self.leaders:
            proc.root = proc.session
        self.members[proc.pid] = proc
        self.roots[proc.pid] = proc.root
        return True

    def is_marked(self, pid: int) -> bool:
        """True when it is this user's and carries this run's and this node's mark."""
        if pid in self._protected:
            return False
        environ = environ_of(pid)
        return all(environ.get(n) == value for n, value in self._mark.items()) and owner_of(pid) == os.getuid()

    def chase(self, seconds: float, kill: bool) -> bool:
        """Look at the newest processes as they come; True when one of them carries our mark.

        What re-forks without being our descendant is gone before a scan of /proc gets to it. The kernel tells which
        pid it gave out last.
        """
        found = False
        end, turns, before = time.monotonic() + seconds, 0, newest_pid() - 4
        while turns < 200 or time.monotonic() < end:
            turns += 1
            newest = newest_pid()
            if newest == before + 1:
                time.sleep(0.0002)  # nobody forks
            for pid in range(max(before + 1, newest - 4), newest + 1) if newest > before else [newest]:
                found = self._strike(pid, kill) or found
            before = newest - 1  # once more: it may have been between fork and exec
        return found

    def _strike(self, pid: int, kill: bool) -> bool:
        """True for a marked process that was not known; `kill` it at once, with as few steps as possible."""
        if pid <= 1 or pid == self.me or pid in self.members or pid in self._protected:
            return False
        fd = -1
        try:
            if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
                fd = os.pidfd_open(pid)
            if not self.is_marked(pid):
                return False
            if kill and fd >= 0:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            elif kill:
                os.kill(pid, signal.SIGKILL)
            return True
        except OSError:
            return False  # gone already, or a thread
        finally:
            if fd >= 0:
                os.close(fd)

    def living(self) -> List[Proc]:
        """The members that lived at the last full look."""
        return [proc for proc in self.members.values() if proc.alive]

    def children(self) -> List[int]:
        """Direct children, dead ones too: until we have waited for one, its pid cannot be anybody else's."""
        path = "/proc/self/task/%d/children" % self.me
        data = read_file(path, 1 << 20)
        if data or os.path.exists(path):
            return [int(word) for word in data.split()]
        return [p.pid for p in map(read_proc, all_pids()) if p is not None and p.ppid == self.me]

    def send(self, proc: Proc, number: int) -> bool:
        """Signal one process, if it still is the one that was looked at."""
        if proc.pid <= 1 or proc.pid == self.me or self._protected.get(proc.pid) == proc.ticks:
            return False
        fd = -1
        try:
            if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
                try:
                    fd = os.pidfd_open(proc.pid)
                except OSError as err:
                    if err.errno not in (errno.ENOSYS, errno.EPERM, errno.EMFILE, errno.ENFILE):
                        return False
            now = read_proc(proc.pid)
            if now is None or now.ticks != proc.ticks:
                return False
            if fd >= 0:
                signal.pidfd_send_signal(fd, number)
            else:
                os.kill(proc.pid, number)
            return True
        except OSError:
            return False  # gone, or not for us to signal: then it is named as a survivor
        finally:
            if fd >= 0:
                os.close(fd)

    def find_root(self, pid: int) -> Optional[int]:
        """The leader that a pid descends from; 0 for a member without one, None for a stranger."""
        if pid in self.roots:
            return self.roots[pid]
        at = pid
        for _ in range(64):
            proc = read_proc(at)
            if proc is None or at <= 1:
                return None
            if at in self.leaders:
                return at
            if proc.ppid == self.me:
                return proc.session if proc.session in self.leaders else 0
            if self.roots.get(at):
                return self.roots[at]
            at = proc.ppid
        return None


# -- heartbeats ------------------------------------------------------------------------------------------------


class BeatFile:
    """One file of the heartbeat directory, read as it grows."""

    def __init__(self) -> None:
        self.inode = 0
        self.offset = 0
        self.rest = b""
        self.skipping = False  # inside a line that is too long to be a record
        self.written_at = 0.0

    def read(self, path: str) -> List[bytes]:
        """The lines that were completed since the last time."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return []
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                return []
            if info.st_ino != self.inode or info.st_size < self.offset:
                self.inode, self.offset, self.rest, self.skipping = info.st_ino, 0, b"", False
            if info.st_size - self.offset > 4 * MAX_BEAT_READ:
                # Nobody beats that fast. The newest record is the one that counts.
                self.offset, self.rest, self.skipping = info.st_size - MAX_BEAT_READ, b"", True
            data = os.pread(fd, MAX_BEAT_READ, self.offset)
            self.written_at = info.st_mtime
        except OSError:
            return []
        finally:
            os.close(fd)
        self.offset += len(data)
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        if self.skipping and lines:
            self.skipping = False
            del lines[0]
        if self.skipping or len(self.rest) > MAX_BEAT_LINE:
            self.rest, self.skipping = b"", True
        return [line for line in lines if 0 < len(line) <= MAX_BEAT_LINE]


class Beats:
    """The heartbeat directory of one attempt -> at most one record for each rank and second."""

    def __init__(self, folder: str, run_id: str, resumed: bool = False) -> None:
        self.latest: Dict[int, Frame] = {}
        self._resumed = resumed  # the first look finds what an agent before us has seen already
        self._folder = folder
        self._run_id = run_id
        self._files: Dict[str, BeatFile] = {}

    def poll(self, rank_of: Callable[[int, Any], Optional[int]], attempt: int) -> List[Frame]:
        """New beats.

        Args:
            rank_of: (pid, rank as written) -> the rank it belongs to; None: not one of ours.
        """
        changed: Dict[int, Frame] = {}
        try:
            names = [n for n in os.listdir(self._folder) if n.endswith(".jsonl")][:4096]
        except OSError:
            return []
        for name in names:
            file = self._files.setdefault(name, BeatFile())
            for line in file.read(os.path.join(self._folder, name)):
                record = self._parse(line)
                rank = None if record is None else rank_of(record["pid"], record.get("rank"))
                if record is not None and rank is not None:
                    # When it was seen here, so that nobody has to trust another clock.
                    at = min(time.time(), file.written_at) if self._resumed else time.time()
                    changed[rank] = self._beat(record, rank, attempt, at)
        self._resumed = False
        self.latest.update(changed)
        return list(changed.values())

    def _parse(self, line: bytes) -> Optional[Frame]:
        try:
            record = as_object(json.loads(line.decode("utf-8")))
        except (ValueError, RecursionError):
            return None
        if record.get("run_id") != self._run_id:
            return None
        pid = record.get("pid")
        return record if isinstance(pid, int) and not isinstance(pid, bool) and 0 < pid < 1 << 31 else None

    def _beat(self, record: Frame, rank: int, attempt: int, at: float) -> Frame:
        before = self.latest.get(rank, {})
        iteration, sequence, phase = record.get("iteration"), record.get("progress_seq"), record.get("phase")
        return {
            "t": "beat",
            "attempt": attempt,
            "rank": rank,
            "event": str(record.get("event"))[:40],
            "iteration": iteration if type(iteration) is int else before.get("iteration"),
            "progress_seq": sequence if type(sequence) is int else before.get("progress_seq"),
            "phase": phase[:80] if isinstance(phase, str) else None,
            "checkpoint_active": record.get("checkpoint_active") is True,
            "at": at,
        }


# -- starting a process ----------------------------------------------------------------------------------------


def find_bash(environ: Dict[bytes, bytes]) -> str:
    """Where bash is.

    Raises:
        FileNotFoundError: nowhere.
    """
    for folder in [*environ.get(b"PATH", b"").split(b":"), b"/bin", b"/usr/bin", b"/usr/local/bin"]:
        path = os.path.join(os.fsdecode(folder), "bash")
        if folder.startswith(b"/") and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(errno.ENOENT, "there is no bash on this node")


def spawn(script: str, folder: str, log_path: str, environ: Dict[bytes, bytes], umask: int) -> int:
    """Start `bash script` in `folder`, in its own session, its output appended to `log_path`. Returns its pid.

    Raises:
        OSError: it could not be started.
    """
    bash = find_bash(environ)
    if not os.path.isfile(os.path.join(folder, script)):
        raise FileNotFoundError(errno.ENOENT, "%s is gone" % os.path.join(folder, script))
    out = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
    try:
        # Until the child has dropped our handlers, a signal to it would be taken for one to us.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _become(bash, script, folder, out, environ, umask)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    finally:
        os.close(out)


def _become(bash: str, script: str, folder: str, out: int, environ: Dict[bytes, bytes], umask: int) -> NoReturn:
    """The child's side of `spawn`."""
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(folder)
        os.umask(umask)
        for number in signal.valid_signals():
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                try:
                    signal.signal(number, signal.SIG_DFL)
                except (OSError, ValueError):
                    pass  # glibc keeps two of the real-time signals for itself
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(bash, ["bash", script], environ)
    except OSError as err:
        log("trainui: %s cannot be started in %s: %s" % (script, folder, words(err)))
    finally:
        # Whatever happened: this copy of the agent must not go on as one.
        os._exit(127)


def last_lines(path: str, start: int) -> str:
    """The last lines of a hook's output, fit for one sentence."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - 2048))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = ["".join(c for c in line if c.isprintable()).strip() for line in text.split("\n")]
    return " | ".join([line for line in lines if line][-3:])[-400:]


# -- logs ------------------------------------------------------------------------------------------------------


class LogStream:
    """A rank's log on its way to one connection. The file is the buffer, and is open only while it is read."""

    def __init__(self, path: str, rank: int, attempt: int, offset: int) -> None:
        self.path = path
        self.rank = rank
        self.attempt = attempt
        self.offset = offset
        self.went_back = False  # the file is not the one that was read before: said with the next frame
        self.told: Optional[Tuple[int, bool]] = None  # the last `logend`
        self._inode = 0
        self._tail: Optional[bytes] = None  # the bytes before `offset`, as they were

    def read(self, limit: int) -> bytes:
        """What is new, at most `limit` bytes; b"" where there is nothing, or no file."""
        try:
            info = os.stat(self.path)
            if (info.st_ino == self._inode and info.st_size == self.offset) or not stat.S_ISREG(info.st_mode):
                return b""
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return b""
        try:
            return self._read(fd, limit)
        except OSError:
            return b""
        finally:
            os.close(fd)

    def _read(self, fd: int, limit: int) -> bytes:
        inode = os.fstat(fd).st_ino
        if self._tail is None:
            wanted = min(LOG_TAIL, self.offset)
            self._tail = os.pread(fd, wanted, self.offset - wanted)
            if len(self._tail) < wanted:
                self.go_back()
        elif inode != self._inode:
            self.go_back()
        tail = self._tail
        data = os.pread(fd, len(tail) + limit, self.offset - len(tail))
        if data.startswith(tail):
            data = data[len(tail) :]
        else:
            # Emptied by somebody, and perhaps written on since: ranks only append.
            self.go_back()
            data = os.pread(fd, limit, 0)
        self._inode = inode
        self.offset += len(data)
        self._tail = data[-LOG_TAIL:] if len(data) >= LOG_TAIL else (self._tail + data)[-LOG_TAIL:]
        return data

    def go_back(self) -> None:
        """Begin anew, and say so."""
        self.offset, self._tail, self.went_back = 0, b"", True

    def check(self, size: int, digest: str) -> None:
        """Go back where the `size` bytes before `offset` are not those that the reader has."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset - size)
                found = file.read(size)
        except OSError:
            return
        if hashlib.sha256(found).hexdigest() != digest:
            self.go_back()

    def frame(self, data: bytes) -> Frame:
        """The header for what `read` gave."""
        head: Frame = {"t": "log", "rank": self.rank, "attempt": self.attempt, "offset": self.offset - len(data)}
        if self.went_back:
            head["truncated"] = True
            self.went_back = False
        head["n"] = len(data)
        return head


def log_sizes(node_dir: str) -> Frame:
    """Attempt -> rank -> bytes (numbers as text) of the logs in a node's folder, the newest attempts only."""
    found: Frame = {}
    try:
        names = os.listdir(node_dir)
    except OSError:
        return found
    numbers = sorted((int(n[8:]) for n in names if n.startswith("attempt_") and n[8:].isdigit()), reverse=True)
    for number in numbers[:MAX_TOLD_ATTEMPTS]:
        sizes: Dict[str, int] = {}
        try:
            with os.scandir(os.path.join(node_dir, "attempt_%d" % number)) as entries:
                for entry in entries:
                    name = entry.name
                    if name.startswith("rank_") and name.endswith(".log") and name[5:-4].isdigit():
                        sizes[str(int(name[5:-4]))] = entry.stat().st_size
        except OSError:
            continue
        found[str(number)] = sizes
    return found


# -- what runs -------------------------------------------------------------------------------------------------

RANK_FIELDS = ("pid", "start_ticks", "started_at", "ended_at", "code", "signal", "lost", "by_us", "error")


class Rank:
    """One process that this node owes to the job."""

    def __init__(self, rank: int, local_rank: int) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.pid: Optional[int] = None
        self.start_ticks: Optional[int] = None
        self.started_at: Optional[float] = None
        self.ended_at: Optional[float] = None
        self.code: Optional[int] = None
        self.signal: Optional[int] = None
        self.lost = False
        self.by_us = False
        self.error: Optional[str] = None
        self.adopted = False  # not our child: its end can be seen, its status cannot
        self.recorded = True  # False: its .exit is still to be written
        self.complained = False  # about that

    @property
    def running(self) -> bool:
        return self.pid is not None and self.ended_at is None

    def to_json(self) -> Frame:
        data: Frame = {"rank": self.rank}
        data.update((name, getattr(self, name)) for name in RANK_FIELDS)
        return data

    def load(self, data: Frame) -> None:
        for name in RANK_FIELDS:
            if name in data:
                setattr(self, name, data[name])


class Hook:
    """A run of before_start or after_stop."""

    def __init__(self, name: str, pid: int, log_path: str, log_start: int) -> None:
        self.name = name
        self.pid = pid
        self.status: Optional[int] = None  # as waitpid gave it
        self.log_path = log_path
        self.log_start = log_start

    def failure(self) -> Optional[str]:
        """A sentence, or None where it went well."""
        if self.status is None or self.status == 0:
            return None
        if os.WIFSIGNALED(self.status):
            how = "was ended by signal %d" % os.WTERMSIG(self.status)
        else:
            how = "failed with status %d" % os.WEXITSTATUS(self.status)
        tail = last_lines(self.log_path, self.log_start)
        return "hooks.%s %s%s" % (self.name, how, ": " + tail if tail else "; it printed nothing")


class Attempt:
    """One start of all ranks, until everything is down."""

    def __init__(self, number: int, env: Dict[str, str], ranks: List[Rank]) -> None:
        self.number = number
        self.env = env
        self.ranks = ranks
        self.phase = IDLE
        self.error: Optional[str] = None
        self.deadline: Optional[float] = None
        self.survivors: List[Frame] = []
        self.began = False  # something of it has run, so there is something to clean up
        self.hook: Optional[Hook] = None


class Connection:
    """One bridge, or `agent.py stop`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.decoder = Decoder()
        self.out = bytearray()
        self.writing = False
        self.released = False
        self.streams: Dict[Tuple[int, int], LogStream] = {}  # the one that waits longest first
        self.reads: List[Frame] = []
        self.filled_at = 0.0  # since when there was no room for log text
        self.slow = False


class Agent:
    """The loop. All state that must outlive it is in files; all else is in the attempt."""

    def __init__(
        self,
        spec: Frame,
        listener: socket.socket,
        socket_path: str,
        environ: Dict[bytes, bytes],
        umask: int,
        protected: Dict[int, int],
    ) -> None:
        self.spec = spec
        self.node_dir: str = spec["node_dir"]
        self.attempt: Optional[Attempt] = None
        self.adopted = False
        self.finished = False
        self.childless = True
        self.family = Family(spec["run_id"], self.node_dir, protected)
        self.beats = Beats("", "")
        self._environ = environ
        self._umask = umask
        self._listener = listener
        self._socket_path = socket_path
        self._socket_inode = inode_of(socket_path)
        self._selector = selectors.DefaultSelector()
        self._connections: Dict[int, Connection] = {}
        self._pidfds: Dict[int, int] = {}
        self._released = False
        self._terminated = False
        self._dirty = True
        self._ledger = b""
        self._ledger_due = False
        self._boot_id = boot_id()
        me = read_proc(os.getpid())
        self._ticks = me.ticks if me else 0
        now = time.monotonic()
        self._alone_since = now
        self._next_scan = now
        self._next_full = now + FULL_SCAN_S
        self._next_socket_check = now + SOCKET_CHECK_S
        self._next_record_try = now
        self._save_at = now
        self._listen_at: Optional[float] = now
        self.shared: Optional[bool] = spec.get("shared")
        self._look_at = float("inf")  # when to look for more in logs; never, while nobody asks
        self._look_s = LONGEST_LOOK_S
        self._wake_read, self._wake_write = os.pipe()
        # The sweep's own state.
        self._kill_at = 0.0
        self._killing_since: Optional[float] = None
        self._leaderless = False
        self._termed: Dict[Tuple[int, int], float] = {}
        self._quiet_looks = 0
        self._last_look: FrozenSet[Tuple[int, int]] = frozenset()

    # -- the loop --

    def run(self) -> None:
        """Serve until there is nothing left to do."""
        self._take_signals()
        self._selector.register(self._wake_read, selectors.EVENT_READ, "wake")
        troubles = 0
        while not self.finished:
            try:
                self._wait(self._timeout())
                self._tick()
                troubles = 0
            except Exception:  # a bug of ours must not orphan the ranks: write it down and go on
                troubles += 1
                if troubles < 10 or troubles % 100 == 0:
                    log("unexpected, %d in a row: %s" % (troubles, traceback.format_exc()))
                time.sleep(min(1.0, 0.01 * troubles))
        self._leave()

    def _take_signals(self) -> None:
        def on_term(_number: int, _frame: Any) -> None:
            self._terminated = True

        def ignore(_number: int, _frame: Any) -> None:
            pass

        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        # Functions and not SIG_IGN, which ranks would inherit.
        for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "TSTP", "TTIN", "TTOU", "CHLD"):
            signal.signal(getattr(signal, "SIG" + name), ignore)
        signal.signal(signal.SIGTERM, on_term)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _wait(self, seconds: float) -> None:
        """Return when the time is over or something happens, other than that log text goes out."""
        end = time.monotonic() + seconds
        happened = False
        while not happened:
            until = min(end, self._look_at) - time.monotonic()
            for key, mask in self._selector.select(max(0.0, until)):
                self._dispatch(key, mask)
                happened = happened or mask != selectors.EVENT_WRITE
            now = time.monotonic()
            if now >= self._look_at:
                self._send_logs(now)
            happened = happened or now >= end

    def _timeout(self) -> float:
        now = time.monotonic()
        if self._listen_at is not None:
            return max(0.0, min(0.1, self._listen_at - now))
        phase = self.attempt.phase if self.attempt else IDLE
        if phase == STOPPING or (phase == AFTER_STOP and self._kill_at != float("inf")):
            if self._killing_since is None:
                return max(0.0, min(0.1, self._kill_at - now))
            since = now - self._killing_since
            return 0.005 if since < 2.0 else 0.2 if since < SURVIVORS_AFTER_S else 1.0
        if phase in (IDLE, DOWN):
            return 5.0 if self._connections and not self._pending_records() else 1.0
        return max(0.0, min(SCAN_S, self._next_scan - now))

    def _dispatch(self, key: selectors.SelectorKey, mask: int) -> None:
        if key.data == "wake":
            try:
                while os.read(self._wake_read, 4096):
                    pass
            except BlockingIOError:
                pass
        elif key.data == "listener":
            self._accept()
        elif isinstance(key.data, Connection):
            if mask & selectors.EVENT_READ:
                self._receive(key.data)
            if mask & selectors.EVENT_WRITE and key.data.sock.fileno() in self._connections:
                self._flush(key.data)
                self._has_room(key.data)
        # Anything else is a pidfd: the tick looks after it.

    def _tick(self) -> None:
        now = time.monotonic()
        if self._listen_at is not None and now >= self._listen_at:
            self._listen_at = None
            self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        if self._terminated and self.attempt is not None and self.attempt.phase not in (STOPPING, AFTER_STOP, DOWN):
            self.stop(float(self.spec.get("stop_grace_s", 15.0)))
        self._reap()
        self._look_after_adopted()
        self._advance()
        if now >= self._next_scan and self.attempt is not None and self.attempt.phase not in (IDLE, DOWN):
            self._next_scan = now + SCAN_S
            self._scan(now)
        if now >= self._next_socket_check:
            self._next_socket_check = now + SOCKET_CHECK_S
            self._check_socket()
        if self._pending_records():
            self._write_records()
        if self._ledger_due:
            self._write_ledger()
        if self._dirty and now >= self._save_at:
            self._save()
        self._maybe_finish(now)

    def _maybe_finish(self, now: float) -> None:
        if self.attempt is not None and self.attempt.phase != DOWN:
            return
        for connection in list(self._connections.values()):
            if (connection.released or self._terminated) and not connection.out:
                self._drop(connection)
        if self._connections:
            return
        if self._terminated or self._released:
            self.finished = True
        elif now - self._alone_since >= LINGER_S:
            # A folder that is gone will take no record any more.
            self.finished = not self._pending_records() or not os.path.isdir(self.node_dir)

    def _leave(self) -> None:
        self._write_records()
        self._save()
        self._remove_socket()
        log("agent %d ends" % os.getpid())

    # -- connections --

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as err:
            # No descriptor left: asking again at once would be a busy loop.
            log("cannot accept a connection: %s" % words(err))
            self._selector.unregister(self._listener)
            self._listen_at = time.monotonic() + 1.0
            return
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if peer_uid(sock) != os.getuid() or (limit != resource.RLIM_INFINITY and sock.fileno() > limit - SPARE_FDS):
            # Without descriptors of our own we could neither look at processes nor write down their ends.
            sock.close()
            return
        sock.setblocking(False)
        connection = Connection(sock)
        self._connections[sock.fileno()] = connection
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self._send(connection, self._told_state())

    def _receive(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        try:
            for head in connection.decoder.feed(data):
                self._answer(connection, head)
        except (ValueError, RecursionError) as err:
            log("a connection is dropped: %s" % err)
            self._drop(connection)

    def _send(self, connection: Connection, head: Frame) -> None:
        self._queue(connection, encode(head))

    def broadcast(self, head: Frame) -> None:
        """Tell everybody who is connected."""
        self._look_at = 0.0  # it may be the end of a log
        data = encode(head)
        for connection in list(self._connections.values()):
            self._queue(connection, data)

    def _queue(self, connection: Connection, data: bytes) -> None:
        if len(connection.out) + len(data) > MAX_BACKLOG:
            # It will come back, and learn all it missed from the state.
            self._drop(connection)
            return
        connection.out += data
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        fd = connection.sock.fileno()
        if fd not in self._connections:
            return
        try:
            while connection.out:
                sent = connection.sock.send(memoryview(connection.out)[:65536])
                del connection.out[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._drop(connection)
            return
        writing = bool(connection.out)
        if writing != connection.writing:
            connection.writing = writing
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
            self._selector.modify(connection.sock, events, connection)

    def _drop(self, connection: Connection) -> None:
        fd = connection.sock.fileno()
        if self._connections.pop(fd, None) is not None:
            self._selector.unregister(connection.sock)
            connection.sock.close()
            self._alone_since = time.monotonic()

    def _check_socket(self) -> None:
        """Cleaners of /tmp take old sockets away, and a logout the whole runtime folder: then make a new one."""
        if os.path.lexists(self._socket_path):
            return
        listener = None
        for path in [self._socket_path, *socket_paths(self.node_dir)]:
            try:
                listener = bind_socket(path)
            except (OSError, Fatal):
                continue
            self._socket_path = path
            break
        if listener is None:
            return
        log("the socket was gone, the new one is %s" % self._socket_path)
        self._dirty = True
        if self._listen_at is None:
            self._selector.unregister(self._listener)
        self._listener.close()
        self._listener = listener
        self._socket_inode = inode_of(self._socket_path)
        self._listen_at = time.monotonic()

    def _remove_socket(self) -> None:
        try:
            if inode_of(self._socket_path) == self._socket_inode:
                os.unlink(self._socket_path)
        except OSError:
            pass
        self._listener.close()

    # -- requests --

    def _answer(self, connection: Connection, head: Frame) -> None:
        name = head.get("t")
        if name == "disk":
            # Our own bridge: whether it found the engine's token. Once seen, it cannot have been by chance.
            if head.get("shared") is True or self.shared is None:
                self._dirty = self._dirty or self.shared is not head.get("shared")
                self.shared = head.get("shared") is True
            name = "hello"
        if name == "hello":
            self._send(connection, self._told_state())
            return
        if name == "read":
            self._queue_read(connection, head)
            return
        answer: Frame = {"t": "re", "id": head.get("id"), "ok": True}
        try:
            after = self._do(connection, str(name), head, answer)
        except (ValueError, TypeError, KeyError, OverflowError) as err:
            answer["ok"], answer["error"], after = False, "%s: %s" % (name, err), None
        self._send(connection, answer)
        if after is not None:
            after()

    def _do(self, connection: Connection, name: str, head: Frame, answer: Frame) -> Optional[Callable[[], None]]:
        """Check a request and complete its answer; returns what to do once the answer is sent."""
        if name == "ping":
            answer["now"] = time.time()
        elif name == "port":
            answer["port"] = free_port()
        elif name == "start":
            return self._check_start(int(head["attempt"]), dict(head.get("env") or {}))
        elif name == "stop":
            grace = float(head.get("grace_s", self.spec.get("stop_grace_s", 15.0)))
            return lambda: self.stop(max(0.0, grace))
        elif name == "grace":
            self._add_grace(float(head["add_s"]))
        elif name == "signal":
            self._signal_ranks([int(rank) for rank in head["ranks"]], signal_number(head["sig"]))
        elif name == "subscribe":
            self._subscribe(connection, head)
        elif name == "unsubscribe":
            connection.streams.pop((int(head["attempt"]), int(head["rank"])), None)
        elif name == "release":
            connection.released = self._released = True
        else:
            raise ValueError("this agent knows no such request")
        return None

    def _check_start(self, number: int, env: Dict[Any, Any]) -> Optional[Callable[[], None]]:
        now = self.attempt
        if now is not None and now.number == number:
            return None
        if now is not None and now.phase != DOWN:
            raise ValueError("attempt %d is %s, it must be down first" % (now.number, now.phase))
        if now is not None and number < now.number:
            raise ValueError("attempt %d is over, attempt %d came after it" % (number, now.number))
        if self._terminated:
            raise ValueError("the agent is ending, because it got SIGTERM")
        self._released = False
        return lambda: self.start(number, {str(k): str(v) for k, v in env.items()})

    def _add_grace(self, seconds: float) -> None:
        attempt = self.attempt
        if attempt is None or attempt.phase != STOPPING or self._killing_since is not None:
            raise ValueError("nothing is waiting for SIGKILL")
        self._kill_at += seconds
        self._termed = {key: due + seconds for key, due in self._termed.items()}
        self._tell_phase(deadline=(attempt.deadline or time.time()) + seconds)

    def _signal_ranks(self, numbers: List[int], sig: int) -> None:
        self._reap()
        ranks = {rank.rank: rank for rank in self.attempt.ranks} if self.attempt else {}
        missing = [str(n) for n in numbers if n not in ranks or not ranks[n].running]
        for number in numbers:
            if number in ranks and ranks[number].running:
                self._signal_leader(ranks[number], sig, group=False)
        if missing:
            raise ValueError("not running: rank %s" % ", ".join(missing))

    def state(self) -> Frame:
        """The `state` frame."""
        attempt = self.attempt
        return {
            "t": "state",
            "pid": os.getpid(),
            "run_id": self.spec["run_id"],
            "attempt": attempt.number if attempt else None,
            "phase": attempt.phase if attempt else IDLE,
            "error": attempt.error if attempt else None,
            "deadline": attempt.deadline if attempt else None,
            "survivors": attempt.survivors if attempt else [],
            "ranks": [rank.to_json() for rank in attempt.ranks] if attempt else [],
            "beats": {str(rank): beat for rank, beat in self.beats.latest.items()},
            "adopted": self.adopted,
            "shared": self.shared,
            "now": time.time(),
        }

    def _told_state(self) -> Frame:
        return dict(self.state(), logs=log_sizes(self.node_dir))

    # -- logs --

    def _log_of(self, head: Frame) -> LogStream:
        """The log that a request is about.

        Raises:
            ValueError: there can be no such log here.
        """
        rank, attempt, offset = int(head["rank"]), int(head["attempt"]), int(head.get("offset", 0))
        if rank not in [int(r["rank"]) for r in self.spec["ranks"]]:
            raise ValueError("rank %d is not on this node" % rank)
        if attempt < 0 or offset < 0:
            raise ValueError("attempt and offset cannot be negative")
        path = os.path.join(self.node_dir, "attempt_%d" % attempt, "rank_%05d.log" % rank)
        return LogStream(path, rank, attempt, offset)

    def _subscribe(self, connection: Connection, head: Frame) -> None:
        stream = self._log_of(head)
        tail: Frame = head.get("tail") or {}
        if tail:
            size = int(tail["n"])
            if not 0 < size <= min(stream.offset, MAX_LOG_TAIL):
                raise ValueError("the tail must lie before the offset")
            stream.check(size, str(tail["sha256"]))
        connection.streams[(stream.attempt, stream.rank)] = stream
        self._look_at = 0.0

    def _queue_read(self, connection: Connection, head: Frame) -> None:
        """Answer later: when the connection has room, which it usually has at once."""
        try:
            self._log_of(head)
            if int(head["size"]) <= 0:
                raise ValueError("size must be positive")
            if len(connection.reads) >= MAX_LOG_READS:
                raise ValueError("too many at once")
        except (ValueError, TypeError, KeyError) as err:
            self._send(connection, {"t": "re", "id": head.get("id"), "ok": False, "error": "read: %s" % err})
            return
        connection.reads.append(head)
        self._look_at = 0.0

    def _send_logs(self, now: float) -> None:
        """To everybody what is new, as far as it is taken; then decide when to look again."""
        most, more = 0, False
        for connection in list(self._connections.values()):
            while connection.reads and len(connection.out) < LOG_ROOM:
                self._answer_read(connection, connection.reads.pop(0))
            for stream in list(connection.streams.values()):
                if len(connection.out) >= LOG_ROOM:
                    break  # we are woken when it has taken some
                size, full = self._send_log(connection, stream)
                most, more = max(most, size), more or full
            self._flush(connection)
            if len(connection.out) >= LOG_ROOM and not connection.filled_at:
                connection.filled_at = now
        if more:
            self._look_s = 0.0
        elif most:
            self._look_s = SHORTEST_LOOK_S if most >= SLOW_LOG_CHUNK // 4 else USUAL_LOOK_S
        else:
            self._look_s = min(LONGEST_LOOK_S, max(SHORTEST_LOOK_S, 2 * self._look_s))
        asked = any(connection.streams for connection in self._connections.values())
        self._look_at = now + self._look_s if asked else float("inf")

    def _has_room(self, connection: Connection) -> None:
        """It took some bytes: go on with its logs if it took enough."""
        if len(connection.out) < LOG_ROOM and (connection.streams or connection.reads):
            self._look_at = 0.0
            connection.slow = connection.filled_at > 0 and time.monotonic() - connection.filled_at > SLOW_S
            connection.filled_at = 0.0

    def _send_log(self, connection: Connection, stream: LogStream) -> Tuple[int, bool]:
        """A frame with what is new in one log: its size, and whether there may be more."""
        key = (stream.attempt, stream.rank)
        over = self._is_over(stream)  # asked first: what is written later would be missed
        limit = SLOW_LOG_CHUNK if connection.slow else LOG_CHUNK
        data = stream.read(limit)
        del connection.streams[key]
        connection.streams[key] = stream  # the others come first the next time
        if data or stream.went_back:
            connection.out += encode(stream.frame(data))
            connection.out += data
        elif over is not None and stream.told != (stream.offset, over):
            stream.told = (stream.offset, over)
            end: Frame = {"t": "logend", "rank": stream.rank, "attempt": stream.attempt}
            connection.out += encode(dict(end, size=stream.offset, final=over))
            if over:
                del connection.streams[key]
        return len(data), len(data) == limit

    def _is_over(self, stream: LogStream) -> Optional[bool]:
        """None: its rank runs, or will. False: it ended, but what it left may write. True: nobody writes any more."""
        attempt = self.attempt
        if attempt is None:
            return True if os.path.exists(stream.path) else None
        if stream.attempt != attempt.number:
            return True if stream.attempt < attempt.number else None
        if attempt.phase == DOWN:
            return True
        ended = any(rank.rank == stream.rank and rank.ended_at is not None for rank in attempt.ranks)
        return False if ended else None

    def _answer_read(self, connection: Connection, head: Frame) -> None:
        answer: Frame = {"t": "re", "id": head.get("id"), "ok": True, "offset": int(head.get("offset", 0))}
        data = b""
        try:
            with open(self._log_of(head).path, "rb", buffering=0) as file:
                answer["size"] = os.fstat(file.fileno()).st_size
                data = os.pread(file.fileno(), min(int(head["size"]), MAX_LOG_READ), answer["offset"])
                answer["n"] = len(data)
        except (OSError, OverflowError) as err:
            answer["ok"], answer["error"] = False, "read: %s" % (words(err) if isinstance(err, OSError) else err)
            data = b""
        connection.out += encode(answer)
        connection.out += data

    # -- starting --

    def start(self, number: int, env: Dict[str, str]) -> None:
        """Begin an attempt: folders, before_start, ranks."""
        ranks = [Rank(int(r["rank"]), int(r["local_rank"])) for r in self.spec["ranks"]]
        attempt = self.attempt = Attempt(number, env, ranks)
        self.adopted = self.family.adopting = False
        self.family.roots.clear()
        self.family.leaders.clear()
        self._next_scan = time.monotonic()
        folder = self._attempt_dir()
        self.beats = Beats(os.path.join(folder, "heartbeat"), self.spec["run_id"])
        at = folder
        try:
            for at in (folder, os.path.join(folder, "heartbeat"), os.path.join(folder, "dumps")):
                os.makedirs(at, 0o700, exist_ok=True)
            self._make_users_dirs()
        except OSError as err:
            self._set_phase(DOWN, error="%s: %s" % (err.filename or at, words(err)))
            return
        attempt.began = True
        if self.spec.get("before_start"):
            self._start_hook("before_start", BEFORE_START)
        else:
            self._start_ranks()

    def _attempt_dir(self) -> str:
        assert self.attempt is not None
        return os.path.join(self.node_dir, "attempt_%d" % self.attempt.number)

    def _make_users_dirs(self) -> None:
        # The user's folders, so the user's umask.
        ours = os.umask(self._umask)
        try:
            cwd: str = self.spec["cwd"]
            wanted: List[str] = self.spec.get("mkdirs") or []
            if wanted and not os.path.isdir(cwd):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), cwd)
            for path in wanted:
                os.makedirs(os.path.join(cwd, path), exist_ok=True)
        finally:
            os.umask(ours)

    def _rank_environ(self) -> Dict[bytes, bytes]:
        assert self.attempt is not None
        environ = dict(self._environ)
        added = dict(self.attempt.env)
        added["TRAINUI_ATTEMPT"] = str(self.attempt.number)
        added["TRAINUI_RUN_ID"] = self.spec["run_id"]
        added["TRAINUI_NODE_DIR"] = self.node_dir
        environ.update((os.fsencode(name), os.fsencode(value)) for name, value in added.items())
        return environ

    def _start_hook(self, name: str, phase: str) -> None:
        """Enter the hook's phase and start it; down, with an error, where that fails."""
        assert self.attempt is not None
        self._set_phase(phase)
        # Should we be killed now, a fresh agent knows what the process that it finds is.
        self._save()
        path = os.path.join(self._attempt_dir(), name + ".log")
        try:
            size = os.stat(path).st_size
        except OSError:
            size = 0
        try:
            pid = spawn(name + ".sh", self.node_dir, path, self._rank_environ(), self._umask)
        except OSError as err:
            self._set_phase(DOWN, error="hooks.%s could not be started: %s" % (name, words(err)))
            return
        self.attempt.hook = Hook(name, pid, path, size)
        self.childless = False

    def _start_ranks(self) -> None:
        attempt = self.attempt
        assert attempt is not None
        self._set_phase(RUNNING)
        # Should we be killed in the middle, a fresh agent knows that ranks may run.
        self._save()
        environ = self._rank_environ()
        for rank in attempt.ranks:
            environ[b"LOCAL_RANK"] = b"%d" % rank.local_rank
            try:
                rank.pid = spawn("run.sh", self.node_dir, self._rank_file(rank, "log"), environ, self._umask)
            except OSError as err:
                self._end(rank, error="it could not be started: %s: %s" % (err.filename or "run.sh", words(err)))
                continue
            rank.started_at = time.time()
            proc = read_proc(rank.pid)
            rank.start_ticks = proc.ticks if proc else None
            self.family.leaders.add(rank.pid)
            self.family.roots[rank.pid] = rank.pid
            self.childless = False
            self.broadcast(
                {
                    "t": "spawned",
                    "attempt": attempt.number,
                    "rank": rank.rank,
                    "pid": rank.pid,
                    "start_ticks": rank.start_ticks,
                    "at": rank.started_at,
                }
            )
        self._save()
        self.family.refresh(full=True)
        self._write_ledger()

    def _rank_file(self, rank: Rank, ending: str) -> str:
        return os.path.join(self._attempt_dir(), "rank_%05d.%s" % (rank.rank, ending))

    # -- ends --

    def _reap(self) -> None:
        """Wait for everything that has ended; never blocks."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                self.childless = False
                return
            self._took(pid, status)

    def _took(self, pid: int, status: int) -> None:
        self.family.members.pop(pid, None)
        attempt = self.attempt
        if attempt is None:
            return
        if attempt.hook is not None and attempt.hook.pid == pid:
            attempt.hook.status = status
        for rank in attempt.ranks:
            if rank.pid == pid and rank.running and not rank.adopted:
                if os.WIFSIGNALED(status):
                    self._end(rank, by_signal=os.WTERMSIG(status))
                else:
                    self._end(rank, code=os.WEXITSTATUS(status))

    def _end(
        self,
        rank: Rank,
        code: Optional[int] = None,
        by_signal: Optional[int] = None,
        lost: bool = False,
        error: Optional[str] = None,
    ) -> None:
        """A rank is over: record it, then tell."""
        assert self.attempt is not None
        rank.ended_at = time.time()
        rank.code, rank.signal, rank.lost, rank.error = code, by_signal, lost, error
        rank.recorded = False
        self._record(rank)
        self._dirty = True
        try:
            self._read_beats()  # its last step, which nobody would read once everything is down
        except OSError as err:
            log("heartbeats cannot be read: %s" % words(err))  # its end must be told all the same
        self._tell_end(rank)

    def _tell_end(self, rank: Rank) -> None:
        assert self.attempt is not None
        head = rank.to_json()
        del head["pid"], head["start_ticks"]
        head.update(t="exit", attempt=self.attempt.number, at=head.pop("ended_at"))
        self.broadcast(head)

    def _record(self, rank: Rank) -> None:
        record: Frame = {}
        for name in ("code", "signal"):
            if getattr(rank, name) is not None:
                record[name] = getattr(rank, name)
        if rank.lost:
            record["lost"] = True
        record["started_at"] = None if rank.started_at is None else rfc3339(rank.started_at)
        record["ended_at"] = None if rank.ended_at is None else rfc3339(rank.ended_at)
        record["by_us"] = rank.by_us
        record["error"] = rank.error
        try:
            write_atomically(self._rank_file(rank, "exit"), json.dumps(record).encode() + b"\n")
            rank.recorded = True
        except OSError as err:
            if not rank.complained:
                log("rank %d ended, but that cannot be written yet: %s" % (rank.rank, words(err)))
            rank.complained = True

    def _pending_records(self) -> bool:
        return self.attempt is not None and any(not rank.recorded for rank in self.attempt.ranks)

    def _write_records(self) -> None:
        now = time.monotonic()
        if self.attempt is None or (now < self._next_record_try and not self.finished):
            return
        self._next_record_try = now + 1.0
        for rank in self.attempt.ranks:
            if not rank.recorded:
                self._record(rank)

    # -- phases --

    def _set_phase(self, phase: str, error: Optional[str] = None, deadline: Optional[float] = None) -> None:
        attempt = self.attempt
        assert attempt is not None
        attempt.phase = phase
        if error:
            attempt.error = "%s; %s" % (attempt.error, error) if attempt.error else error
        self._tell_phase(deadline)
        log("attempt %d: %s%s" % (attempt.number, phase, ": " + attempt.error if attempt.error else ""))

    def _tell_phase(self, deadline: Optional[float] = None) -> None:
        attempt = self.attempt
        assert attempt is not None
        attempt.deadline = deadline
        self._dirty = True
        self.broadcast(
            {
                "t": "phase",
                "attempt": attempt.number,
                "phase": attempt.phase,
                "error": attempt.error,
                "deadline": attempt.deadline,
                "survivors": attempt.survivors,
            }
        )

    def _hook_is_over(self) -> bool:
        hook = self.attempt.hook if self.attempt else None
        return hook is None or hook.status is not None

    def _advance(self) -> None:
        attempt = self.attempt
        if attempt is None or attempt.phase in (IDLE, DOWN):
            return
        if attempt.phase == BEFORE_START and self._hook_is_over():
            failure = attempt.hook.failure() if attempt.hook else None
            attempt.hook = None
            if failure is None:
                self._start_ranks()
            else:
                attempt.error = failure
                self._begin_sweep(LEFTOVER_GRACE_S)
        if attempt.phase == RUNNING and not any(rank.running for rank in attempt.ranks):
            if self.childless and not self.family.adopting:
                self._swept()
            else:
                self._begin_sweep(LEFTOVER_GRACE_S)
        if attempt.phase == STOPPING and self._sweep():
            self._swept()
        if attempt.phase == AFTER_STOP:
            self._advance_after_stop()

    def stop(self, grace_s: float) -> None:
        """Stop the attempt; again with less grace: sooner."""
        attempt = self.attempt
        if attempt is None or attempt.phase in (IDLE, DOWN):
            return
        # Who ended by now was not ended by us.
        self._reap()
        now = time.monotonic()
        if attempt.phase in (STOPPING, AFTER_STOP):
            if attempt.phase == AFTER_STOP and not self._hook_is_over() and grace_s > 0:
                return  # it is the cleanup, and has its time
            if now + grace_s < self._kill_at:
                self._kill_at = now + grace_s
                self._tell_phase(deadline=time.time() + grace_s)
            return
        hook = attempt.hook
        self._begin_sweep(grace_s)
        if grace_s > 0:
            for rank in attempt.ranks:
                if rank.running:
                    self._signal_leader(rank, signal.SIGTERM, group=bool(self.spec.get("group_signal")))
            if hook is not None and hook.status is None:
                self._signal_group(hook.pid, signal.SIGTERM)
        self._advance()

    def _begin_sweep(self, grace_s: float) -> None:
        self._kill_at = time.monotonic() + grace_s
        self._killing_since = None
        self._leaderless = False
        self._termed = {}
        self._quiet_looks = 0
        self._last_look = frozenset()
        self._set_phase(STOPPING, deadline=time.time() + grace_s)

    def _swept(self) -> None:
        attempt = self.attempt
        assert attempt is not None
        attempt.survivors = []
        for rank in attempt.ranks:
            if rank.running:
                self._end(rank, lost=True)
        attempt.hook = None
        if self.spec.get("after_stop") and attempt.began:
            self._kill_at = float("inf")
            self._killing_since = None
            self._start_hook("after_stop", AFTER_STOP)
        else:
            self._set_phase(DOWN)
        self._ledger_due = True

    def _advance_after_stop(self) -> None:
        attempt = self.attempt
        assert attempt is not None
        now = time.monotonic()
        if not self._hook_is_over():
            if now < self._kill_at:
                return
        elif self._kill_at == float("inf"):
            self._kill_at = now + LEFTOVER_GRACE_S
            self._leaderless, self._termed, self._quiet_looks = False, {}, 0
        if self._sweep():
            attempt.survivors = []
            failure = attempt.hook.failure() if attempt.hook else None
            attempt.hook = None
            self._ledger_due = True
            self._set_phase(DOWN, error=failure)

    # -- signals to ranks, and the sweep --

    def _signal_leader(self, rank: Rank, sig: int, group: bool) -> None:
        """Signal a rank's leader, or the leader's process group, which has the leader's pid."""
        assert rank.pid is not None
        if sig in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP):
            rank.by_us = True
        proc = read_proc(rank.pid)
        if proc is None or (rank.start_ticks is not None and proc.ticks != rank.start_ticks):
            return
        if group:
            self._signal_group(rank.pid, sig)
        else:
            self.family.send(proc, sig)
        if proc.state in "Tt" and sig == signal.SIGTERM:
            # A stopped process hears nothing until it goes on.
            self.family.send(proc, signal.SIGCONT)

    def _signal_group(self, leader: int, sig: int) -> None:
        try:
            if leader > 1 and os.getpgid(leader) == leader:
                os.killpg(leader, sig)
        except OSError:
            pass

    def _sweep(self) -> bool:
        """One step on the way to no process at all; True when there is none."""
        now = time.monotonic()
        self.family.refresh(full=True)
        self._reap()
        self._look_after_adopted()
        living = self.family.living()
        if self._nothing_left(living):
            return True
        if now >= self._kill_at:
            self._kill(now, living)
            return self.childless and not self.family.adopting
        self._ask_leftovers(now, living)
        return False

    def _nothing_left(self, living: List[Proc]) -> bool:
        """Without children there are no descendants: that is certain. Else several looks must agree."""
        if self.childless and not self.family.adopting:
            return True
        look = frozenset((p.pid, p.ticks) for p in self.family.members.values())
        # The dead that somebody else must bury stay the same; a process that re-forks shows other pids each time.
        same = not living and look == self._last_look and set(self.family.children()) <= {pid for pid, _ in look}
        self._last_look = look
        if same and self.family.adopting and self.family.chase(0.03, kill=time.monotonic() >= self._kill_at):
            same = False
        self._quiet_looks = self._quiet_looks + 1 if same else 0
        return self._quiet_looks >= 3

    def _ask_leftovers(self, now: float, living: List[Proc]) -> None:
        """SIGTERM to what lives on after its leader; SIGKILL to what does not listen."""
        attempt = self.attempt
        assert attempt is not None
        leaders = {rank.pid for rank in attempt.ranks if rank.running}
        ranks_live = bool(leaders)
        if attempt.hook is not None and attempt.hook.status is None:
            leaders.add(attempt.hook.pid)
        if not leaders and not self._leaderless:
            self._leaderless = True
            self._kill_at = min(self._kill_at, now + LEFTOVER_GRACE_S)
        for proc in living:
            root = proc.root or proc.session
            if proc.pid in leaders or root in leaders:
                continue
            if ranks_live and proc.root not in self.family.leaders:
                continue  # perhaps a service that before_start left for the ranks
            due = self._termed.get((proc.pid, proc.ticks))
            if due is None:
                self._termed[(proc.pid, proc.ticks)] = min(self._kill_at, now + LEFTOVER_GRACE_S)
                self.family.send(proc, signal.SIGTERM)
                if proc.state in "Tt":
                    self.family.send(proc, signal.SIGCONT)
            elif now >= due:
                self.family.send(proc, signal.SIGKILL)

    def _kill(self, now: float, living: List[Proc]) -> None:
        """SIGKILL to all, in a short busy loop: only that catches a process that forks faster than we look."""
        attempt = self.attempt
        assert attempt is not None
        if self._killing_since is None:
            self._killing_since = now
        for rank in attempt.ranks:
            if rank.running:
                rank.by_us = True
        since = now - self._killing_since
        end = now + (0.03 if since < 2.0 else 0.005)
        before: List[int] = []
        below = [proc for proc in living if proc.ppid != self.family.me]
        while True:
            children = self.family.children()
            for pid in children:
                try:
                    os.kill(pid, signal.SIGKILL)  # our own child and not waited for: it is nobody else
                except OSError:
                    pass
            # After their parents, which otherwise might still say that a child was killed.
            for proc in below:
                self.family.send(proc, signal.SIGKILL)
            below = []
            self._reap()
            if self.family.adopting:
                for proc in self.family.refresh(full=False):
                    self._quiet_looks = 0
                    self.family.send(proc, signal.SIGKILL)
                if self.family.chase(0.005, kill=True):
                    self._quiet_looks = 0
            elif self.childless:
                return
            if time.monotonic() >= end:
                break
            if children == before:
                time.sleep(0.001)  # nothing new: they are dying
            before = children
        if since >= SURVIVORS_AFTER_S:
            self._tell_survivors()

    def _tell_survivors(self) -> None:
        attempt = self.attempt
        assert attempt is not None
        survivors = [describe_process(proc) for proc in self.family.living()][:100]
        if [s["pid"] for s in survivors] != [s["pid"] for s in attempt.survivors]:
            attempt.survivors = survivors
            self._tell_phase(deadline=attempt.deadline)

    # -- once a second --

    def _scan(self, now: float) -> None:
        full = now >= self._next_full
        if full:
            self._next_full = now + FULL_SCAN_S
        self.family.refresh(full)
        self._ledger_due = True
        self._read_beats()

    def _read_beats(self) -> None:
        assert self.attempt is not None
        for beat in self.beats.poll(self._rank_of, self.attempt.number):
            self.broadcast(beat)

    def _rank_of(self, pid: int, written: Any) -> Optional[int]:
        """The rank that a heartbeat is about: the one whose tree its writer is in."""
        assert self.attempt is not None
        root = self.family.find_root(pid)
        if root is None:
            return None
        for rank in self.attempt.ranks:
            if rank.pid == root or (root == 0 and rank.rank == written):
                return rank.rank
        return None

    def _write_ledger(self) -> None:
        self._ledger_due = False
        entries = sorted((proc.pid, proc.ticks) for proc in self.family.members.values())
        data = json.dumps({"boot_id": self._boot_id, "uid": os.getuid(), "processes": entries}).encode() + b"\n"
        if data == self._ledger:
            return
        try:
            write_atomically(os.path.join(self.node_dir, "ledger.json"), data)
            self._ledger = data
        except OSError:
            self._ledger = b""  # the next second tries again

    def _save(self) -> None:
        self._dirty = False
        data = self.state()
        for name in ("t", "beats", "now"):
            del data[name]
        data.update(start_ticks=self._ticks, boot_id=self._boot_id, uid=os.getuid(), socket=self._socket_path)
        if self.attempt is not None:
            data.update(env=self.attempt.env, began=self.attempt.began)
        try:
            write_atomically(os.path.join(self.node_dir, "agent.json"), json.dumps(data, indent=1).encode() + b"\n")
        except OSError as err:
            log("agent.json cannot be written: %s" % words(err))
            self._dirty, self._save_at = True, time.monotonic() + SCAN_S

    # -- adoption --

    def adopt(self) -> None:
        """Take over what an agent before this one left in this folder."""
        saved = read_json(os.path.join(self.node_dir, "agent.json"))
        ledger = read_json(os.path.join(self.node_dir, "ledger.json"))
        if self.shared is None and isinstance(saved.get("shared"), bool):
            self.shared = saved["shared"]
        try:
            self._adopt(saved, ledger)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            # Somebody spoiled the files. The marks in the processes' environments are still true.
            log("agent.json or ledger.json cannot be used: " + traceback.format_exc())
            self.attempt = None
            self._adopt({}, {})

    def _adopt(self, saved: Frame, ledger: Frame) -> None:
        same_boot = saved.get("boot_id", ledger.get("boot_id", self._boot_id)) == self._boot_id
        self._find_family(ledger if same_boot else {}, same_boot)
        living = self.family.living()
        number = saved.get("attempt")
        if number is None:
            numbers = [environ_of(p.pid).get(b"TRAINUI_ATTEMPT", b"") for p in living]
            number = max([int(n) for n in numbers if n.isdigit()], default=0 if living else None)
        if number is None:
            self.family.adopting = False
            return
        ranks = [Rank(int(r["rank"]), int(r["local_rank"])) for r in self.spec["ranks"]]
        attempt = self.attempt = Attempt(int(number), dict(saved.get("env") or {}), ranks)
        attempt.phase = str(saved.get("phase", RUNNING))
        attempt.error, attempt.deadline = saved.get("error"), saved.get("deadline")
        attempt.began = bool(saved.get("began", True))
        for rank in ranks:
            for data in saved.get("ranks", []):
                if data.get("rank") == rank.rank:
                    rank.load(data)
        self.beats = Beats(os.path.join(self._attempt_dir(), "heartbeat"), self.spec["run_id"], resumed=True)
        if attempt.phase == DOWN and not living:
            self.family.adopting = False
            return
        self.adopted = True
        log("adopting attempt %d (%s): %d processes live" % (attempt.number, attempt.phase, len(living)))
        self._adopt_ranks(same_boot)
        self._resume(same_boot)

    def _find_family(self, ledger: Frame, same_boot: bool) -> None:
        self.family.adopting = same_boot
        if not same_boot:
            return
        for entry in ledger.get("processes", []):
            pid, ticks = int(entry[0]), int(entry[1])
            proc = read_proc(pid)
            if proc is not None and proc.ticks == ticks and owner_of(pid) == os.getuid():
                self.family.add(proc)
        self.family.refresh(full=True)

    def _adopt_ranks(self, same_boot: bool) -> None:
        attempt = self.attempt
        assert attempt is not None
        for rank in attempt.ranks:
            if rank.ended_at is not None:
                if not os.path.exists(self._rank_file(rank, "exit")):
                    rank.recorded = False
                continue
            if rank.pid is None and same_boot and attempt.phase in (RUNNING, STOPPING):
                self._find_leader(rank)
            if rank.pid is None:
                if attempt.phase == RUNNING:
                    self._end(rank, error="the agent was killed before it could start it")
                continue
            if self._load_exit(rank):
                continue
            proc = read_proc(rank.pid)
            is_it = proc is not None and proc.ticks == rank.start_ticks and rank.pid in self.family.members
            if not same_boot or proc is None or not is_it or not proc.alive:
                self._end(rank, lost=True)
                continue
            rank.adopted = True
            self.family.leaders.add(rank.pid)
            self.family.members[rank.pid].root = self.family.roots[rank.pid] = rank.pid
            self._watch_adopted(rank.pid)
        for proc in self.family.members.values():
            if not proc.root and proc.session in self.family.leaders:
                proc.root = self.family.roots[proc.pid] = proc.session

    def _find_leader(self, rank: Rank) -> None:
        """The agent died between starting a rank and writing it down: find it by its environment."""
        assert self.attempt is not None
        wanted = {b"LOCAL_RANK": b"%d" % rank.local_rank, b"TRAINUI_ATTEMPT": b"%d" % self.attempt.number}
        for proc in sorted(self.family.living(), key=lambda p: p.ticks):
            environ = environ_of(proc.pid) if proc.session == proc.pid else {}
            if environ and all(environ.get(name) == value for name, value in wanted.items()):
                rank.pid, rank.start_ticks, rank.started_at = proc.pid, proc.ticks, time.time()
                return

    def _load_exit(self, rank: Rank) -> bool:
        """Use the record that the agent before us wrote just before it died."""
        path = self._rank_file(rank, "exit")
        record = read_json(path)
        if not record:
            return False
        try:
            rank.ended_at = os.stat(path).st_mtime
        except OSError:
            return False
        for name in ("code", "signal", "lost", "by_us", "error"):
            if name in record:
                setattr(rank, name, record[name])
        return True

    def _watch_adopted(self, pid: int) -> None:
        """Be woken by its end, where the kernel can do that; else the tick sees it within a second."""
        if not hasattr(os, "pidfd_open"):
            return
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        self._pidfds[pid] = fd
        self._selector.register(fd, selectors.EVENT_READ, "pidfd")

    def _look_after_adopted(self) -> None:
        if not self.adopted or self.attempt is None:
            return
        for rank in self.attempt.ranks:
            if not rank.adopted or not rank.running:
                continue
            assert rank.pid is not None
            proc = read_proc(rank.pid)
            if proc is not None and proc.ticks == rank.start_ticks and proc.alive:
                continue
            fd = self._pidfds.pop(rank.pid, None)
            if fd is not None:
                self._selector.unregister(fd)
                os.close(fd)
            self._end(rank, lost=True)

    def _resume(self, same_boot: bool) -> None:
        """Go on from the phase in which the agent before us died."""
        attempt = self.attempt
        assert attempt is not None
        if not same_boot:
            self._set_phase(DOWN, error="the node was booted anew while the job ran")
        elif attempt.phase in (BEFORE_START, AFTER_STOP):
            if attempt.phase == AFTER_STOP:
                attempt.began = False  # it had its turn
            attempt.error = "the agent was killed while hooks.%s ran" % attempt.phase
            self._begin_sweep(LEFTOVER_GRACE_S)
        elif attempt.phase in (STOPPING, DOWN):
            left = (attempt.deadline or 0.0) - time.time()
            self._begin_sweep(min(max(left, 0.0), 3600.0) if attempt.phase == STOPPING else LEFTOVER_GRACE_S)
            for rank in attempt.ranks:
                if rank.running:
                    self._signal_leader(rank, signal.SIGTERM, group=bool(self.spec.get("group_signal")))
        else:
            attempt.phase = RUNNING
        self._dirty = True


def free_port() -> int:
    """A TCP port that is free just now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
        return port


# -- the socket ------------------------------------------------------------------------------------------------


def socket_paths(node_dir: str) -> List[str]:
    """Where the socket of a node's folder may be, the preferred place first."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(node_dir))).hexdigest()[:20] + ".sock"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    paths = ["/tmp/trainui-%d/%s" % (os.getuid(), name)]
    if runtime.startswith("/") and is_private(runtime):
        preferred = os.path.join(runtime, "trainui", name)
        if len(os.fsencode(preferred)) <= MAX_SOCKET_PATH:
            paths.insert(0, preferred)
    return paths


def is_private(folder: str) -> bool:
    """True for a folder of ours (no link) that nobody else may enter."""
    try:
        info = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077


def peer_uid(sock: socket.socket) -> int:
    """Who is at the other end."""
    uid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return uid


def bind_socket(path: str) -> socket.socket:
    """Listen at `path`; whoever holds the lock may replace what is there.

    Raises:
        Fatal: its folder is not ours alone.
        OSError: it cannot be bound.
    """
    folder = os.path.dirname(path)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    if not is_private(folder):
        raise Fatal(
            "node_dir", "%s must be a folder of yours with mode 0700: remove it, or set XDG_RUNTIME_DIR" % folder
        )
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(64)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def connect(path: str, timeout: float = 5.0) -> Optional[socket.socket]:
    """A connection to a socket of this user, or None."""
    if not is_private(os.path.dirname(path)):
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        sock.connect(path)
        if peer_uid(sock) == os.getuid():
            return sock
    except OSError:
        pass
    sock.close()
    return None


def inode_of(path: str) -> int:
    """Which file a path names, 0 for none."""
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0


def find_agent(node_dir: str) -> Optional[socket.socket]:
    """A connection to the folder's agent that has spoken, or None. A frozen one counts as having spoken."""
    noted = read_json(os.path.join(node_dir, "agent.json")).get("socket")
    paths = socket_paths(node_dir)
    if isinstance(noted, str) and noted not in paths:
        paths.insert(0, noted)
    for path in paths:
        sock = connect(path)
        if sock is None:
            continue
        sock.settimeout(FIRST_FRAME_S)
        try:
            if sock.recv(1, socket.MSG_PEEK):
                return sock
        except socket.timeout:
            return sock
        except OSError:
            pass
        sock.close()  # it was just ending
    return None


# -- starting or finding the agent -----------------------------------------------------------------------------


def obtain(spec: Frame, by_hand: bool = False) -> Tuple[socket.socket, bool]:
    """A connection to the node's agent, and whether it was started for it.

    Raises:
        Fatal: there is none and none can be started.
    """
    node_dir = spec["node_dir"]
    deadline = time.monotonic() + FIND_AGENT_S
    while True:
        lock = take_lock(node_dir)
        try:
            sock = find_agent(node_dir)
            if sock is not None:
                return sock, False
            if lock is not None:
                start_agent(spec, lock, by_hand)
                sock = find_agent(node_dir)
                if sock is not None:
                    return sock, True
        finally:
            if lock is not None:
                os.close(lock)
        if time.monotonic() > deadline:
            what = (
                "another agent holds %s/agent.lock, but does not answer"
                if lock is None
                else "the agent of %s ended at once"
            )
            raise Fatal("internal", what % node_dir + "; see agent.log there")
        time.sleep(0.05)


def take_lock(node_dir: str) -> Optional[int]:
    """The descriptor of the folder's lock, or None where somebody has it.

    Raises:
        Fatal: the folder cannot be used.
    """
    path = os.path.join(node_dir, "agent.lock")
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as err:
            raise unusable(node_dir, err) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except FileNotFoundError:
            pass  # somebody removed it meanwhile
        except OSError as err:
            os.close(fd)
            if err.errno in (errno.EAGAIN, errno.EACCES):
                return None
            raise Fatal("node_dir", "%s cannot be locked: %s" % (path, words(err))) from None
        os.close(fd)


def unusable(path: str, err: OSError) -> Fatal:
    """The sentence for a folder that cannot be written."""
    host = socket.gethostname()
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return Fatal("disk_full", "%s: %s: %s; free some space there" % (host, path, words(err)))
    return Fatal("node_dir", "%s: %s cannot be written: %s" % (host, path, words(err)))


def prepare(spec: Frame) -> None:
    """Make the node's folder, check the working directory, write the files.

    Raises:
        Fatal: with a sentence that says which of them failed.
    """
    node_dir = spec["node_dir"]
    resuming = read_json(os.path.join(node_dir, "agent.json")).get("attempt") is not None
    cwd = spec["cwd"]
    if not resuming:
        fault = "is no directory" if os.path.exists(cwd) else "does not exist"
        if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):
            fault = "may not be entered" if os.path.isdir(cwd) else fault
            raise Fatal("cwd", "the working directory %s %s on %s; set task.cwd" % (cwd, fault, socket.gethostname()))
    kept = {name: value for name, value in spec.items() if name not in ("files", "nonce", "shared")}
    contents = {"node.json": (json.dumps(kept, indent=1, sort_keys=True) + "\n", 0o600)}
    files: Dict[str, Frame] = spec.get("files") or {}
    for name, file in files.items():
        contents[name] = (file["text"], int(file.get("mode", 0o600)))
    for name, (text, mode) in contents.items():
        path = os.path.join(node_dir, name)
        if os.path.isabs(name) or ".." in name.split("/"):
            raise Fatal("internal", "the plan wants to write %s outside of the node's folder" % name)
        data = text.encode("utf-8", "surrogateescape")
        try:
            if os.path.dirname(name):
                os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            if not is_file_with(path, data, mode):
                write_atomically(path, data, mode)
        except OSError as err:
            # What runs already has its files; looking after it matters more than a fresh copy.
            if not (resuming and os.path.exists(path)):
                raise unusable(path, err) from None


def is_file_with(path: str, data: bytes, mode: int) -> bool:
    """True when the file is there already, as it should be."""
    try:
        if stat.S_IMODE(os.stat(path).st_mode) != mode:
            return False
        with open(path, "rb") as file:
            return file.read() == data
    except OSError:
        return False


def start_agent(spec: Frame, lock: int, by_hand: bool) -> None:
    """Become the parent of a new agent, which takes the lock with it.

    Raises:
        Fatal: it cannot be started.
    """
    if not by_hand:
        prepare(spec)
    try:
        prctl(PR_SET_CHILD_SUBREAPER, 0)
    except (ImportError, OSError, AttributeError) as err:
        raise Fatal("python", "%s cannot use prctl (%s); set task.agent_python" % (sys.executable, err)) from None
    path = socket_paths(spec["node_dir"])[0]
    try:
        listener = bind_socket(path)
    except OSError as err:
        raise unusable(path, err) from None
    protected = self_and_ancestors()
    try:
        child = os.fork()
        if child == 0:
            _daemonise(spec, lock, listener, path, protected, by_hand)
        os.waitpid(child, 0)
    except OSError as err:
        raise Fatal("internal", "the agent cannot be started: %s" % words(err)) from None
    finally:
        listener.close()


def _daemonise(
    spec: Frame, lock: int, listener: socket.socket, path: str, protected: Dict[int, int], by_hand: bool
) -> NoReturn:
    """The agent's side of `start_agent`; its own death ends nothing but itself."""
    status = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        environ = started_with()
        spec.pop("files", None)  # with the secrets in them
        os.chdir("/")
        _redirect(spec["node_dir"], keep={lock, listener.fileno()})
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_NAME, b"trainui-agent")
        agent = Agent(spec, listener, path, environ, users_umask, protected)
        folder = spec["node_dir"]
        left = [n for n in ("agent.json", "ledger.json") if os.path.exists(os.path.join(folder, n))]
        log("agent %d of run %s" % (os.getpid(), spec["run_id"]))
        if left or by_hand:
            agent.adopt()
        agent.run()
        status = 0
    except BaseException:  # the last words of a process that nobody watches
        log("the agent could not run: " + traceback.format_exc())
    finally:
        os._exit(status)


def _redirect(node_dir: str, keep: Set[int]) -> None:
    """stdin from nowhere, output to agent.log; nothing else of what the bootstrap had open stays open."""
    null = os.open("/dev/null", os.O_RDWR)
    try:
        out = os.open(os.path.join(node_dir, "agent.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        out = null
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                pass


def started_with() -> Dict[bytes, bytes]:
    """The environment this process was given; Python itself may have added LC_CTYPE to os.environ."""
    given = environ_of(os.getpid())
    return given if given else dict(os.environb)


# -- the bridge ------------------------------------------------------------------------------------------------


def bridge(sock: socket.socket, early: bytes) -> None:
    """Join stdin and stdout to the agent, until one end closes or the engine falls silent.

    Args:
        early: what was read of stdin behind the spec.
    """
    sock.setblocking(False)
    os.set_blocking(0, False)
    os.set_blocking(1, False)
    try:
        fcntl.fcntl(1, F_SETPIPE_SZ, 1 << 20)  # fewer wake-ups for a backlog of logs
    except OSError:
        pass  # no pipe, or not so large here
    to_agent, to_engine = bytearray(early), bytearray()
    heard = time.monotonic()
    agent_ended = False
    poll = selectors.PollSelector()
    while True:
        if agent_ended and not to_engine:
            return
        wanted: Dict[int, int] = {0: selectors.EVENT_READ if len(to_agent) < 1 << 20 else 0}
        wanted[1] = selectors.EVENT_WRITE if to_engine else 0
        wanted[sock.fileno()] = (0 if to_engine or agent_ended else selectors.EVENT_READ) | (
            selectors.EVENT_WRITE if to_agent and not agent_ended else 0
        )
        for fd, events in wanted.items():
            if fd in poll.get_map():
                poll.unregister(fd)
            if events:
                poll.register(fd, events)
        ready = {key.fd: mask for key, mask in poll.select(max(0.0, heard + BRIDGE_SILENCE_S - time.monotonic()))}
        if time.monotonic() - heard >= BRIDGE_SILENCE_S and 0 not in ready:
            return
        try:
            if 0 in ready:
                data = read_some(0)
                if data == b"":
                    sock.settimeout(1.0)
                    sock.sendall(to_agent)
                    return
                to_agent += data or b""
                heard = time.monotonic()
            if ready.get(sock.fileno(), 0) & selectors.EVENT_READ:
                data = read_some(sock.fileno())
                agent_ended = data == b""
                to_engine += data or b""
            write_some(sock.fileno(), to_agent)
            write_some(1, to_engine)
        except OSError:
            return  # one of the two ends is gone


def read_some(fd: int) -> Optional[bytes]:
    """What is there, b"" at the end, None where there is nothing yet."""
    try:
        return os.read(fd, 1 << 18)
    except (BlockingIOError, InterruptedError):
        return None


def write_some(fd: int, data: bytearray) -> None:
    """Write as much as goes without waiting."""
    try:
        while data:
            del data[: os.write(fd, memoryview(data)[: 1 << 18])]
    except (BlockingIOError, InterruptedError):
        pass


def bootstrap(stdin: Any) -> int:
    """What the exec string runs: read the spec, start or find the agent, be the bridge."""
    nonce = ""
    try:
        spec = json.loads(stdin.read(int(stdin.readline())).decode("utf-8"))
        nonce = str(spec["nonce"])
    except (ValueError, KeyError, TypeError) as err:
        fatal = Fatal("internal", "the agent was sent a spec that it cannot read: %r" % (err,))
        return refuse(nonce, fatal)
    try:
        if sys.version_info < (3, 8):
            raise Fatal(
                "python",
                "python3 on %s is %s, the agent needs 3.8 or newer; set task.agent_python"
                % (socket.gethostname(), sys.version.split()[0]),
            )
        shared = spec["shared"] = sees_token(spec["node_dir"], spec.pop("token", None))
        make_node_dir(spec["node_dir"])
        sock, started = obtain(spec)
        if not started and shared is not None:
            sock.sendall(encode({"t": "disk", "shared": shared}))
    except Fatal as fatal:
        return refuse(nonce, fatal)
    except KeyError as err:
        return refuse(nonce, Fatal("internal", "the spec has no %s" % err))
    except OSError as err:
        return refuse(
            nonce, Fatal("internal", "%s: the agent cannot be started: %s" % (socket.gethostname(), words(err)))
        )
    shake_hands(nonce)
    os.set_blocking(0, False)
    early = stdin.peek()
    early = stdin.read1(len(early)) if early else b""
    bridge(sock, early)
    return 0


def shake_hands(nonce: str, more: bytes = b"") -> None:
    """The line by which the engine knows that this is us."""
    data = b"TRAINUI1 %s\n" % nonce.encode("utf-8") + more
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        pass  # nobody is there to read it


def refuse(nonce: str, fatal: Fatal) -> int:
    """Say why there is no agent."""
    shake_hands(nonce, encode({"t": "fatal", "kind": fatal.kind, "error": fatal.error}))
    return EXIT_UNAVAILABLE


def sees_token(node_dir: str, token: Any) -> Optional[bool]:
    """Whether this node sees the file that the engine has just put into the folder: then it shares its disk."""
    if not isinstance(token, dict):
        return None
    name, value = str(token.get("name")), str(token.get("value"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    path = os.path.join(node_dir, os.path.basename(name))
    return read_file(path, 4096).decode("utf-8", "replace").strip() == value


def make_node_dir(path: str) -> None:
    """Make the folder with what is missing above it.

    Raises:
        Fatal: it cannot be.
    """
    if not os.path.isabs(path):
        raise Fatal("node_dir", "the node's folder %s is no absolute path" % path)
    try:
        os.makedirs(path, 0o700, exist_ok=True)
    except OSError as err:
        raise unusable(path, err) from None


# -- stopping by hand ------------------------------------------------------------------------------------------


def stop_by_hand(arguments: List[str]) -> int:
    """`agent.py stop`: through the agent, or through a fresh one that adopts what is left."""
    node_dir = os.path.dirname(os.path.abspath(__file__))
    spec = read_json(os.path.join(node_dir, "node.json"))
    if "run_id" not in spec:
        return complain("%s holds no node.json, so nothing was ever started here" % node_dir, 1)
    grace = float(spec.get("stop_grace_s", 15.0))
    words_left = list(arguments)
    while words_left:
        word = words_left.pop(0)
        if word == "--kill":
            grace = 0.0
        elif word == "--grace" and words_left and is_seconds(words_left[0]):
            grace = float(words_left.pop(0))
        else:
            return complain("usage: agent.py stop [--kill] [--grace SECONDS]", 2)
    if not os.path.exists(spec["node_dir"]) or not os.path.samefile(spec["node_dir"], node_dir):
        return complain("%s belongs to %s: run it on that node" % (node_dir, spec["node_dir"]), 1)
    owner = os.stat(node_dir).st_uid
    if owner != os.getuid():
        return complain("run %s belongs to uid %d: stop it as that user" % (spec["run_id"], owner), 1)
    for _ in range(3):
        try:
            sock, started = obtain(spec, by_hand=True)
        except Fatal as fatal:
            return complain(fatal.error, 1)
        status = ask_to_stop(sock, spec, grace, started)
        sock.close()
        if status is not None:
            return status
    return complain("the agent of %s ended three times before it was done; see agent.log there" % node_dir, 1)


def is_seconds(text: str) -> bool:
    """True for a number that is not negative."""
    try:
        return float(text) >= 0
    except ValueError:
        return False


def complain(text: str, status: int) -> int:
    """One line on stderr."""
    sys.stderr.write("stop: %s\n" % text)
    return status


def ask_to_stop(sock: socket.socket, spec: Frame, grace: float, started: bool) -> Optional[int]:
    """Stop, and wait for the confirmation: the exit status, None where the agent ended before."""
    decoder = Decoder()
    sock.settimeout(FIRST_FRAME_S)
    try:
        sock.sendall(encode({"t": "stop", "grace_s": grace}))
        while True:
            data = sock.recv(65536)
            if not data:
                return None
            for head in decoder.feed(data):
                if head.get("t") == "re":
                    # It listens; from here on it may be silent for as long as the grace lasts.
                    sock.settimeout(None)
                if head.get("t") == "state" and head.get("phase") in (BEFORE_START, RUNNING) and grace > 0:
                    # Nobody shall wonder about the silence.
                    sys.stdout.write("stopping run %s: SIGTERM now, SIGKILL after %g s\n" % (spec["run_id"], grace))
                    sys.stdout.flush()
                status = conclude(head, spec) if head.get("t") in ("state", "phase") else None
                if status is None:
                    continue
                if started and status == 0:
                    sock.sendall(encode({"t": "release"}))
                return status
    except socket.timeout:
        pid = read_json(os.path.join(spec["node_dir"], "agent.json")).get("pid")
        hint = "it may be frozen: kill -CONT %s" % pid if pid else "see agent.log"
        return complain("the agent of run %s does not answer; %s" % (spec["run_id"], hint), 1)
    except (OSError, ValueError):
        return None


def conclude(head: Frame, spec: Frame) -> Optional[int]:
    """What a state or phase says about the stop: the exit status, None where it goes on."""
    if head.get("phase") in (DOWN, IDLE):
        if head.get("error"):
            complain(str(head["error"]), 0)
        sys.stdout.write("nothing of run %s is left on %s\n" % (spec["run_id"], socket.gethostname()))
        return 0
    survivors: List[Frame] = head.get("survivors") or []
    for one in survivors:
        complain("still there: pid %(pid)s, state %(state)s: %(command)s %(wchan)s" % one, 1)
    return 1 if survivors else None


def main() -> int:
    """Both entries."""
    stdin = globals().get("b")
    if stdin is not None:
        return bootstrap(stdin)
    if sys.argv[1:2] == ["stop"]:
        return stop_by_hand(sys.argv[2:])
    return complain("usage: agent.py stop [--kill] [--grace SECONDS]", 2)


# Our files are nobody else's business; ranks get back what the user had.
users_umask = os.umask(0o077) if __name__ == "__main__" else 0o022

if __name__ == "__main__":
    sys.exit(main())
