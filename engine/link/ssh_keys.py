"""Host keys: what a refused key means (new, changed or revoked), and accepting a new one.

asyncssh says the same of a new key and of a changed one; here they are told apart, and named with file and line.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import asyncssh
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

from engine.errors import LinkError
from engine.link.ssh_known import CA, HOST, REVOKED, Entry, KnownHosts
from engine.link.ssh_model import DEFAULT_PORT, Hop, HostKeyOffer, HostKeyUnknown, Kind, fault

Trusted = tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey]]


def trusted(known: KnownHosts, hop: Hop) -> Trusted:
    """Host keys, CA keys and revoked keys of `hop`, as asyncssh takes them."""
    entries = known.entries(hop.known_hosts, names_of(hop))
    host, ca, revoked = ([entry.key for entry in entries if entry.marker == marker] for marker in (HOST, CA, REVOKED))
    return host, ca, revoked


def algorithms(keys: Trusted) -> list[str]:
    """Host key algorithms to ask for: those of the keys we know first, so that a known key is the one shown.

    All others follow. Else a host whose key is of another type today would look like one that is too old.
    """
    known = [alg for key in keys[0] for alg in key.sig_algorithms]
    certified = list(get_default_certificate_algs()) if keys[1] else []
    names = dict.fromkeys([*certified, *known, *get_default_public_key_algs()])
    return [name.decode("ascii") for name in names]


def names_of(hop: Hop) -> list[str]:
    """The names under which known_hosts may have `hop`: where nothing stands under the first, the second counts."""
    first = host_pattern(hop)
    plain = (hop.key_alias or hop.address).lower()
    if hop.key_alias and hop.port != DEFAULT_PORT:
        return [f"[{plain}]:{hop.port}", plain]
    return [first] if first == plain else [first, plain]


def refused(
    known: KnownHosts, hop: Hop, key: asyncssh.SSHKey | None, ca: asyncssh.SSHKey | None, said: str
) -> LinkError:
    """What it means that the key of `hop` was not accepted.

    Args:
        key: the key it showed; None: it is revoked, or it showed a certificate.
        ca: who signed its certificate, where it showed one.
        said: asyncssh's own text.
    """
    entries = known.entries(hop.known_hosts, names_of(hop))
    revoked = [entry for entry in entries if entry.marker == REVOKED]
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
    old = [entry for entry in entries if entry.marker == (HOST if ca is None else CA)]
    if old:
        return _changed(hop, shown, old, "CA OF THE HOST CERTIFICATE" if ca is not None else "HOST KEY")
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
        f'if it is the right one: connect once with `{hop.by_hand}`, or append to {file} the line "{offer.line}"',
        offer,
    )


def _changed(hop: Hop, key: asyncssh.SSHKey, known: list[Entry], what: str) -> LinkError:
    old = ", ".join(f"{entry.key.get_fingerprint()} ({entry.place})" for entry in known)
    return fault(
        Kind.HOST_KEY_CHANGED,
        f"{hop.label}: {what} OF {hop.where} HAS CHANGED: known is {old}, now it shows {key.get_fingerprint()}. "
        "Refused: the host was installed anew, or somebody is in between",
        f"if it was installed anew: `ssh-keygen -R '{host_pattern(hop)}' -f {known[0].file}`, then accept the new key",
    )
