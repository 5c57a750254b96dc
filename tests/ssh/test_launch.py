"""The agent started over a real sshd: under every login shell, on one session, byte for byte."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import pytest

from engine.errors import LinkError
from engine.link.ssh import exec_command
from engine.link.ssh_model import Target

# Everything that some shell would touch, should one ever see it.
HOSTILE = r"""printf '%s\n' '\\ \ $HOME `id` ! !! "double" %d {a,b} * ~ é 🐍 #'"""
SAID = r'\\ \ $HOME `id` ! !! "double" %d {a,b} * ~ é 🐍 #'


def login_shell(folder: Any, shell: str, rc: str = "") -> str:
    """ForceCommand that makes `shell` the login shell, with a home of its own: sshd runs `shell -c COMMAND`."""
    home = folder / "remote_home"
    home.mkdir()
    (home / ".bashrc").write_text(rc)
    (home / ".cshrc").write_text(rc if "csh" in shell else "")
    # Without SHLVL bash knows that sshd started it, and reads ~/.bashrc as it does at a real login.
    return f'ForceCommand exec env -u SHLVL HOME={home} {shell} -c "$SSH_ORIGINAL_COMMAND"'


async def runs_a_job(world: Any, daemon: Any) -> None:
    job = world.job(HOSTILE, "exit 3", "kill -BUS $$")
    talk = await job.open(world.pool(), world.target(daemon))
    await talk.start()
    ends = await talk.finish()
    assert job.log(0).decode() == SAID + "\n"
    assert ends[0]["code"] == 0
    assert ends[1]["code"] == 3
    assert ends[2]["signal"] == 7
    await job.gone()


@pytest.mark.parametrize("shell", ["bash", "dash", "fish", "csh", "tcsh", "zsh"])
async def test_the_agent_starts_under_every_login_shell(world: Any, shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    daemon = world.sshd("node", login_shell(world.folder, path))
    await runs_a_job(world, daemon)


@pytest.mark.parametrize("rc", ["echo Welcome; echo to stderr >&2", "printf 'no newline at the end'", "stty erase ^H"])
async def test_a_noisy_login_shell_does_not_matter(world: Any, rc: str) -> None:
    daemon = world.sshd("node", login_shell(world.folder, "/bin/bash", rc))
    await runs_a_job(world, daemon)


async def test_one_session_on_the_connection_is_enough(world: Any) -> None:
    daemon = world.sshd("node", "MaxSessions 1")
    await runs_a_job(world, daemon)
    assert daemon.connections() == 1


async def test_all_ranks_use_one_connection(world: Any) -> None:
    daemon = world.sshd("node")
    job = world.job(*(f"echo rank {i}" for i in range(8)))
    talk = await job.open(world.pool(), world.target(daemon))
    await talk.start()
    assert len(await talk.finish()) == 8
    assert daemon.connections() == 1
    assert "subsystem" not in daemon.log()


async def test_a_script_that_no_command_line_could_hold(world: Any) -> None:
    daemon = world.sshd("node")
    job = world.job("wc -c < ../run/nodes/0_node/big.txt")
    job.files["big.txt"] = {"text": "\\$`!'\"" * 100_000, "mode": 0o600}
    talk = await job.open(world.pool(), world.target(daemon))
    await talk.start()
    await talk.finish()
    assert job.log().strip() == b"600000"


async def test_stop_reaches_everything(world: Any) -> None:
    daemon = world.sshd("node")
    job = world.job("trap '' TERM; sleep 600 & setsid sleep 601 & wait")
    talk = await job.open(world.pool(), world.target(daemon))
    await talk.start()
    await talk.until(lambda f: f["t"] == "spawned", "the rank")
    await talk.stop()
    await job.gone()


async def test_request_tty_and_remote_command_of_the_config_are_not_for_us(world: Any) -> None:
    daemon = world.sshd("node")
    world.config(world.alias("n", daemon, "RequestTTY force", "RemoteCommand tmux attach"))
    job = world.job("echo fine")
    talk = await job.open(world.pool(), Target("n"))
    await talk.start()
    await talk.finish()
    assert job.log() == b"fine\n"


async def test_variables_that_the_config_sends_arrive_as_with_ssh(world: Any) -> None:
    daemon = world.sshd("node", "AcceptEnv SITE_*")
    world.config(world.alias("n", daemon, "SetEnv SITE_QUEUE=gpu"))
    job = world.job("echo $SITE_QUEUE")
    talk = await job.open(world.pool(), Target("n"))
    await talk.start()
    await talk.finish()
    assert job.log() == b"gpu\n"


def test_a_python_that_a_shell_would_touch_is_refused() -> None:
    for path in ("python3; reboot", "my python", "$HOME/python", "-c", "a'b", 'a"b', "python3\n", "pyth*n"):
        with pytest.raises(LinkError, match=r"task\.agent_python") as caught:
            exec_command(path)
        assert not caught.value.retry
    assert exec_command(sys.executable).startswith(f"exec {sys.executable} -I -S -c ")
    assert exec_command("~/venvs/a_b-3.11/bin/python3")
