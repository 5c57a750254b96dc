"""~/.ssh/config as ssh reads it: `ssh -G` is the judge where it can be."""

from __future__ import annotations

import getpass
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.config.schema import Ssh
from engine.errors import LinkError
from engine.link import ssh_config
from engine.link.ssh_config import resolve
from engine.link.ssh_model import Hop, Route, Target
from engine.link.ssh_reader import Files, seconds, split_words


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an empty .ssh; the machine's own config does not count."""
    monkeypatch.setattr(ssh_config, "SYSTEM_CONFIG", tmp_path / "ssh_config")
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def route(home: Path, text: str, host: str = "node3", **options: Any) -> Route:
    (home / ".ssh" / "config").write_text(text)
    return resolve(Target(host), Ssh(**options), home)


def node(home: Path, text: str, host: str = "node3", **options: Any) -> Hop:
    return route(home, text, host, **options).node


CONFIGS = [
    "",
    "Host node*\n HostName %h.cluster\n Port 2222\n User ml\n",
    "Host node3\n Port 1\nHost *\n Port 2\n User other\n",
    "Host !node3 *\n Port 9\n",
    "Match host node3 user ml\n Port 7\nHost *\n User x\n",
    "Host node3\n User ml\nMatch user ml\n Port 7\n",
    "Match exec true\n Port 7\nMatch exec false\n Port 8\n",
    "Match originalhost node3\n HostName 10.0.0.3\n Port=77\n",
    'Host "node3"\n HostName = 10.0.0.3\n User "m l"\n',
    "Host node3\n HostKeyAlias cluster\n ProxyCommand nc -x 'a b' %h %p\n",
    "Host node3\n ServerAliveInterval 30s\n ConnectTimeout 1m\n",
    "Host node3\n ProxyCommand first %h\n ProxyJump second\n",
    "Host node3\n ProxyCommand none\n ProxyJump second\n",
    "Host node3 # mine\n Port 2222 # theirs\n User a#b\n",
    "Host *.x node?\n Port 9\nHost node[3]\n Port 10\nHost a,node3\n User list\n",
    "Host NODE3\n Port 9\n",
    "Host n*\n Port 9\nHost node3\n Port 8\n HostName %%h-%h\n",
    "Match final host node3.cluster\n Port 8\nHost node3\n HostName node3.cluster\n",
    "Match !host other !exec false\n Port 9\nMatch all\n User everybody\n",
    "Match localuser nobody\n Port 9\n",
    "Host node3\n ProxyJump none\nHost *\n ProxyCommand nc %h %p\n",
    'Match exec "test %n = node3"\n Port 9\n',
    'Host node3\n HostName h1\nMatch host h1 exec "test %h = h1" !exec "test %h = h2"\n User ml\n',
    "Match final\n HostName other\n User ml\n",
    "\tHost\tnode3\n\t  HostName=h1\n  port = 99\n\n# Port 1\n   #x\n",
    'Host node3\n User "with \\"quotes\\""\n HostKeyAlias \'a b\'\n',
]


needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh client: apt-get install openssh-client")


def compare_with_ssh(home: Path, text: str) -> None:
    """`ssh -G` says the same about node3."""
    found = route(home, text, connect_timeout_s=600.0, keepalive_s=600.0)
    hop = found.node
    words = ["ssh", "-G", "-F", home / ".ssh" / "config", "node3"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    said = dict(line.split(" ", 1) for line in lines if " " in line)
    assert (hop.address, str(hop.port), hop.user) == (said["hostname"], said["port"], said["user"])
    assert hop.key_alias == said.get("hostkeyalias")
    command = said.get("proxycommand", "none").replace("%h", hop.address).replace("%p", str(hop.port))
    assert (hop.proxy_command or "none") == command
    assert names(found)[:-1] == [jump for jump in [said.get("proxyjump", "none")] if jump != "none"]
    assert hop.keepalive_s == (float(said["serveraliveinterval"]) or 600.0)
    timeout = said["connecttimeout"]
    assert hop.connect_timeout_s == (600.0 if timeout == "none" else float(timeout))


@needs_ssh
@pytest.mark.parametrize("text", CONFIGS)
def test_a_host_is_resolved_as_ssh_does(home: Path, text: str) -> None:
    compare_with_ssh(home, text)


HEADS = """
Host node3|Host *|Host n*|Host node?|Host !node3|Host !n* *|Host other|Host * !node3|Host no?e3 x|Host h1|Host h*
Match all|Match host node3|Match host h*|Match originalhost node3|Match !host h1|Match user ml|Match exec true
Match host node3 user ml|Match localuser nobody|Match final|Match final host h1|Match !final|Match host other,node3
Match exec "test %h = node3"|Match exec "test %n = node3"
"""
OPTIONS = """
Port 2201|Port = 23|User ml|User u2|HostName h1|HostName %h.x|HostName h%%2|ProxyCommand nc %h|ProxyCommand none
ProxyJump b|HostKeyAlias al|ServerAliveInterval 1m|ServerAliveInterval=20|ConnectTimeout 10 # x|User 'a b'|User=eq
  User\tt|ControlMaster no|User a=b
"""


@needs_ssh
@pytest.mark.parametrize("seed", range(80))
def test_any_config_is_resolved_as_ssh_does(home: Path, seed: int) -> None:
    dice = random.Random(seed)
    heads, options = (text.strip().replace("\n", "|").split("|") for text in (HEADS, OPTIONS))
    lines = ["Host b", " ProxyCommand none"]  # else the bastion would lie behind itself
    for _ in range(dice.randrange(1, 5)):
        lines += [dice.choice(heads), *(" " + dice.choice(options) for _ in range(dice.randrange(1, 4)))]
    compare_with_ssh(home, "\n".join(lines) + "\n")


def test_include_follows_other_files(home: Path) -> None:
    (home / ".ssh" / "more").mkdir()
    (home / ".ssh" / "more" / "a").write_text("Host node3\n Port 44\n")
    assert node(home, f"Include {home}/.ssh/more/*\n").port == 44


def test_the_systems_config_comes_after_the_users(home: Path) -> None:
    ssh_config.SYSTEM_CONFIG.write_text("Host *\n Port 5\n User sys\n")
    hop = node(home, "Host *\n Port 6\n")
    assert (hop.port, hop.user) == (6, "sys")


def test_cluster_ssh_wins_over_the_config_and_the_host_over_both(home: Path) -> None:
    text = "Host *\n Port 6\n User cfg\n"
    assert node(home, text, port=7, user="run").port == 7
    assert node(home, text, port=7, user="run").user == "run"
    named = resolve(Target("node3", "me", 8), Ssh(port=7, user="run"), home).node
    assert (named.port, named.user) == (8, "me")


def test_config_false_reads_no_config(home: Path) -> None:
    hop = node(home, "Host *\n Port 6\n ProxyJump x\n", config=False)
    assert (hop.port, hop.address, hop.user) == (22, "node3", getpass.getuser())


def test_an_identity_file_that_is_missing_is_passed_over_as_ssh_does(home: Path) -> None:
    (home / ".ssh" / "id_work").write_text("x")
    (home / ".ssh" / "id_rsa").write_text("x")
    text = "Host *\n IdentityFile ~/.ssh/nope\n IdentityFile ~/.ssh/id_work\n"
    assert node(home, text).identities == (f"{home}/.ssh/id_work",)
    assert node(home, "").identities == (f"{home}/.ssh/id_rsa",)


def test_cluster_ssh_identity_must_exist(home: Path) -> None:
    with pytest.raises(LinkError, match=r"cluster\.ssh\.identity .*nope does not exist") as caught:
        node(home, "", identity="~/.ssh/nope")
    assert (caught.value.kind, caught.value.retry) == ("config", False)


def test_what_is_not_followed_is_said_once_with_its_place(home: Path) -> None:
    text = "Host *\n StrictHostKeyChecking no\n ControlMaster auto\n ControlPath /x\n LogLevel QUIET\n"
    warnings = route(home, text).warnings
    assert len(warnings) == 2
    assert f"{home}/.ssh/config line 2: StrictHostKeyChecking no is not followed" in warnings[0]
    assert "ControlMaster auto is not followed" in warnings[1]
    assert not route(home, "Host *\n StrictHostKeyChecking yes\n ControlMaster no\n").warnings
    assert not route(home, "Host other\n StrictHostKeyChecking no\n").warnings


def test_a_config_that_cannot_be_read_names_file_and_line(home: Path) -> None:
    for text in ("\nPort many\n", "\nServerAliveInterval soon\n", "\nHost 'x\n"):
        with pytest.raises(LinkError, match=rf"{home}/\.ssh/config line 2: ") as caught:
            node(home, text)
        assert (caught.value.kind, caught.value.retry) == ("config", False)


def names(found: Route) -> list[str]:
    return [hop.name for hop in found.hops]


def test_jumps(home: Path) -> None:
    text = "Host node*\n ProxyJump b\nHost b\n ProxyJump me@a:2200\n HostName bastion\n User jumper\n"
    found = route(home, text)
    assert names(found) == ["a", "b", "node3"]
    assert (found.hops[0].user, found.hops[0].port) == ("me", 2200)
    assert (found.hops[1].address, found.hops[1].user) == ("bastion", "jumper")
    assert [hop.bastion for hop in found.hops] == [True, True, False]

    assert names(route(home, text, jump="x,ssh://u@[fe80::2]:99")) == ["x", "fe80::2", "node3"]
    assert names(route(home, text, jump="none")) == ["node3"]
    assert names(route(home, "Host node3\n ProxyJump none\nHost *\n ProxyJump b\n")) == ["node3"]
    # In a list only the first follows a ProxyJump of its own.
    assert names(route(home, "Host node3\n ProxyJump c,b\nHost b\n ProxyJump z\n")) == ["c", "b", "node3"]


def test_user_and_port_of_the_run_are_the_nodes_alone(home: Path) -> None:
    found = route(home, "", jump="b", user="ml", port=2222)
    assert (found.hops[0].user, found.hops[0].port) == (getpass.getuser(), 22)
    assert (found.node.user, found.node.port) == ("ml", 2222)


@pytest.mark.parametrize("text", ["Host *\n ProxyJump b\n", "Host node3\n ProxyJump b\nHost b\n ProxyJump node3\n"])
def test_a_circle_of_jumps_is_a_fault(home: Path, text: str) -> None:
    with pytest.raises(LinkError, match="circle") as caught:
        route(home, text)
    assert caught.value.kind == "config"


def test_a_jump_that_is_no_host_is_a_fault(home: Path) -> None:
    for word in ("@x", "a:b", "a b:1:2", "a b:1", ""):
        with pytest.raises(LinkError, match="to jump over"):
            route(home, "", jump=f"ok,{word}")


def test_known_hosts_files(home: Path) -> None:
    assert node(home, "").known_hosts[0] == f"{home}/.ssh/known_hosts"
    assert "/etc/ssh/ssh_known_hosts" in node(home, "").known_hosts
    text = "Host *\n UserKnownHostsFile ~/.ssh/%h ~/.ssh/b\n GlobalKnownHostsFile /g\n"
    assert node(home, text).known_hosts == (f"{home}/.ssh/node3", f"{home}/.ssh/b", "/g")
    assert node(home, text, known_hosts="~/mine").known_hosts == (f"{home}/mine",)


def test_the_faster_keepalive_counts(home: Path) -> None:
    assert node(home, "Host *\n ServerAliveInterval 3\n", keepalive_s=15.0).keepalive_s == 3
    assert node(home, "Host *\n ServerAliveInterval 60\n", keepalive_s=15.0).keepalive_s == 15
    assert node(home, "", keepalive_s=0.0).keepalive_s == 0


def test_times_of_ssh_config() -> None:
    assert [seconds(text) for text in ("30", "30s", "1h30m", "2D", "", "x", "5 m", "1.5")] == [
        *(30, 30, 5400, 172800),
        *(None, None, None, None),
    ]


def test_words_of_a_line() -> None:
    assert split_words("a  'b c' \"d e\" f\\ g # h") == ("a", "b c", "d e", "f g")
    assert split_words("x#y '' #") == ("x#y", "")
    assert split_words("a'b'\"c\"") == ("abc",)
    assert split_words(r"C:\dir 'it\'s' \\") == (r"C:\dir", "it's", "\\")
    assert split_words("") == ()
    assert split_words("'open") is None


def test_files_are_included_in_order_and_relative_to_the_config(home: Path) -> None:
    (home / ".ssh" / "conf.d").mkdir()
    for name in ("20", "10", "30"):
        (home / ".ssh" / "conf.d" / name).write_text(f"Host node3\n Port {name}\n")
    assert node(home, "Include conf.d/*\n").port == 10
    ssh_config.SYSTEM_CONFIG.write_text("Include more\n")
    ssh_config.SYSTEM_CONFIG.with_name("more").write_text("User sys\n")
    assert node(home, "Include conf.d/none*\n").user == "sys"


def test_files_that_include_each_other_are_a_fault(home: Path) -> None:
    with pytest.raises(LinkError, match="include each other"):
        node(home, "Include config\n")


def test_a_config_that_changed_is_read_again(home: Path) -> None:
    files = Files()
    config = home / ".ssh" / "config"
    for port in (2201, 33):
        config.write_text(f"Host node3\n Port {port}\n")
        assert resolve(Target("node3"), Ssh(), home, files).node.port == port
