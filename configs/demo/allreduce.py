"""Averages vectors over all ranks through plain TCP: rank 0 sums what the others send, and sends it back.

Every rank gets the same bytes, so the parameters of all ranks stay equal to the last bit. A star is the
slowest way to do this and the easiest to read; NCCL takes its place in a real job.
"""

from __future__ import annotations

import socket
import struct
import time

import numpy as np

MAGIC = 0x54524E55
CONNECT_TIMEOUT_S = 60.0
# A peer that says nothing for so long is taken for dead.
PEER_TIMEOUT_S = 120.0
_HELLO = struct.Struct("!III")


class AllReduce:
    """A group of `world` ranks that meet at `addr:port`."""

    def __init__(self, rank: int, world: int, addr: str, port: int) -> None:
        self.rank, self.world = rank, world
        self.peers: dict[int, socket.socket] = {}
        if world > 1:
            self.peers = self._gather(addr, port) if rank == 0 else {0: self._join(addr, port)}

    def _gather(self, addr: str, port: int) -> dict[int, socket.socket]:
        peers: dict[int, socket.socket] = {}
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        family = socket.getaddrinfo(addr, port, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server(("", port), family=family, backlog=self.world) as server:
            while len(peers) < self.world - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    sock, _ = server.accept()
                except TimeoutError:
                    missing = sorted(set(range(1, self.world)) - set(peers))
                    raise TimeoutError(f"ranks {missing} did not connect within {CONNECT_TIMEOUT_S:.0f} s") from None
                _prepare(sock)
                magic, rank, world = _HELLO.unpack(_recv(sock, _HELLO.size, "a new peer"))
                if (magic, world) != (MAGIC, self.world) or rank in peers:
                    raise ConnectionError(f"somebody else's process connected to port {port}")
                peers[rank] = sock
        return peers

    def _join(self, addr: str, port: int) -> socket.socket:
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            try:
                sock = socket.create_connection((addr, port), timeout=CONNECT_TIMEOUT_S)
                break
            except OSError as err:  # rank 0 may still be starting
                if time.monotonic() > deadline:
                    raise TimeoutError(f"rank 0 does not answer at {addr}:{port}: {err}") from None
                time.sleep(0.1)
        _prepare(sock)
        sock.sendall(_HELLO.pack(MAGIC, self.rank, self.world))
        return sock

    def mean(self, vector: np.ndarray) -> np.ndarray:
        """The average of every rank's `vector` (float64, the same length everywhere)."""
        return self.sum(vector) / self.world

    def sum(self, vector: np.ndarray) -> np.ndarray:
        """The sum over all ranks.

        Raises:
            ConnectionError: a peer is gone.
            TimeoutError: a peer is silent.
        """
        if self.rank != 0:
            if self.peers:
                self.peers[0].sendall(vector.tobytes())
            return self._receive(0, vector) if self.peers else vector
        total = vector.copy()
        for rank in sorted(self.peers):
            total += self._receive(rank, vector)
        for sock in self.peers.values():
            sock.sendall(total.tobytes())
        return total

    def from_rank_0(self, vector: np.ndarray) -> np.ndarray:
        """Rank 0's `vector`, on every rank."""
        return self.sum(vector if self.rank == 0 else np.zeros_like(vector))

    def _receive(self, rank: int, like: np.ndarray) -> np.ndarray:
        return np.frombuffer(_recv(self.peers[rank], like.nbytes, f"rank {rank}"), dtype=like.dtype)

    def close(self) -> None:
        """Leave the group."""
        for sock in self.peers.values():
            sock.close()


def _prepare(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(PEER_TIMEOUT_S)


def _recv(sock: socket.socket, size: int, who: str) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionResetError(f"{who} closed the connection during all-reduce")
        data += piece
    return bytes(data)
