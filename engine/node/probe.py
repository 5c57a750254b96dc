"""Looks at a machine before anything is started there, and changes nothing on it.

One file, standard library only, run by whatever `python3` a node has (3.8 or newer; the annotations are such that an
older one still gets as far as telling its version). The bootstrap that starts the agent starts this as well:
`docs/agent-protocol.md` tells what is said to it. The preflight of this machine imports the same functions.

Each request is answered by a thread of its own: a network disk that hangs must not keep the rest from being told.
"""

import errno
import json
import os
import platform
import pwd
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO, Any, Callable, Dict, Iterator, List, Mapping, NoReturn, Optional, Sequence

TOOL_TIMEOUT_S = 5.0  # nvidia-smi takes about 1 s without the persistence daemon, and hangs when a GPU fell off the bus
ABANDON_S = 1.0  # after SIGKILL; what waits for a device never ends
SILENCE_S = 120.0  # a cut link leaves an SSH session alive for hours; the console asks every 20 s
REACH_TIMEOUT_S = 5.0
GREETING_TIMEOUT_S = 3.0  # a listener of ours greets at once
ALLOCATED_BYTES = 4096  # what is written to find out whether a folder takes files: a block
LISTEN_STATE = "0A"  # include/net/tcp_states.h
MAX_AGENTS = 50
NO_DEVICES = "No devices were found"  # nvidia-smi, with status 0 or 6
AGENT_NAME = "trainui-agent"

Facts = Dict[str, Any]
# What is being looked at now, by thread: where an answer does not come, it says why.
looking: Dict[int, str] = {}
# The tools that run now: whoever leaves ends them.
running: "List[subprocess.Popen[bytes]]" = []


def words(err: OSError) -> str:
    """The system's words for an error, in lower case at the start."""
    text = err.strerror or str(err)
    return text[:1].lower() + text[1:]


def read_text(path: str, limit: int = 1 << 20) -> str:
    """The start of a file, "" where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def read_object(path: str) -> Facts:
    """The JSON object in a file; empty where there is none that can be read."""
    try:
        value: Any = json.loads(read_text(path, 1 << 26))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def names_in(path: str) -> List[str]:
    """What is in a folder, sorted; nothing where it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


# -- files and folders -----------------------------------------------------------------------------------------


def stat_fault(path: str) -> str:
    """Why there is nothing at `path`, "" where there is."""
    looking[threading.get_ident()] = path
    try:
        os.stat(path)
    except (OSError, ValueError) as err:  # ValueError: a NUL in the name
        return words(err) if isinstance(err, OSError) else str(err)
    return ""


def folder_fault(path: str) -> str:
    """Why a process cannot make `path` its folder, "" where it can."""
    fault = stat_fault(path)
    if fault:
        return fault
    if not os.path.isdir(path):
        return "is not a folder"
    return "" if os.access(path, os.X_OK) else "may not be entered"


def nearest(path: str) -> str:
    """The path itself, or the first above it that is there."""
    while stat_fault(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def make_fault(path: str) -> str:
    """Why `path` cannot be made or written to as a folder, "" where it can."""
    there = nearest(path)
    if not os.path.isdir(there):
        return "%s is not a folder" % there
    return "" if os.access(there, os.W_OK | os.X_OK) else "%s may not be written to" % there


def file_fault(path: str) -> str:
    """Why a file cannot be read, "" where it can."""
    return stat_fault(path) or ("" if os.access(path, os.R_OK) else "may not be read")


def program_fault(path: str) -> str:
    """Why a file cannot be run, "" where it can."""
    fault = stat_fault(path)
    if fault:
        return fault
    if os.path.isdir(path):
        return "is a folder"
    return "" if os.access(path, os.X_OK) else "is not executable"


def which(name: str, search: str, cwd: str = "") -> str:
    """Where a program is on the PATH `search`, "" where it is not. A relative entry counts from `cwd`."""
    for place in search.split(os.pathsep):
        path = os.path.join(cwd, place, name)
        if not program_fault(path):
            return path
    return ""


def room(path: str) -> Facts:
    """Whether a folder can be made at `path` and takes files, and the room there.

    `fault` is "" where it can, `free_bytes` None where the file system does not tell, `free_files` None where it makes
    them as needed.
    """
    there = nearest(path)
    found: Facts = {"at": there, "fault": make_fault(path), "free_bytes": None, "free_files": None}
    if found["fault"]:
        return found
    try:
        usage = os.statvfs(there)
        if usage.f_blocks:  # FUSE mounts of object stores tell no number
            found["free_bytes"] = usage.f_bavail * usage.f_frsize
        found["free_files"] = usage.f_favail if usage.f_files else None
        _write_something(there)
    except OSError as err:
        found["fault"] = "%s cannot be written: %s" % (there, words(err))
        found["full"] = err.errno in (errno.ENOSPC, errno.EDQUOT)
    return found


def _write_something(folder: str) -> None:
    """Only a try tells of quotas, of squashed roots and of full disks."""
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as err:
        if err.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
        path = os.path.join(folder, ".trainui-%d-%x" % (os.getpid(), time.monotonic_ns()))
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.unlink(path)
    try:
        os.write(fd, b"\0" * ALLOCATED_BYTES)
        os.fsync(fd)  # NFS and quotas may say no only here
    finally:
        os.close(fd)


# -- tools -----------------------------------------------------------------------------------------------------


class Tool:
    """A program that runs beside us, for a limited time.

    `fault` says afterwards why there is no output: it is not there ("" too), it fails, it does not answer.
    """

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], stdin: bytes = b"", cwd: Optional[str] = None
    ) -> None:
        self.argv = list(argv)
        self.there = False
        self.status: Optional[int] = None
        self.fault = ""
        self.errors = ""
        self._stdin = stdin
        self._deadline = time.monotonic() + TOOL_TIMEOUT_S
        self._process: Optional["subprocess.Popen[bytes]"] = None
        program = self.argv[0]
        if "/" not in program:
            program = which(program, environ.get("PATH", os.defpath))
        if not program:
            return
        try:
            self._process = subprocess.Popen(
                [program, *self.argv[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environ),
                cwd=cwd,
                start_new_session=True,
            )
            running.append(self._process)
            self.there = True
        except OSError as err:
            self.fault = words(err)

    def output(self) -> Optional[str]:
        """What it printed, None where it is not there, fails or does not answer in time."""
        process = self._process
        if process is None:
            return None
        looking[threading.get_ident()] = self.argv[0]
        try:
            out, err = process.communicate(self._stdin, max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.fault = "does not answer within %g s" % TOOL_TIMEOUT_S
            _abandon(process)
            return None
        finally:
            running.remove(process)
        self.status = process.returncode
        self.errors = err.decode("utf-8", "replace")
        text = out.decode("utf-8", "replace")
        if process.returncode == 0:
            return text
        said = (self.errors.strip() or text.strip()).split("\n")[-1].strip()
        self.fault = "fails with status %d%s" % (process.returncode, ": " + said[:200] if said else "")
        return None


def _kill(process: "subprocess.Popen[bytes]") -> None:
    try:
        if process.poll() is None:  # not reaped yet, so the number is still its own
            os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass


def leave(status: int) -> NoReturn:
    """End at once: a thread that hangs on a dead disk is not waited for, and no tool stays behind."""
    for process in list(running):
        _kill(process)
    os._exit(status)


def _abandon(process: "subprocess.Popen[bytes]") -> None:
    """End a tool of ours, with what it started; one that waits for a device is left to itself."""
    _kill(process)
    try:
        process.communicate(timeout=ABANDON_S)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL  # else the interpreter warns of it when it is forgotten
    for stream in (process.stdin, process.stdout, process.stderr):
        try:
            if stream is not None:
                stream.close()
        except OSError:
            pass


def bash_fault(bash: str, text: str) -> str:
    """What `bash -n` says against some lines, "" where nothing."""
    tool = Tool([bash, "--norc", "-n", "/dev/stdin"], os.environ, text.encode("utf-8", "surrogateescape"))
    failed = tool.output() is None
    if not tool.there or tool.status is None:
        return ""
    # An unclosed here-document is only a warning, and would swallow all that follows.
    said = tool.errors.strip().split("\n")[0]
    said = said[len("/dev/stdin: ") :] if said.startswith("/dev/stdin: ") else said
    return said if failed or "here-document" in said else ""


def has_torch(interpreter: str, cwd: str, environ: Mapping[str, str]) -> Optional[bool]:
    """Whether an interpreter finds torch, None where it does not say."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    tool = Tool([interpreter, "-c", code], environ, cwd=cwd)
    tool.output()
    return None if tool.status is None else tool.status == 0


# -- GPUs ------------------------------------------------------------------------------------------------------


def find_gpus(environ: Mapping[str, str], root: str = "/") -> Facts:
    """The GPUs, and who is on them.

    Returns:
        `gpu_vendor`: nvidia | amd | ascend | "", `gpus`: `{index, uuid, name, memory_mib, used_mib}` in order (None
        where it is not told), `gpu_users`: `{gpu, pid, user, command, memory_mib}`, `gpu_faults`: sentences.
    """
    for find in (_nvidia, _amd, _ascend):
        found = find(environ, root)
        if found["gpus"] or found["gpu_faults"]:
            return found
    return _gpus("", [], [], [])


def _gpus(vendor: str, gpus: List[Facts], users: List[Facts], faults: List[str]) -> Facts:
    return {"gpu_vendor": vendor, "gpus": gpus, "gpu_users": users, "gpu_faults": faults}


def _nvidia(environ: Mapping[str, str], root: str) -> Facts:
    del root
    smi, style = "nvidia-smi", "--format=csv,noheader,nounits"
    cards = Tool([smi, "--query-gpu=index,uuid,name,memory.total,memory.used", style], environ)
    if not cards.there:
        return _gpus("", [], [], ["%s: %s" % (smi, cards.fault)] if cards.fault else [])
    apps = Tool([smi, "--query-compute-apps=pid,gpu_uuid,process_name,used_memory", style], environ)
    listing, busy = cards.output(), apps.output()
    if listing is None and NO_DEVICES in cards.fault:
        return _gpus("", [], [], [])
    gpus: List[Facts] = []
    faults = ["%s %s" % (smi, cards.fault)] if listing is None else []
    for line in (listing or "").split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        if cells[0].isdigit():
            cells += [""] * (5 - len(cells))
            gpus.append(
                {
                    "index": cells[0],
                    "uuid": cells[1],
                    "name": cells[2],
                    "memory_mib": number_in(cells[3]),
                    "used_mib": number_in(cells[4]),
                }
            )
        elif line.strip() and line.strip() != NO_DEVICES:
            # Such as: Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.
            faults.append("%s: %s" % (smi, line.strip()[:200]))
    if busy is None and listing is not None and apps.fault:
        faults.append("%s cannot tell who uses the GPUs: it %s" % (smi, apps.fault))
    index = {gpu["uuid"]: gpu["index"] for gpu in gpus if gpu["uuid"]}
    return _gpus("nvidia" if gpus or faults else "", gpus, _nvidia_users(busy or "", index), faults)


def _nvidia_users(listing: str, index: Mapping[str, str]) -> List[Facts]:
    users: List[Facts] = []
    for line in listing.split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < 3 or not cells[0].isdigit():
            continue
        # A process may have commas in its name: it is what stands between.
        users.append(gpu_user(int(cells[0]), index.get(cells[1], ""), ",".join(cells[2:-1]), number_in(cells[-1])))
    return users


def number_in(cell: str) -> Optional[int]:
    """The number that a cell such as `1024 MiB` begins with; None for `[N/A]` and the like."""
    match = re.match(r"\d+", cell)
    return int(match.group()) if match else None


def gpu_user(pid: int, gpu: str, name: str, memory_mib: Optional[int]) -> Facts:
    """Who a process on a GPU is. From within a container the pid may be nobody's, or another one's: the name counts."""
    command = read_text("/proc/%d/cmdline" % pid, 4096).replace("\0", " ").strip()
    ours = bool(command) and (not name or os.path.basename(name.split(" ")[0]) in command)
    return {
        "gpu": gpu,
        "pid": pid,
        "user": owner_of(pid) if ours or not name else "",
        "command": (command if ours else name)[:200],
        "memory_mib": memory_mib,
    }


def owner_of(pid: int) -> str:
    """The user of a process, "" where there is none."""
    try:
        return user_name(os.stat("/proc/%d" % pid).st_uid)
    except OSError:
        return ""


def user_name(uid: int) -> str:
    """A user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _amd(environ: Mapping[str, str], root: str) -> Facts:
    """From where rocm-smi has it too: it may not be there, and cannot say which GPU a process is on."""
    del environ
    nodes = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    gpus: List[Facts] = []
    index: Dict[str, str] = {}
    for node in sorted(names_in(nodes), key=lambda name: (len(name), name)):
        properties = dict(
            line.split(" ", 1)
            for line in read_text(os.path.join(nodes, node, "properties")).split("\n")
            if line.count(" ") == 1
        )
        if (number_in(properties.get("simd_count", "")) or 0) == 0:
            continue  # the driver lists CPUs as nodes too; those have no SIMD units
        number = str(len(gpus))
        index[read_text(os.path.join(nodes, node, "gpu_id")).strip()] = number
        unique = number_in(properties.get("unique_id", "")) or 0
        gpus.append(
            {
                "index": number,
                "uuid": "GPU-%016x" % unique if unique else "",
                "name": read_text(os.path.join(nodes, node, "name")).strip(),
                "memory_mib": None,
                "used_mib": None,
            }
        )
    return _gpus("amd" if gpus else "", gpus, _amd_users(root, index), [])


def _amd_users(root: str, index: Mapping[str, str]) -> List[Facts]:
    users: List[Facts] = []
    folder = os.path.join(root, "sys/class/kfd/kfd/proc")
    for pid in names_in(folder):
        for name in names_in(os.path.join(folder, pid)) if pid.isdigit() else []:
            held = number_in(read_text(os.path.join(folder, pid, name))) if name.startswith("vram_") else None
            if held:
                users.append(gpu_user(int(pid), index.get(name[len("vram_") :], ""), "", held >> 20))
    return users


def _ascend(environ: Mapping[str, str], root: str) -> Facts:
    del environ
    # davinci_manager is there too, and is no device.
    found = sum(re.match(r"davinci\d+$", name) is not None for name in names_in(os.path.join(root, "dev")))
    gpus = [{"index": str(i), "uuid": "", "name": "Ascend", "memory_mib": None, "used_mib": None} for i in range(found)]
    return _gpus("ascend" if gpus else "", gpus, [], [])


# -- the machine -----------------------------------------------------------------------------------------------


def machine(environ: Mapping[str, str], root: str = "/") -> Facts:
    """What is so here whatever is going to be started."""
    uid = os.getuid()
    found: Facts = {
        "host": platform.node(),
        "uid": uid,
        "user": user_name(uid),
        "home": home_folder(environ),
        "shell": login_shell(uid),
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "path": environ.get("PATH", ""),
        "bash": which("bash", environ.get("PATH", os.defpath)),
        "visible": {name: value for name, value in environ.items() if name.endswith("_VISIBLE_DEVICES")},
        "boot_id": read_text(os.path.join(root, "proc/sys/kernel/random/boot_id")).strip(),
        "machine_id": read_text(os.path.join(root, "etc/machine-id")).strip(),
        "net": _link_of("/proc/self/ns/net"),
        "kills_user_processes": kills_user_processes(root, user_name(uid)),
        "agents": find_agents(),
    }
    found.update(find_gpus(environ, root))
    found["now"] = time.time()
    return found


def _link_of(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def home_folder(environ: Mapping[str, str]) -> str:
    """`$HOME`, else the user's home folder, else ""."""
    if environ.get("HOME", "").startswith("/"):
        return environ["HOME"]
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def login_shell(uid: int) -> str:
    """The user's login shell, "" where the user has no entry."""
    try:
        return pwd.getpwuid(uid).pw_shell
    except KeyError:
        return ""


def kills_user_processes(root: str, user: str) -> bool:
    """Whether logind ends what `user` left running when the last session closes (logind.conf(5))."""
    values = {"KillUserProcesses": "no", "KillOnlyUsers": "", "KillExcludeUsers": "root"}
    for name in ("etc/systemd/logind.conf", "run/systemd/logind.conf.d", "etc/systemd/logind.conf.d"):
        place = os.path.join(root, name)
        parts = [os.path.join(place, part) for part in names_in(place) if part.endswith(".conf")]
        for path in parts if os.path.isdir(place) else [place]:
            for line in read_text(path).split("\n"):
                key, _, value = line.partition("=")
                if key.strip() in values:
                    values[key.strip()] = value.strip()
    if values["KillUserProcesses"].lower() not in ("yes", "true", "1", "on", "y", "t"):
        return False
    only = values["KillOnlyUsers"].split()
    return user not in values["KillExcludeUsers"].split() and (not only or user in only)


def find_agents() -> List[Facts]:
    """The agents that run here: `{pid, user, run_id, name}`; of another user's, only who it is can be known."""
    found: List[Facts] = []
    for pid in names_in("/proc"):
        if not pid.isdigit() or read_text("/proc/%s/comm" % pid, 64).strip() != AGENT_NAME:
            continue
        if read_text("/proc/%s/stat" % pid, 4096).rpartition(")")[2].split()[:1] in ([], ["Z"], ["X"]):
            continue
        # Its stderr is agent.log in the node's folder, where node.json stands too.
        folder = os.path.dirname(_link_of("/proc/%s/fd/2" % pid))
        spec = read_object(os.path.join(folder, "node.json")) if folder else {}
        run_id, name = str(spec.get("run_id", "")), str(spec.get("name", ""))
        found.append({"pid": int(pid), "user": owner_of(int(pid)), "run_id": run_id, "name": name})
    return found[:MAX_AGENTS]


# -- what is going to be started -------------------------------------------------------------------------------


def look(request: Facts, environ: Mapping[str, str]) -> Facts:
    """What the ranks will find here.

    Args:
        request: `cwd`, `programs`, `search` (a PATH of the config's, or None), `files`, `mkdirs`, `node_dir`, `bash`
            (key -> lines), `torch` (an interpreter, or None), `env` (of the config, for `torch`).
        environ: what the ranks inherit.

    Returns:
        `cwd`: a fault; `programs`: name -> `{path, fault}`; `files`, `mkdirs`, `bash`: -> fault; `room`; `torch`. What
        counts from `cwd` is left out where that cannot be entered. "" is no fault.
    """
    cwd = str(request["cwd"])
    bash = which("bash", environ.get("PATH", os.defpath))
    found: Facts = {
        "cwd": folder_fault(cwd),
        "room": room(str(request["node_dir"])),
        "bash": {key: bash_fault(bash, text) for key, text in request["bash"].items()} if bash else {},
        "programs": {},
        "files": {},
        "mkdirs": {},
        "torch": None,
    }
    if found["cwd"]:
        return found
    search = request.get("search")
    search = environ.get("PATH", os.defpath) if search is None else str(search)
    found["programs"] = {name: _program(name, search, cwd) for name in request["programs"]}
    found["files"] = {name: file_fault(os.path.join(cwd, name)) for name in request["files"]}
    found["mkdirs"] = {name: make_fault(os.path.normpath(os.path.join(cwd, name))) for name in request["mkdirs"]}
    interpreter = request.get("torch")
    program = found["programs"].get(interpreter, {})
    if interpreter is not None and program.get("path") and not program.get("fault"):
        mixed = dict(environ)
        mixed.update(request["env"])
        found["torch"] = has_torch(program["path"], cwd, mixed)
    return found


def _program(name: str, search: str, cwd: str) -> Facts:
    if "/" in name:
        path = os.path.join(cwd, name)
        return {"path": path, "fault": program_fault(path), "search": ""}
    return {"path": which(name, search, cwd), "fault": "", "search": search}


# -- ports -----------------------------------------------------------------------------------------------------


def listen_on(port: int, host: str = "") -> socket.socket:
    """Listen as torch's store does: on all addresses, and a socket in TIME_WAIT is no obstacle.

    Args:
        port: 0 chooses one.
        host: "" for IPv6 and IPv4 where both are there; an address with ":" or "." for that family alone.

    Raises:
        OSError: it is taken, or not for us.
    """
    families = [socket.AF_INET6, socket.AF_INET]
    if host:
        families = [socket.AF_INET6 if ":" in host else socket.AF_INET]
    last: OSError = OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    for family in families:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as err:
            last = err
            continue
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1 if host else 0)
            sock.bind(("", port))
            sock.listen(1024)
            return sock
        except OSError as err:
            sock.close()
            last = err
            if err.errno in (errno.EADDRINUSE, errno.EACCES):
                break  # no IPv4 socket would get it either
    raise last


def who_listens(port: int, proc: str = "/proc") -> str:
    """`python (pid 4711)` for the process that listens on `port`; "" where it is not ours to see."""
    inodes = {"socket:[%s]" % inode for inode in _listening(port, proc)}
    for pid in names_in(proc) if inodes else []:
        if not pid.isdigit():
            continue
        fds = os.path.join(proc, pid, "fd")
        if any(_link_of(os.path.join(fds, fd)) in inodes for fd in names_in(fds)):
            return "%s (pid %s)" % (read_text(os.path.join(proc, pid, "comm"), 64).strip(), pid)
    return ""


def _listening(port: int, proc: str) -> Iterator[str]:
    for table in ("net/tcp", "net/tcp6"):
        for line in read_text(os.path.join(proc, table), 1 << 26).split("\n")[1:]:
            cells = line.split()
            if len(cells) > 9 and cells[3] == LISTEN_STATE and int(cells[1].rpartition(":")[2], 16) == port:
                yield cells[9]


def port_fault(port: int, host: str = "") -> str:
    """Why nobody can listen on a port now, "" where it is free."""
    try:
        listen_on(port, host).close()
    except OSError as err:
        return listen_fault(port, err)
    return ""


def listen_fault(port: int, err: OSError) -> str:
    """Why `listen_on` failed, with who has the port."""
    who = who_listens(port) if err.errno == errno.EADDRINUSE else ""
    return words(err) + (", by " + who if who else "")


def reach(host: str, port: int, greeting: bytes, timeout_s: float) -> Facts:
    """Connect to a listener of ours as a rank would connect to the master.

    Returns:
        `result`: ok | unresolved | refused | timeout | unreachable | foreign | error, `address`: the one that was
        reached or, failing that, tried last, `addresses`: all that the name leads to, `error`: the system's words.
    """
    looking[threading.get_ident()] = "the name %s" % host
    try:
        infos = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as err:
        return {"result": "unresolved", "address": "", "addresses": [], "error": str(err)}
    looking[threading.get_ident()] = "%s port %d" % (host, port)
    addresses: List[str] = []
    for info in infos:
        if info[4][0] not in addresses:
            addresses.append(str(info[4][0]))
    found: Facts = {"result": "error", "address": "", "addresses": addresses, "error": ""}
    deadline = time.monotonic() + timeout_s
    for at, info in enumerate(infos):
        # A rank tries them one after the other as well; each gets its part of the time.
        share = max(0.5, (deadline - time.monotonic()) / (len(infos) - at))
        found.update(_connect(info, greeting, share), address=str(info[4][0]))
        if found["result"] == "ok":
            break
    return found


def _connect(info: Any, greeting: bytes, timeout_s: float) -> Facts:
    try:
        sock = socket.socket(info[0], socket.SOCK_STREAM)
    except OSError as err:
        return {"result": "error", "error": words(err)}
    with sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect(info[4])
        except socket.timeout:
            return {"result": "timeout", "error": "timed out"}
        except OSError as err:
            return {"result": RESULTS.get(err.errno or 0, "error"), "error": words(err)}
        sock.settimeout(min(timeout_s, GREETING_TIMEOUT_S))
        heard = b""
        try:
            while len(heard) < len(greeting):
                piece = sock.recv(len(greeting) - len(heard))
                if not piece:
                    break
                heard += piece
        except OSError:
            pass  # what was heard so far decides
    return {"result": "ok" if heard == greeting else "foreign", "error": ""}


RESULTS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.ENETDOWN: "unreachable",
}


class Listener:
    """Greets whoever connects, so that they know whom they reached."""

    def __init__(self, sock: socket.socket, greeting: bytes) -> None:
        self.sock = sock
        self.port: int = sock.getsockname()[1]
        self._greeting = greeting
        self._lock = threading.Lock()
        self._peers: List[str] = []
        self._over, self._end = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ)
            selector.register(self._over, selectors.EVENT_READ)
            while all(key.fileobj is self.sock for key, _ in selector.select()):
                try:
                    peer, address = self.sock.accept()
                    with peer:
                        peer.settimeout(GREETING_TIMEOUT_S)
                        peer.sendall(self._greeting)
                    with self._lock:
                        self._peers.append(str(address[0]))
                except OSError:
                    continue  # it left already

    def close(self) -> List[str]:
        """Stop listening; the addresses from which somebody came."""
        os.close(self._end)
        self._thread.join(2 * GREETING_TIMEOUT_S)
        os.close(self._over)
        self.sock.close()
        with self._lock:
            return list(self._peers)


# -- what is asked of it ---------------------------------------------------------------------------------------


class Probe:
    """Answers requests until its stdin ends."""

    def __init__(self, environ: Mapping[str, str], out: IO[bytes]) -> None:
        self._environ = environ
        self._out = out
        self._lock = threading.Lock()
        self._listener: Optional[Listener] = None
        self._handlers: Dict[str, Callable[[Facts], Facts]] = {
            "check": lambda request: look(request, self._environ),
            "ping": self._ping,
            "listen": self._listen,
            "unlisten": self._unlisten,
            "reach": self._reach,
        }

    def send(self, head: Facts) -> None:
        """Write one frame."""
        data = json.dumps(head, separators=(",", ":")).encode("ascii") + b"\n"
        with self._lock:
            try:
                self._out.write(data)
                self._out.flush()
            except OSError:
                leave(0)  # nobody is there to read it

    def answer(self, request: Facts) -> None:
        """Do what is asked, and say how it went."""
        reply: Facts = {"t": "re", "id": request.get("id"), "ok": True}
        try:
            handler = self._handlers.get(str(request.get("t")))
            if handler is None:
                reply.update(ok=False, error="the probe does not know the request %s" % request.get("t"))
            else:
                reply.update(handler(request))
        except Exception as err:  # one look that fails must not silence the others
            reply.update(ok=False, error="%s: %s" % (type(err).__name__, err))
        finally:
            looking.pop(threading.get_ident(), None)
        self.send(reply)

    def _ping(self, request: Facts) -> Facts:
        del request
        return {"now": time.time(), "looking": sorted(looking.values())}

    def _listen(self, request: Facts) -> Facts:
        if self._listener is not None:
            return {"port": self._listener.port, "fault": ""}
        port, host = int(request.get("port") or 0), str(request.get("host") or "")
        fault = ""
        try:
            sock = listen_on(port, host)
        except OSError as err:
            fault = listen_fault(port, err)
            sock = listen_on(0, host)  # whether the others reach this machine at all is worth knowing too
        self._listener = Listener(sock, str(request["greeting"]).encode("utf-8"))
        return {"port": self._listener.port, "fault": fault}

    def _unlisten(self, request: Facts) -> Facts:
        del request
        listener, self._listener = self._listener, None
        return {"peers": [] if listener is None else listener.close()}

    def _reach(self, request: Facts) -> Facts:
        greeting = str(request["greeting"]).encode("utf-8")
        return reach(str(request["host"]), int(request["port"]), greeting, float(request["timeout_s"]))


def serve(stdin: IO[bytes], probe: Probe) -> None:
    """Until stdin ends, or says nothing for too long."""
    heard = [time.monotonic()]

    def watch() -> None:
        while time.monotonic() - heard[0] < SILENCE_S:
            time.sleep(1.0)
        leave(0)

    threading.Thread(target=watch, daemon=True).start()
    while True:
        line = stdin.readline()
        if not line:
            break
        heard[0] = time.monotonic()
        try:
            request = json.loads(line.decode("utf-8"))
        except ValueError:
            return  # not our console
        threading.Thread(target=probe.answer, args=(request,), daemon=True).start()


def bootstrap(stdin: IO[bytes]) -> int:
    """What the exec string runs: the handshake, the machine's facts, then the answers."""
    request = json.loads(stdin.read(int(stdin.readline())).decode("utf-8"))
    out = sys.stdout.buffer
    out.write(b"TRAINUI1 %s\n" % str(request["nonce"]).encode("utf-8"))
    out.flush()
    environ = dict(os.environ)
    probe = Probe(environ, out)

    def tell() -> None:
        try:
            facts = machine(environ)
        except Exception as err:  # as for a request: it is told, not thrown
            facts = {"error": "%s: %s" % (type(err).__name__, err)}
        looking.pop(threading.get_ident(), None)
        probe.send(dict(facts, t="facts", v=1))

    first = threading.Thread(target=tell, daemon=True)
    first.start()
    serve(stdin, probe)
    if request.get("once"):  # the facts are all that is wanted
        first.join(3 * TOOL_TIMEOUT_S)
    return 0


def main() -> int:
    """The bootstrap left its stdin in `b`."""
    stdin = globals().get("b")
    if stdin is None:
        sys.stderr.write("probe.py is started by trainui; it has nothing to do by hand\n")
        return 2
    leave(bootstrap(stdin))


if __name__ == "__main__":
    sys.exit(main())
