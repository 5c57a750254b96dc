"""Who listens on a TCP port of this machine, as far as /proc tells us."""

from __future__ import annotations

from pathlib import Path

_LISTEN = "0A"  # include/net/tcp_states.h


def who_listens(port: int, proc: Path = Path("/proc")) -> str:
    """`python (pid 4711)` for the process that listens on `port`; "" where it is not ours to see."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port, proc)}
    if not inodes:
        return ""
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if any(str(fd.readlink()) in inodes for fd in (entry / "fd").iterdir()):
                name = (entry / "comm").read_text(encoding="utf-8", errors="replace").strip()
                return f"{name} (pid {entry.name})"
        except OSError:  # another user's, or it ended while we looked
            continue
    return ""


def _listening_inodes(port: int, proc: Path) -> set[str]:
    inodes: set[str] = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text(encoding="ascii").split("\n")[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(words[9])
    return inodes
