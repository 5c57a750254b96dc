"""What a user reads for each thing that can go wrong: the facts page's table, with the exceptions as they come."""

from __future__ import annotations

import errno
import socket
from typing import Any

import asyncssh
import pytest

from engine.link.ssh_errors import Context, ShellEnd, Stage, explain, explain_shell, lost
from engine.link.ssh_model import Hop

HOP = Hop("node3", "10.0.0.3", 22, "ml", identities=("/home/ml/.ssh/id_ed25519",), keepalive_s=5.0)
PROXIED = Hop("node3", "10.0.0.3", 22, "ml", proxy_command="nc -X 5 10.0.0.3 22")
JUMP = Hop("jump", "198.51.100.7", 2222, "ml", bastion=True)

CASES: list[tuple[BaseException, dict[str, Any], str, str, bool]] = [
    # exception, context, kind, what the sentence says, whether it is tried again by itself
    (ConnectionRefusedError(111, "Connect call failed"), {}, "refused", "nothing listens on 10.0.0.3:22", True),
    (
        OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 22), [Errno 111] Connect call failed"),
        {},
        "refused",
        "nothing listens on 10.0.0.3:22",
        True,
    ),
    (TimeoutError(), {}, "no_answer", "no answer from 10.0.0.3:22 in 15 s", True),
    (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), {}, "no_answer", "no answer from 10.0.0.3:22", True),
    (OSError(errno.ENETUNREACH, "Network is unreachable"), {}, "no_route", "no network route to 10.0.0.3:22", True),
    (OSError(errno.EHOSTUNREACH, "No route to host"), {}, "no_route", "no network route to 10.0.0.3:22", True),
    (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), {}, "name", "does not exist", True),
    (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), {}, "name", "name server does not answer", True),
    (
        asyncssh.ConnectionLost("Login timeout expired"),
        {"stage": Stage.BANNER},
        "silent",
        "10.0.0.3:22 is open, but gave no SSH answer in 15 s",
        True,
    ),
    (TimeoutError(), {"stage": Stage.BANNER}, "silent", "gave no SSH answer in 15 s", True),
    (TimeoutError(), {"stage": Stage.LOGIN}, "login_timeout", 'login as "ml" did not end in 15 s', True),
    (
        asyncssh.ConnectionLost("Connection lost"),
        {"stage": Stage.BANNER},
        "dropped",
        "10.0.0.3:22 closed the connection before login",
        True,
    ),
    (ConnectionResetError(104, "reset"), {"stage": Stage.KEYS}, "dropped", "closed the connection before login", True),
    (
        asyncssh.PermissionDenied("Permission denied for user ml on host 10.0.0.3"),
        {"stage": Stage.LOGIN, "offered": ("2 keys of the agent", "~/.ssh/id_ed25519")},
        "auth",
        'login as "ml" at 10.0.0.3:22 refused; offered: 2 keys of the agent, ~/.ssh/id_ed25519. Not retried',
        False,
    ),
    (asyncssh.PermissionDenied("x"), {"stage": Stage.LOGIN}, "auth", "there was no key to offer", False),
    (
        asyncssh.PermissionDenied("x"),
        {"stage": Stage.LOGIN, "locked": ("~/.ssh/id_x",)},
        "passphrase",
        "key ~/.ssh/id_x needs a passphrase",
        False,
    ),
    (
        asyncssh.ProtocolError("Too many authentication failures"),
        {"stage": Stage.LOGIN, "offered": ("7 keys of the agent",)},
        "too_many_keys",
        "after too many keys (7 keys of the agent)",
        False,
    ),
    (
        asyncssh.KeyImportError("Passphrase must be specified to import encrypted private keys"),
        {},
        "passphrase",
        "needs a passphrase",
        False,
    ),
    (
        asyncssh.KeyEncryptionError("OpenSSH private key encryption requires bcrypt with KDF support"),
        {},
        "passphrase",
        "needs a passphrase",
        False,
    ),
    (FileNotFoundError(2, "No such file", "/home/ml/.ssh/x"), {}, "config", "/home/ml/.ssh/x does not exist", False),
    (
        asyncssh.ConfigParseError("/home/ml/.ssh/config line 7: Missing Port value"),
        {},
        "config",
        "/home/ml/.ssh/config line 7: Missing Port value",
        False,
    ),
    (
        asyncssh.KeyExchangeFailed(
            "No matching key exchange algorithm found, sent a,b,c and received diffie-hellman-group1-sha1"
        ),
        {"stage": Stage.KEYS},
        "algorithms",
        "the server's key exchange algorithms are diffie-hellman-group1-sha1",
        False,
    ),
    (
        asyncssh.ChannelOpenError(2, "Connection refused"),
        {"via": "jump"},
        "bastion",
        'bastion "jump" cannot reach 10.0.0.3:22 (connection refused)',
        True,
    ),
    (
        asyncssh.ChannelOpenError(1, "open failed"),
        {"via": "jump"},
        "bastion",
        "it forwards no TCP: AllowTcpForwarding",
        True,
    ),
    (TimeoutError(), {"via": "jump"}, "bastion", 'bastion "jump" got no answer from 10.0.0.3:22', True),
    (ConnectionRefusedError(111, "x"), {"hop": JUMP}, "refused", "bastion jump: nothing listens on 198.51.100.7", True),
    (
        asyncssh.ConnectionLost("Connection lost"),
        {"hop": PROXIED, "stage": Stage.BANNER, "said": "nc: timed out"},
        "proxy",
        'ProxyCommand "nc -X 5 10.0.0.3 22" for 10.0.0.3:22 ended before SSH started; it said "nc: timed out"',
        True,
    ),
    (TimeoutError(), {"hop": PROXIED, "stage": Stage.BANNER}, "proxy", "gave no SSH answer in 15 s", True),
    (
        asyncssh.ChannelOpenError(2, "open failed"),
        {"stage": Stage.SESSION},
        "sessions",
        "allows no session on this connection (MaxSessions)",
        True,
    ),
    (
        asyncssh.ChannelOpenError(2, "SSH connection closed"),
        {"stage": Stage.SESSION},
        "lost",
        "the connection to 10.0.0.3:22 was closed by the other side",
        True,
    ),
    (asyncssh.DisconnectError(11, "going down"), {"stage": Stage.LOGIN}, "other", "going down", True),
]


@pytest.mark.parametrize(("err", "context", "kind", "text", "retry"), CASES)
def test_each_failure_has_its_sentence(
    err: BaseException, context: dict[str, Any], kind: str, text: str, retry: bool
) -> None:
    given = {"hop": HOP, "stage": Stage.CONNECT} | context
    error = explain(err, Context(**given))
    assert text in str(error)
    assert (error.kind, error.retry) == (kind, retry)
    hop = given["hop"]
    assert str(error).startswith(f"{hop.label}")
    assert hop.where in str(error)
    assert error.hint or kind == "lost"
    assert "\n" not in str(error)


def test_what_a_stranger_says_cannot_move_the_cursor_or_fill_the_screen() -> None:
    said = "\x1b]0;title\x07\x1b[2Jhello\r\n\x00" + "x" * 10_000
    error = explain(asyncssh.ConnectionLost("lost"), Context(HOP, Stage.BANNER, said=said))
    assert "hello" in str(error)
    assert "\x1b" not in str(error)
    assert len(str(error)) < 600


SHELLS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"status": 127, "errors": "bash: line 1: exec: python3: not found", "path": "/usr/bin:/bin"},
        "python",
        "python3 is not on the non-login PATH (/usr/bin:/bin)",
    ),
    ({"status": 1, "errors": "python3: Command not found.\n"}, "python", "python3 is not on the non-login PATH"),
    ({"status": 126, "errors": "Permission denied"}, "python", "python3 cannot be run"),
    ({"status": 127, "python": "/opt/py/bin/python"}, "python", "/opt/py/bin/python does not exist there"),
    ({"status": 1, "errors": "Traceback (most recent call last)\nMemoryError"}, "python", "cannot run the agent"),
    (
        {"status": 1, "printed": "This account is currently not available.\n"},
        "account",
        'runs no commands: its shell ended with status 1; it printed "This account is currently not available."',
    ),
    ({"status": 0, "printed": "git only"}, "account", 'status 0; it printed "git only"'),
    ({"status": None, "signal": "SIGKILL"}, "account", "its shell was ended by SIGKILL"),
    ({"status": None, "waited_s": 10.0}, "shell", "did not start our command within 10 s"),
]


@pytest.mark.parametrize(("end", "kind", "text"), SHELLS)
def test_each_end_of_a_login_shell_has_its_sentence(end: dict[str, Any], kind: str, text: str) -> None:
    error = explain_shell(ShellEnd(**({"hop": HOP, "python": "python3"} | end)))
    assert error.kind == kind
    assert text in str(error)
    assert str(error).startswith('node3: logged in to 10.0.0.3:22 as "ml", but ')
    assert error.hint


def test_a_dead_link_says_how_long_it_was_silent() -> None:
    error = lost(HOP, asyncssh.ConnectionLost("Server not responding to keepalive messages"))
    assert "10.0.0.3:22 does not answer for 20 s" in str(error)


def test_an_ipv6_address_is_in_brackets() -> None:
    error = explain(ConnectionRefusedError(111, "x"), Context(Hop("n", "fe80::1", 2200, "ml"), Stage.CONNECT))
    assert "[fe80::1]:2200" in str(error)
