"""What a user reads when a host cannot be reached, or will not have us: real sockets, real daemons."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.errors import LinkError
from engine.link import ssh as ssh_link
from engine.link.ssh_model import Target


async def failing(attempt: Awaitable[Any]) -> LinkError:
    with pytest.raises(LinkError) as caught:
        await attempt
    print(caught.value)
    return caught.value


@asynccontextmanager
async def listening(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Any:
    """A server of another kind, and its port."""
    tasks: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())  # type: ignore[arg-type]
        try:
            await talk(reader, writer)
        except (asyncio.CancelledError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_nothing_listens(world: Any, lab: Any) -> None:
    port = lab.free_port()
    error = await failing(world.pool().connect(Target("127.0.0.1", port=port)))
    assert f"127.0.0.1: nothing listens on 127.0.0.1:{port}" in str(error)
    assert (error.kind, error.retry) == ("refused", True)


async def test_nothing_listens_on_any_address_of_a_name(world: Any, lab: Any) -> None:
    port = lab.free_port()
    error = await failing(world.pool().connect(Target("localhost", port=port)))
    assert f"localhost: nothing listens on localhost:{port}" in str(error)


async def test_a_name_that_does_not_exist(world: Any) -> None:
    error = await failing(world.pool().connect(Target("gpu3.invalid")))
    assert error.kind == "name"
    assert '"gpu3.invalid"' in str(error)


async def test_a_port_that_says_nothing(world: Any) -> None:
    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with listening(silence) as port:
        error = await failing(world.pool(connect_timeout_s=0.5).connect(Target("127.0.0.1", port=port)))
    assert f"127.0.0.1:{port} is open, but gave no SSH answer in 0.5 s" in str(error)
    assert (error.kind, error.retry) == ("silent", True)


async def test_a_port_that_is_not_ssh(world: Any) -> None:
    visits: list[bytes] = []

    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(await reader.readline())
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    waits: list[float] = []

    async def no_wait(seconds: float) -> None:
        waits.append(seconds)

    pool = world.pool()
    pool._sleep, pool._jitter = no_wait, lambda low, high: high
    async with listening(http) as port:
        error = await failing(pool.connect(Target("127.0.0.1", port=port)))
    assert "closed the connection before login" in str(error)
    assert "not SSH" in error.hint
    assert len(visits) == 4  # it might have been a throttling sshd
    assert waits == [1.0, 2.0, 4.0]


async def test_a_server_that_speaks_ssh_and_then_hangs(world: Any) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2p1\r\n")
        await reader.read(-1)

    async with listening(hang) as port:
        error = await failing(world.pool(connect_timeout_s=0.5).connect(Target("127.0.0.1", port=port)))
    assert "speaks SSH, but the login" in str(error)
    assert "did not end in 0.5 s" in str(error)
    assert error.kind == "login_timeout"


async def test_the_wrong_key_is_tried_once(world: Any, lab: Any) -> None:
    lab.make_key(world.folder / "stranger")
    daemons = [world.sshd(f"node{i}") for i in range(2)]
    pool = world.pool(identity=str(world.folder / "stranger"))
    first = await failing(pool.connect(world.target(daemons[0])))
    assert f'login as "{lab.USER}" at 127.0.0.1:{daemons[0].port} refused' in str(first)
    assert "stranger" in str(first)
    assert (first.kind, first.retry) == ("auth", False)
    assert daemons[0].connections() == 1

    second = await failing(pool.connect(world.target(daemons[1])))
    assert "was not tried" in str(second)
    assert (second.kind, second.retry) == ("auth", False)
    assert daemons[1].connections() == 0

    with world.authorized.open("a") as file:
        file.write((world.folder / "stranger.pub").read_text())
    pool.reset_auth()
    for daemon in daemons:
        await (await pool.connect(world.target(daemon))).close()
        assert "Accepted publickey" in daemon.log()


async def test_a_host_that_let_us_in_before_is_not_kept_away_by_another_that_refuses(world: Any, lab: Any) -> None:
    good = world.sshd("good")
    bad = world.sshd("bad", "AuthorizedKeysFile /nonexistent")
    pool = world.pool()
    await (await pool.connect(world.target(good))).close()
    assert (await failing(pool.connect(world.target(bad)))).kind == "auth"
    await (await pool.connect(world.target(good))).close()
    assert good.connections() == 2


async def test_no_key_at_all(world: Any) -> None:
    daemon = world.sshd("node")
    world.key.unlink()
    error = await failing(world.pool().connect(world.target(daemon)))
    assert "there was no key to offer" in str(error)
    assert error.kind == "auth"
    assert daemon.connections() == 1


async def test_an_encrypted_key_says_ssh_add(world: Any, lab: Any) -> None:
    daemon = world.sshd("node")
    lab.make_key(world.folder / "locked", "secret")
    for identity in (None, str(world.folder / "locked")):
        if identity is None:
            world.key.unlink()
            (world.folder / "locked").rename(world.key)
        error = await failing(world.pool(identity=identity).connect(world.target(daemon)))
        assert error.kind == "passphrase"
        assert "needs a passphrase" in str(error)
        assert "ssh-add" in error.hint
        assert not error.retry
        if identity is None:
            world.key.rename(world.folder / "locked")
    assert daemon.connections() == 2


@pytest.fixture
def agent(world: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A running ssh-agent without keys; `agent(path)` adds one."""
    sock = str(world.folder / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", sock)

    def add(*keys: Any) -> None:
        subprocess.run(["ssh-add", "-q", *map(str, keys)], check=True)

    try:
        while process.poll() is None:
            with socket.socket(socket.AF_UNIX) as it:
                if it.connect_ex(sock) == 0:
                    break
        yield add
    finally:
        process.terminate()
        process.wait(10)


async def test_the_keys_of_an_agent_are_used(world: Any, agent: Any) -> None:
    daemon = world.sshd("node")
    agent(world.key)
    world.key.unlink()
    await (await world.pool().connect(world.target(daemon))).close()
    assert daemon.connections() == 1


async def test_an_agent_that_is_gone_is_named(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = world.sshd("node")
    world.key.unlink()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(world.folder / "gone"))
    error = await failing(world.pool().connect(world.target(daemon)))
    assert error.kind == "auth"
    assert f"the ssh-agent at {world.folder / 'gone'} does not answer" in str(error)


async def test_a_config_whose_command_hangs(world: Any) -> None:
    world.config("Match exec 'sleep 3'\n Port 1\n")
    error = await failing(world.pool(connect_timeout_s=0.3).connect(Target("node")))
    assert (error.kind, error.retry) == ("config", False)
    assert "Match exec" in error.hint


async def test_an_agent_with_too_many_keys(world: Any, lab: Any, agent: Any) -> None:
    daemon = world.sshd("node", "MaxAuthTries 3")
    agent(*(lab.make_key(world.folder / f"extra{i}") for i in range(7)))
    error = await failing(world.pool().connect(world.target(daemon)))
    assert (error.kind, error.retry) == ("too_many_keys", False)
    assert "7 keys of the agent" in str(error)
    assert "IdentitiesOnly" in error.hint
    assert daemon.connections() == 1

    world.config(f"Host *\n IdentitiesOnly yes\n IdentityFile {world.key}\n")
    await (await world.pool().connect(world.target(daemon))).close()


async def test_cluster_ssh_identity_is_the_only_key_that_is_offered(world: Any, lab: Any, agent: Any) -> None:
    daemon = world.sshd("node", "MaxAuthTries 2")
    agent(*(lab.make_key(world.folder / f"extra{i}") for i in range(7)))
    await (await world.pool(identity=str(world.key)).connect(world.target(daemon))).close()


async def test_no_common_algorithms(world: Any) -> None:
    daemon = world.sshd("node", "KexAlgorithms diffie-hellman-group-exchange-sha256")
    error = await failing(world.pool().connect(world.target(daemon)))
    assert (error.kind, error.retry) == ("algorithms", False)
    assert "diffie-hellman-group-exchange-sha256" in str(error)


LOGIN_FAULTS = [
    ("/usr/sbin/nologin", "account", 'it printed "This account is currently not available."'),
    ("/bin/false", "account", "the account runs no commands: its shell ended with status 1"),
    ("echo only backups here", "account", 'status 0; it printed "only backups here"'),
    ("kill -TERM $$", "account", "its shell was ended by SIGTERM"),
]


@pytest.mark.parametrize(("command", "kind", "text"), LOGIN_FAULTS)
async def test_accounts_that_run_no_commands(world: Any, command: str, kind: str, text: str) -> None:
    daemon = world.sshd("node", f"ForceCommand {command}")
    error = await failing(world.job("true").open(world.pool(), world.target(daemon)))
    assert error.kind == kind
    assert text in str(error)
    assert f"logged in to 127.0.0.1:{daemon.port}" in str(error)


async def test_an_rc_file_that_exits(world: Any) -> None:
    home = world.folder / "remote_home"
    home.mkdir()
    (home / ".bashrc").write_text("echo maintenance until noon; exit 0\n")
    shell = f'ForceCommand exec env -u SHLVL HOME={home} /bin/bash -c "$SSH_ORIGINAL_COMMAND"'
    error = await failing(world.job("true").open(world.pool(), world.target(world.sshd("node", shell))))
    assert 'status 0; it printed "maintenance until noon"' in str(error)


async def test_an_rc_file_that_hangs(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_link, "HANDSHAKE_TIMEOUT_S", 1.0)
    daemon = world.sshd("node", "ForceCommand echo loading modules; exec sleep 15")
    error = await failing(world.job("true").open(world.pool(), world.target(daemon)))
    assert error.kind == "shell"
    assert "the login shell did not start our command within 1 s" in str(error)
    assert "loading modules" in str(error)


@pytest.mark.parametrize("shell", ["bash", "dash", "fish", "tcsh"])
async def test_no_python_there(world: Any, shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    clean = f"env -u SHLVL HOME={world.folder} PATH=/usr/bin:/bin"  # without the rc files of whoever runs the tests
    daemon = world.sshd("node", f'ForceCommand exec {clean} {path} -c "$SSH_ORIGINAL_COMMAND"')
    error = await failing(world.job("true").open(world.pool(), world.target(daemon), python="python3.99"))
    assert error.kind == "python"
    assert "python3.99 is not on the non-login PATH (/usr/bin:/bin)" in str(error)
    assert "task.agent_python" in error.hint


async def test_a_python_that_fails(world: Any) -> None:
    fake = world.folder / "python"
    fake.write_text("#!/bin/sh\necho 'SyntaxError: invalid syntax' >&2; exit 1\n")
    fake.chmod(0o755)
    daemon = world.sshd("node")
    error = await failing(world.job("true").open(world.pool(), world.target(daemon), python=str(fake)))
    assert error.kind == "python"
    assert "cannot run the agent" in str(error)


async def test_no_session_is_left_for_us(world: Any) -> None:
    daemon = world.sshd("node", "MaxSessions 0")
    error = await failing(world.job("true").open(world.pool(), world.target(daemon)))
    assert error.kind == "sessions"
    assert "MaxSessions" in str(error)


async def test_a_cancelled_login_leaves_no_connection(world: Any, lab: Any) -> None:
    events: list[str] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        events.append("came")
        await reader.read(-1)
        events.append("left")

    async with listening(hang) as port:
        pool = world.pool()
        connecting = asyncio.create_task(pool.connect(Target("127.0.0.1", port=port)))
        await lab.soon(lambda: events == ["came"], "the visit")
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await lab.soon(lambda: events == ["came", "left"], "the end of it")
        assert pool.gate.total.busy == 0


async def test_a_cancelled_opening_leaves_no_connection(world: Any, lab: Any) -> None:
    daemon = world.sshd("node", "ForceCommand exec sleep 30")
    opening = asyncio.create_task(world.job("true").open(world.pool(), world.target(daemon), python=sys.executable))
    await lab.soon(lambda: "Starting session: forced-command" in daemon.log(), "the session")
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await lab.soon(lambda: "Disconnected from" in daemon.log() or "Connection closed by" in daemon.log(), "the end")
