"""Hosts with addresses of their own, in network namespaces on a bridge: with a cable to pull."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any


def why_not() -> str:
    """Why no namespaces can be made here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no ip: apt-get install iproute2"
    name = f"tprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    link = subprocess.run(["ip", "link", "add", name, "type", "bridge"], capture_output=True, text=True)
    if link.returncode != 0:
        return f"no bridges here: {link.stderr.strip()}"
    subprocess.run(["ip", "link", "del", name], check=True)
    return ""


class Network:
    """A bridge on this machine; `host(i)` are the namespaces on it. Names and addresses are this process's own."""

    def __init__(self) -> None:
        pid = os.getpid()
        self.tag = f"t{pid % 100000}"
        # 198.18.0.0/15 is set aside for tests of networks (RFC 2544).
        self.net = f"198.{18 + pid % 2}.{pid // 2 % 256}"
        self.bridge = f"{self.tag}b"
        self.hosts: list[int] = []
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.net}.1/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")

    def host(self) -> int:
        """One more host; its number."""
        number = len(self.hosts)
        self.hosts.append(number)
        space = self.space(number)
        _ip("netns", "add", space)
        _ip("link", "add", self.cable(number), "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", self.cable(number), "master", self.bridge, "up")
        _ip("-n", space, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")
        return number

    def space(self, number: int) -> str:
        return f"{self.tag}h{number}"

    def cable(self, number: int) -> str:
        return f"{self.tag}v{number}"

    def address(self, number: int) -> str:
        return f"{self.net}.{10 + number}"

    def sshd(self, world: Any, number: int, *options: str) -> Any:
        """A daemon on a host."""
        daemon = world.sshd_stopped(f"host{number}", *options, address=self.address(number))
        daemon.netns = ["ip", "netns", "exec", self.space(number)]
        daemon.start()
        return daemon

    def cut(self, number: int) -> None:
        """Packets vanish; nothing is refused."""
        _ip("link", "set", self.cable(number), "down")

    def heal(self, number: int) -> None:
        _ip("link", "set", self.cable(number), "up")

    def swallow(self, number: int) -> None:
        """The host gets what we send and answers into nowhere, as behind a firewall that drops."""
        _ip("-n", self.space(number), "route", "add", "blackhole", f"{self.net}.1/32")

    def close(self) -> None:
        for number in self.hosts:
            subprocess.run(["ip", "netns", "del", self.space(number)], capture_output=True)
            subprocess.run(["ip", "link", "del", self.cable(number)], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
