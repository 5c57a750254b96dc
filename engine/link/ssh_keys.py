"""Host keys: the known_hosts files, what a refused key means (new, changed or revoked), and accepting a new one.

asyncssh says the same of a new key and of a changed one; here they are told apart, and named with file and line.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

from engine.errors import LinkError
from engine.link.ssh_model import DEFAULT_PORT, Hop, HostKeyOffer, HostKeyUnknown, Kind, fault

_HOST_KEYS, _CA_KEYS, _REVOKED_KEYS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a known_hosts file that speaks of a host; `fingerprints` are those of its key or CA key."""

    file: str
    line_no: int
    marker: str  # "", "cert-authority" or "revoked"
    fingerprint: str

    @property
    def place(self) -> str:
        """`/home/ml/.ssh/known_hosts line 12`."""
        return f"{self.file} line {self.line_no}"


class KnownHosts:
    """Files read once and again only when they change: parsing 5000 lines costs 70 ms."""

    def __init__(self) -> None:
        self._parsed: dict[tuple[str, ...], tuple[tuple[object, ...], asyncssh.SSHKnownHosts]] = {}

    def load(self, files: Sequence[str]) -> asyncssh.SSHKnownHosts:
        """All entries of `files`; a file that is missing counts as empty, a line that is no entry is passed over."""
        stamps = tuple(_stamp(file) for file in files)
        stored = self._parsed.get(tuple(files))
        if stored is not None and stored[0] == stamps:
            return stored[1]
        known = asyncssh.import_known_hosts("")
        for file in files:
            text = _read(file)
            try:
                known.load(text)
            except ValueError:
                known.load("\n".join(line for line in text.split("\n") if _parse(line) is not None))
        self._parsed[tuple(files)] = (stamps, known)
        return known

    def algorithms(self, hop: Hop) -> list[str]:
        """Host key algorithms to ask for: those of the keys we know first, so that a known key is the one shown.

        All others follow. Else a host whose key is of another type today would look like one that is too old.
        """
        found = self.load(hop.known_hosts).match(hop.key_alias or hop.address, "", _port(hop))
        known = [alg for key in found[_HOST_KEYS] for alg in key.sig_algorithms]
        certified = list(get_default_certificate_algs()) if found[_CA_KEYS] else []
        names = dict.fromkeys([*certified, *known, *get_default_public_key_algs()])
        return [name.decode("ascii") for name in names]


def refused(hop: Hop, key: asyncssh.SSHKey | None, ca: asyncssh.SSHKey | None, said: str) -> LinkError:
    """What it means that the key of `hop` was not accepted.

    Args:
        key: the key it showed; None: it is revoked, or it showed a certificate.
        ca: who signed its certificate, where it showed one.
        said: asyncssh's own text.
    """
    entries = _entries(hop)
    revoked = [entry for entry in entries if entry.marker == "revoked"]
    if "revoked" in said:
        places = ", ".join(entry.place for entry in revoked) or "a known_hosts file"
        return fault(
            Kind.HOST_KEY_REVOKED,
            f"{hop.label}: the host key of {hop.where} is revoked in {places}. Refused",
            "ask who runs the host for a new key",
        )
    shown = key or ca
    if shown is None:
        return fault(
            Kind.HOST_KEY_CHANGED,
            f"{hop.label}: {hop.where} showed a host certificate that is not valid: {said}. Refused",
            "ask who runs the host",
        )
    wanted = "cert-authority" if ca is not None else ""
    known = [entry for entry in entries if entry.marker == wanted]
    if known:
        return _changed(hop, shown, known, "CA OF THE HOST CERTIFICATE" if ca is not None else "HOST KEY")
    return _unknown(hop, shown)


def accept_host_key(offer: HostKeyOffer) -> None:
    """Append an offered key to the user's known_hosts, as ssh does when a person says yes.

    Raises:
        LinkError: the config keeps no keys, or the file cannot be written.
    """
    if offer.file is None:
        raise fault(Kind.CONFIG, f"{offer.host}: no known_hosts file to keep the key in", "set cluster.ssh.known_hosts")
    path = Path(offer.file)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            old = file.read()
            if offer.line.encode() in old.split(b"\n"):
                return
            gap = b"\n" if old and not old.endswith(b"\n") else b""
            file.write(gap + offer.line.encode() + b"\n")
    except OSError as err:
        why = (err.strerror or str(err)).lower()
        raise fault(Kind.CONFIG, f"{offer.host}: the key cannot be written to {path}: {why}") from err


def host_pattern(hop: Hop) -> str:
    """The name under which known_hosts has `hop`."""
    if hop.key_alias:
        return hop.key_alias
    address = hop.address.lower()
    return address if hop.port == DEFAULT_PORT else f"[{address}]:{hop.port}"


def _unknown(hop: Hop, key: asyncssh.SSHKey) -> HostKeyUnknown:
    kept = hop.known_hosts and hop.known_hosts[0] != os.devnull
    words = [host_pattern(hop), *key.export_public_key("openssh").decode("ascii").split()]
    offer = HostKeyOffer(
        host=hop.label,
        where=hop.where,
        algorithm=key.get_algorithm(),
        fingerprint=key.get_fingerprint(),
        file=hop.known_hosts[0] if kept else None,
        line=" ".join(words[:3]),
    )
    file = offer.file or "a known_hosts file that cluster.ssh.known_hosts names"
    return HostKeyUnknown(
        f"{hop.label}: the host key of {hop.where} is not known yet: {offer.algorithm} {offer.fingerprint}",
        f'if it is the right one: connect once with `ssh {hop.name}`, or append to {file} the line "{offer.line}"',
        offer,
    )


def _changed(hop: Hop, key: asyncssh.SSHKey, known: list[Entry], what: str) -> LinkError:
    old = ", ".join(f"{entry.fingerprint} ({entry.place})" for entry in known)
    return fault(
        Kind.HOST_KEY_CHANGED,
        f"{hop.label}: {what} OF {hop.where} HAS CHANGED: known is {old}, now it shows {key.get_fingerprint()}. "
        "Refused: the host was installed anew, or somebody is in between",
        f"if it was installed anew: `ssh-keygen -R '{host_pattern(hop)}' -f {known[0].file}`, then accept the new key",
    )


def _entries(hop: Hop) -> list[Entry]:
    """The lines that speak of `hop`: those with its port, and only where there is none, those without one."""
    name = hop.key_alias or hop.address
    names = [name] if hop.port == DEFAULT_PORT else [f"[{name}]:{hop.port}", name]
    for candidate in names:
        if found := list(_entries_of(hop.known_hosts, candidate)):
            return found
    return []


def _entries_of(files: Sequence[str], name: str) -> Iterator[Entry]:
    for file in files:
        for number, line in enumerate(_read(file).split("\n"), 1):
            found: Any = known.match(name, "", None) if (known := _parse(line)) is not None else ((), (), ())
            for index, marker in ((_HOST_KEYS, ""), (_CA_KEYS, "cert-authority"), (_REVOKED_KEYS, "revoked")):
                for key in found[index]:
                    yield Entry(file, number, marker, key.get_fingerprint())


def _parse(line: str) -> asyncssh.SSHKnownHosts | None:
    with contextlib.suppress(ValueError):
        return asyncssh.import_known_hosts(line)
    return None


def _port(hop: Hop) -> int | None:
    return None if hop.port == DEFAULT_PORT else hop.port


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        stat = Path(file).stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _read(file: str) -> str:
    if file == os.devnull:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
