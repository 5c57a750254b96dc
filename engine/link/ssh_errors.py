"""From what asyncssh, the system or the login shell says to one sentence a user can act on. Pure.

The texts and classes are those of asyncssh 2.24 against OpenSSH 9 and 10. Host keys have a module of their own.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import asyncssh

from engine.errors import LinkError
from engine.link.ssh_model import KEEPALIVE_COUNT, MAX_FOREIGN_TEXT, Hop, Kind, fault
from engine.parse.ansi import clean_label

# bash, dash and fish leave with it when a command does not exist (POSIX), and 126 when it cannot be run.
NOT_FOUND, NOT_RUNNABLE = 127, 126
# RFC 4254, section 5.1: SSH_OPEN_ADMINISTRATIVELY_PROHIBITED.
_FORBIDDEN = 1


class Stage(IntEnum):
    """How far a connection came."""

    CONNECT = 0  # TCP, or the program that stands for it
    BANNER = 1  # connected, the server has not said that it speaks SSH
    KEYS = 2  # it speaks SSH
    LOGIN = 3
    SESSION = 4  # logged in


@dataclass(frozen=True, slots=True)
class Context:
    """What is known about a connection that failed.

    Args:
        via: the bastion before it, or "".
        offered: keys that were offered, in words.
        locked: key files that need a passphrase.
        broken: key files that cannot be used, each with the reason.
        said: what the server (before login) or ProxyCommand (on stderr) printed.
    """

    hop: Hop
    stage: Stage
    via: str = ""
    offered: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    said: str = ""


@dataclass(frozen=True, slots=True)
class ShellEnd:
    """A login shell that ended, or hung, before our agent answered.

    Args:
        status: its exit status; None: it still runs, or a signal ended it.
        printed: what came on stdout before the agent's first line.
        errors: what came on stderr.
        path: PATH of a non-login shell there, or "" where it could not be found out.
        waited_s: how long we waited for the answer; None: it ended by itself.
    """

    hop: Hop
    python: str
    status: int | None
    signal: str = ""
    printed: str = ""
    errors: str = ""
    path: str = ""
    waited_s: float | None = None


def explain(err: BaseException, ctx: Context) -> LinkError:
    """The sentence for `err`; host keys are `ssh_keys.refused`'s."""
    for classes, sentence in _SENTENCES:
        if isinstance(err, classes):
            found = sentence(err, ctx)
            if found is not None:
                return found
    hop = ctx.hop
    text = clean(str(err)) or type(err).__name__
    return fault(Kind.OTHER, f"{hop.label}: {hop.where}: {text}", f"try `{hop.by_hand} true`")


def explain_shell(end: ShellEnd) -> LinkError:
    """Why the agent did not answer although the login worked."""
    hop, start = end.hop, f'{end.hop.label}: logged in to {end.hop.where} as "{end.hop.user}", but '
    words = clean("\n".join(filter(None, (end.printed, end.errors))))
    printed = f'; it printed "{words}"' if words else ""
    if end.waited_s is not None:
        return fault(
            Kind.SHELL,
            f"{start}the login shell did not start our command within {end.waited_s:g} s{printed}",
            f"is there something slow in its ~/.bashrc? Try `{hop.by_hand} true`",
        )
    if end.status in (NOT_FOUND, NOT_RUNNABLE) or _misses(end.errors + end.printed, end.python):
        path = f" ({end.path})" if end.path else ""
        what = "cannot be run" if end.status == NOT_RUNNABLE else f"is not on the non-login PATH{path}"
        if "/" in end.python and end.status != NOT_RUNNABLE:
            what = "does not exist there"
        return fault(Kind.PYTHON, f"{start}{end.python} {what}", "set task.agent_python to a Python 3.8 or newer there")
    if "Traceback" in end.errors or "SyntaxError" in end.errors or "Fatal Python error" in end.errors:
        return fault(
            Kind.PYTHON,
            f"{start}{end.python} there cannot run the agent{printed}",
            "set task.agent_python to Python 3.8+",
        )
    how = f"was ended by {end.signal}" if end.signal else f"ended with status {end.status}"
    return fault(
        Kind.ACCOUNT,
        f"{start}the account runs no commands: its shell {how}{printed}",
        f"nologin, a forced command or an exit in ~/.bashrc? Try `{hop.by_hand} true`",
    )


def lost(hop: Hop, err: BaseException | None) -> LinkError:
    """Why a connection that was up is gone."""
    if err is not None and "keepalive" in str(err):
        silent = hop.keepalive_s * (KEEPALIVE_COUNT + 1)
        return fault(Kind.LOST, f"{hop.label}: {hop.where} does not answer for {silent:g} s (network or host down?)")
    why = f": {clean(str(err))}" if err is not None and str(err) else ""
    return fault(Kind.LOST, f"{hop.label}: the connection to {hop.where} was closed by the other side{why}")


def _name(err: BaseException, ctx: Context) -> LinkError | None:
    assert isinstance(err, socket.gaierror)
    hop = ctx.hop
    if err.errno == socket.EAI_AGAIN:
        return fault(
            Kind.NAME,
            f'{hop.label}: the name server does not answer for "{hop.address}" ({hop.where})',
            "check the network",
        )
    return fault(
        Kind.NAME,
        f'{hop.label}: the name "{hop.address}" ({hop.where}) does not exist',
        "check the spelling, or give it a HostName in ~/.ssh/config",
    )


def _timeout(err: BaseException, ctx: Context) -> LinkError | None:
    hop, limit = ctx.hop, f"{ctx.hop.connect_timeout_s:g} s"
    if hop.proxy_command and ctx.stage <= Stage.BANNER:
        words = _said(ctx)
        return fault(
            Kind.PROXY,
            f'{hop.label}: ProxyCommand "{hop.proxy_command}" for {hop.where} gave no SSH answer in {limit}{words}',
            "try it by hand",
        )
    if ctx.stage == Stage.CONNECT:
        if ctx.via:
            return fault(
                Kind.BASTION,
                f'{hop.label}: bastion "{ctx.via}" got no answer from {hop.where} in {limit}',
                "is the host up?",
            )
        return fault(
            Kind.NO_ANSWER,
            f"{hop.label}: no answer from {hop.where} in {limit}",
            "the host is down, or a firewall drops it",
        )
    if ctx.stage == Stage.BANNER:
        return fault(
            Kind.SILENT,
            f"{hop.label}: {hop.where} is open, but gave no SSH answer in {limit}",
            "is sshd overloaded, or is it another service's port?",
        )
    return fault(
        Kind.LOGIN_TIMEOUT,
        f'{hop.label}: {hop.where} speaks SSH, but the login as "{hop.user}" did not end in {limit}',
        "an overloaded host, a slow home directory, or an agent that waits for a touch? "
        "Raise cluster.ssh.connect_timeout_s if it is only slow",
    )


def _system(err: BaseException, ctx: Context) -> LinkError | None:
    """OSError of the TCP connect; with several addresses asyncio tells numbers only in the text."""
    hop = ctx.hop
    numbers = [int(n) for n in re.findall(r"\[Errno (\d+)\]", str(err))]
    number = getattr(err, "errno", None) or (numbers[-1] if numbers else None)
    if number == errno.ECONNREFUSED:
        return fault(
            Kind.REFUSED,
            f"{hop.label}: nothing listens on {hop.where} (connection refused)",
            "is sshd running there, and is it this port?",
        )
    if number in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETDOWN):
        return fault(
            Kind.NO_ROUTE, f"{hop.label}: no network route to {hop.where}", "is the host up, the network, the VPN?"
        )
    if number == errno.ETIMEDOUT:
        return _timeout(err, ctx)
    if number == errno.EMFILE:
        return fault(Kind.OTHER, f"{hop.label}: this machine has no open files left for {hop.where}", "raise ulimit -n")
    if isinstance(err, FileNotFoundError):
        return fault(Kind.CONFIG, f"{hop.label} ({hop.where}): {err.filename} does not exist", "mend ~/.ssh/config")
    return None


def _closed(err: BaseException, ctx: Context) -> LinkError | None:
    hop = ctx.hop
    if hop.proxy_command and ctx.stage <= Stage.BANNER:
        return fault(
            Kind.PROXY,
            f'{hop.label}: ProxyCommand "{hop.proxy_command}" for {hop.where} ended before SSH started{_said(ctx)}',
            "try it by hand",
        )
    if "Login timeout" in str(err):
        return _timeout(err, ctx)
    if ctx.stage >= Stage.SESSION:
        return lost(hop, err)
    through = f' through bastion "{ctx.via}"' if ctx.via else ""
    return fault(
        Kind.DROPPED,
        f"{hop.label}: {hop.where}{through} closed the connection before login{_said(ctx)}",
        "sshd is throttling (MaxStartups, or penalties for failed logins), or it is not SSH",
    )


def _denied(err: BaseException, ctx: Context) -> LinkError | None:
    hop = ctx.hop
    start = f'{hop.label}: login as "{hop.user}" at {hop.where} refused'
    said = _said(ctx)
    if ctx.locked:
        offered = f"; offered: {', '.join(ctx.offered)}" if ctx.offered else ""
        return fault(
            Kind.PASSPHRASE,
            f"{start}: key {', '.join(ctx.locked)} needs a passphrase{offered}. Not retried{said}",
            f"add it to ssh-agent: ssh-add {ctx.locked[0]}",
        )
    broken = f"; not usable: {', '.join(ctx.broken)}" if ctx.broken else ""
    if not ctx.offered:
        return fault(
            Kind.AUTH,
            f"{start}: there was no key to offer{broken}. Not retried{said}",
            "ssh-add a key, or name one in IdentityFile or cluster.ssh.identity; passwords are not asked for",
        )
    return fault(
        Kind.AUTH,
        f"{start}; offered: {', '.join(ctx.offered)}{broken}. Not retried{said}",
        f"try `{hop.by_hand} true`; is it the right user, and is the key in its authorized_keys?",
    )


def _protocol(err: BaseException, ctx: Context) -> LinkError | None:
    hop = ctx.hop
    if "Too many authentication failures" in str(err):
        return fault(
            Kind.TOO_MANY_KEYS,
            f'{hop.label}: {hop.where} refused "{hop.user}" after too many keys ({", ".join(ctx.offered) or "agent"}). '
            "Not retried",
            "set IdentitiesOnly yes and IdentityFile in ~/.ssh/config, or cluster.ssh.identity",
        )
    if ctx.stage < Stage.KEYS:
        return _closed(err, ctx)
    return None


def _algorithms(err: BaseException, ctx: Context) -> LinkError | None:
    hop = ctx.hop
    # "No matching key exchange algorithm found, sent a,b,c and received d,e": only what the server has is news.
    match = re.search(r"matching (.*?) algorithm.* received (\S+)", str(err))
    what = f"the server's {match[1]} algorithms are {match[2]}" if match else str(err)
    return fault(
        Kind.ALGORITHMS,
        f"{hop.label}: no common algorithms with {hop.where}: {clean(what)}",
        "an old server? KexAlgorithms, Ciphers and HostKeyAlgorithms of ~/.ssh/config are followed",
    )


def _channel(err: BaseException, ctx: Context) -> LinkError | None:
    hop, text = ctx.hop, str(err)
    if "connection closed" in text.lower():
        return lost(hop, None) if ctx.stage >= Stage.SESSION else _closed(err, ctx)
    if ctx.stage < Stage.SESSION:
        why = clean(text).lower() or "open failed"
        if getattr(err, "code", None) == _FORBIDDEN:
            why = "it forwards no TCP: AllowTcpForwarding"
        return fault(
            Kind.BASTION,
            f'{hop.label}: bastion "{ctx.via}" cannot reach {hop.where} ({why})',
            "is the host up, and its sshd?",
        )
    if "open failed" in text:
        return fault(
            Kind.SESSIONS,
            f"{hop.label}: sshd at {hop.where} allows no session on this connection (MaxSessions)",
            "raise it",
        )
    return fault(
        Kind.ACCOUNT,
        f'{hop.label}: sshd at {hop.where} refused to run a command for "{hop.user}": {clean(text)}',
        f"a restricted account? Try `{hop.by_hand} true`",
    )


def _key(err: BaseException, ctx: Context) -> LinkError | None:
    hop, text = ctx.hop, str(err)
    if "passphrase" in text.lower() or isinstance(err, asyncssh.KeyEncryptionError):
        names = ", ".join(ctx.locked or hop.identities) or "the private key"
        return fault(
            Kind.PASSPHRASE,
            f"{hop.label} ({hop.where}): key {names} needs a passphrase ({clean(text)})",
            f"add it to ssh-agent: ssh-add {(ctx.locked or hop.identities or ('KEY',))[0]}",
        )
    return fault(
        Kind.CONFIG, f"{hop.label} ({hop.where}): a key file cannot be used: {clean(text)}", "mend IdentityFile"
    )


def _config(err: BaseException, ctx: Context) -> LinkError | None:
    return fault(
        Kind.CONFIG,
        f"{ctx.hop.label} ({ctx.hop.where}): the SSH config cannot be used: {clean(str(err))}",
        "mend ~/.ssh/config",
    )


_Classes = type[BaseException] | tuple[type[BaseException], ...]
# The first that fits: subclasses stand before what they derive from.
_SENTENCES: tuple[tuple[_Classes, Callable[[BaseException, Context], LinkError | None]], ...] = (
    (socket.gaierror, _name),
    ((ConnectionResetError, ConnectionAbortedError, BrokenPipeError, asyncssh.ConnectionLost), _closed),
    (asyncssh.PermissionDenied, _denied),
    (asyncssh.KeyExchangeFailed, _algorithms),
    (asyncssh.ChannelOpenError, _channel),
    (asyncssh.DisconnectError, _protocol),
    (asyncssh.ConfigParseError, _config),
    ((asyncssh.KeyEncryptionError, asyncssh.KeyImportError), _key),
    (OSError, _system),
    (TimeoutError, _timeout),
    (ValueError, _config),
)


def _misses(text: str, python: str) -> bool:
    """csh leaves with 1, so only its words tell."""
    name = re.escape(python)
    return re.search(rf"{name}: (command )?not found|unknown command:? '?{name}", text, re.IGNORECASE) is not None


def _said(ctx: Context) -> str:
    words = clean(ctx.said)
    return f'; it said "{words}"' if words else ""


def clean(text: str) -> str:
    """Foreign text for one line: no control characters, not too long."""
    return clean_label(" ".join(text.split())).strip()[:MAX_FOREIGN_TEXT]
