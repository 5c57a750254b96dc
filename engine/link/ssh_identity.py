"""Private keys: read once for each file, and what to say about those that could not be used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from engine.link.ssh_model import Hop

# A certificate lies beside its key under this name (ssh-keygen -s).
_CERTIFICATE_SUFFIX = "-cert.pub"


@dataclass(frozen=True, slots=True)
class Identities:
    """What is offered to a host.

    Args:
        keys: as asyncssh takes them: a key, or (key, certificate).
        offered: the files behind `keys`.
        locked: files that need a passphrase; the agent may hold them.
        broken: files that are no private keys, with the reason.
        public: public parts (bytes) of all of them, by which an agent's keys are chosen.
    """

    keys: tuple[Any, ...] = ()
    offered: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    public: tuple[bytes, ...] = field(default=(), repr=False)


class KeyRing:
    """Keys by file, kept for the run: an encrypted key costs 160 ms each time it is tried, a plain one 2 ms."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, int, int], Identities] = {}

    def load(self, hop: Hop) -> Identities:
        """All that `hop` is offered, besides what an agent holds."""
        return _joined(self._one(path) for path in hop.identities)

    def _one(self, path: str) -> Identities:
        try:
            stat = Path(path).stat()
        except OSError:
            return Identities()
        stamp = (path, stat.st_mtime_ns, stat.st_size)
        if stamp not in self._files:
            self._files[stamp] = _read(path)
        return self._files[stamp]


def _read(path: str) -> Identities:
    public = _public_parts(path)
    try:
        key = asyncssh.read_private_key(path)
    except asyncssh.KeyEncryptionError:
        return Identities(locked=(path,), public=public)
    except asyncssh.KeyImportError as err:
        if "passphrase" in str(err).lower():
            return Identities(locked=(path,), public=public)
        # `IdentityFile x.pub` is the usual way to choose one of the agent's keys.
        return Identities(public=public) if public else Identities(broken=(f"{path}: {err}",))
    except OSError as err:
        return Identities(broken=(f"{path}: {(err.strerror or str(err)).lower()}",))
    certificate = _certificate(path + _CERTIFICATE_SUFFIX)
    pair: Any = key if certificate is None else (key, certificate)
    return Identities(keys=(pair,), offered=(path,), public=(*public, key.public_data))


def _public_parts(path: str) -> tuple[bytes, ...]:
    """Of the key in `path`, as far as files beside it, or its own unencrypted part, tell them."""
    found: list[bytes] = []
    for name in (path, f"{path}.pub"):
        with contextlib.suppress(OSError, asyncssh.KeyImportError):
            found.append(asyncssh.read_public_key(name).public_data)
    certificate = _certificate(path + _CERTIFICATE_SUFFIX)
    if certificate is not None:
        found.append(certificate.public_data)
    return tuple(dict.fromkeys(found))


def _certificate(path: str) -> asyncssh.SSHCertificate | None:
    with contextlib.suppress(OSError, asyncssh.KeyImportError):
        return asyncssh.read_certificate(path)
    return None


def _joined(parts: Iterable[Identities]) -> Identities:
    found = list(parts)
    return Identities(
        keys=tuple(key for part in found for key in part.keys),
        offered=tuple(name for part in found for name in part.offered),
        locked=tuple(name for part in found for name in part.locked),
        broken=tuple(text for part in found for text in part.broken),
        public=tuple(dict.fromkeys(data for part in found for data in part.public)),
    )
