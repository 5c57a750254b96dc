"""Host keys are always checked; new, changed and revoked ones are told apart, whatever the config wants."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.errors import LinkError
from engine.link.ssh_known import KnownHosts
from engine.link.ssh_model import HostKeyUnknown, Target


async def refused(world: Any, daemon: Any, **options: Any) -> LinkError:
    with pytest.raises(LinkError) as caught:
        await world.pool(**options).connect(world.target(daemon))
    print(caught.value)
    assert not caught.value.retry
    assert "Accepted" not in daemon.log()
    return caught.value


async def test_a_new_key_is_offered_and_can_be_accepted(world: Any, lab: Any) -> None:
    daemon = world.sshd("node", known=False)
    world.known_hosts.write_text("other ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ" + "A" * 42 + " no newline here")
    pool = world.pool()
    with pytest.raises(HostKeyUnknown) as caught:
        await pool.connect(world.target(daemon))
    error = caught.value
    assert error.kind == "host_key_unknown"
    assert daemon.fingerprint() in str(error)
    assert f"127.0.0.1:{daemon.port}" in str(error)
    assert f"`ssh -p {daemon.port} {lab.USER}@127.0.0.1`" in error.hint
    assert error.offer.line in error.hint

    pool.accept_host_key(error.offer)
    pool.accept_host_key(error.offer)
    assert world.known_hosts.read_text().split("\n")[1:] == [daemon.known_line(), ""]
    await (await pool.connect(world.target(daemon))).close()
    name = f"[127.0.0.1]:{daemon.port}"
    assert subprocess.run(["ssh-keygen", "-F", name, "-f", world.known_hosts], capture_output=True).returncode == 0


async def test_without_a_known_hosts_file_one_is_made(world: Any) -> None:
    daemon = world.sshd("node", known=False)
    file = world.home / "new" / "hosts"
    pool = world.pool(known_hosts="~/new/hosts")
    with pytest.raises(HostKeyUnknown) as caught:
        await pool.connect(world.target(daemon))
    pool.accept_host_key(caught.value.offer)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    await (await pool.connect(world.target(daemon))).close()


@pytest.mark.parametrize("hashed", [False, True])
async def test_a_changed_key_is_refused_loudly(world: Any, lab: Any, hashed: bool) -> None:
    daemon = world.sshd("node", known=False)
    old = lab.make_key(world.folder / "old")
    world.know("# a comment")
    world.know(f"[127.0.0.1]:{daemon.port} " + " ".join(old.with_name("old.pub").read_text().split()[:2]))
    if hashed:
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", world.known_hosts], check=True, capture_output=True)
    world.config("Host *\n  StrictHostKeyChecking no\n")
    error = await refused(world, daemon)
    assert error.kind == "host_key_changed"
    assert f"HOST KEY OF 127.0.0.1:{daemon.port} HAS CHANGED" in str(error)
    assert daemon.fingerprint() in str(error)
    assert lab.fingerprint(old) in str(error)
    assert f"{world.known_hosts} line 2" in str(error)
    assert "ssh-keygen -R" in error.hint


async def test_a_key_of_another_type_than_the_known_one_is_a_changed_key(world: Any, lab: Any) -> None:
    daemon = world.sshd("node", known=False)
    old = lab.make_key(world.folder / "old", kind="rsa")
    world.know(f"[127.0.0.1]:{daemon.port} " + " ".join(old.with_name("old.pub").read_text().split()[:2]))
    assert (await refused(world, daemon)).kind == "host_key_changed"


async def test_of_several_host_keys_the_known_one_is_asked_for(world: Any, lab: Any) -> None:
    other = lab.make_key(world.folder / "rsa_host_key", kind="rsa")
    daemon = world.sshd("node", f"HostKey {other}", known=False)
    world.know(f"[127.0.0.1]:{daemon.port} " + " ".join(other.with_name("rsa_host_key.pub").read_text().split()[:2]))
    await (await world.pool().connect(world.target(daemon))).close()


async def test_a_revoked_key_is_refused(world: Any) -> None:
    daemon = world.sshd("node")
    world.know("@revoked * " + daemon.known_line().split(" ", 1)[1])
    error = await refused(world, daemon)
    assert error.kind == "host_key_revoked"
    assert f"revoked in {world.known_hosts} line 2" in str(error)


@pytest.mark.parametrize("where", ["none", "/dev/null"])
async def test_a_config_that_keeps_no_keys_does_not_switch_checking_off(world: Any, where: str) -> None:
    daemon = world.sshd("node")
    world.config(f"Host *\n  UserKnownHostsFile {where}\n  StrictHostKeyChecking no\n")
    error = await refused(world, daemon)
    assert isinstance(error, HostKeyUnknown)
    assert error.offer.file is None
    assert "cluster.ssh.known_hosts" in error.hint
    with pytest.raises(LinkError, match=r"cluster\.ssh\.known_hosts"):
        world.pool().accept_host_key(error.offer)
    assert Path("/dev/null").is_char_device()


async def test_a_host_certificate_of_a_known_ca(world: Any, lab: Any) -> None:
    authority = lab.make_key(world.folder / "ca")
    daemon = world.sshd("node", known=False)

    def certify(names: str) -> None:
        words = ["ssh-keygen", "-q", "-s", authority, "-I", "node", "-h", "-n", names, f"{daemon.host_key}.pub"]
        subprocess.run(words, check=True, capture_output=True)
        daemon.stop()
        daemon.options = [*daemon.options, f"HostCertificate {daemon.host_key}-cert.pub"]
        daemon.start()

    certify("127.0.0.1")
    assert (await refused(world, daemon)).kind == "host_key_unknown"  # its plain key, as long as nobody knows the CA
    world.know("@cert-authority * " + " ".join(authority.with_name("ca.pub").read_text().split()[:2]))
    await (await world.pool().connect(world.target(daemon))).close()

    other = lab.make_key(world.folder / "other_ca")
    world.known_hosts.write_text(
        "@cert-authority * " + " ".join(other.with_name("other_ca.pub").read_text().split()[:2]) + "\n"
    )
    with pytest.raises(LinkError, match="CA OF THE HOST CERTIFICATE"):
        await world.pool().connect(world.target(daemon))


async def test_the_name_under_which_a_key_is_kept(world: Any) -> None:
    daemon = world.sshd("node", known=False)
    world.config(world.alias("n1", daemon, "HostKeyAlias cluster"))
    pool = world.pool()
    with pytest.raises(HostKeyUnknown) as caught:
        await pool.connect(Target("n1"))
    assert caught.value.offer.line.startswith("cluster ssh-ed25519 ")
    pool.accept_host_key(caught.value.offer)
    await (await pool.connect(Target("n1"))).close()


async def test_an_ipv6_address(world: Any) -> None:
    daemon = world.sshd("node", known=False, address="::1")
    pool = world.pool()
    with pytest.raises(HostKeyUnknown, match=rf"\[::1\]:{daemon.port}") as caught:
        await pool.connect(world.target(daemon))
    assert caught.value.offer.line.startswith(f"[::1]:{daemon.port} ")
    pool.accept_host_key(caught.value.offer)
    await (await pool.connect(world.target(daemon))).close()


async def test_an_entry_without_a_port_counts_for_any_port(world: Any) -> None:
    daemon = world.sshd("node", known=False)
    world.know("127.0.0.1 " + daemon.known_line().split(" ", 1)[1])
    await (await world.pool().connect(world.target(daemon))).close()


async def test_a_line_that_is_no_entry_is_passed_over(world: Any) -> None:
    daemon = world.sshd("node", known=False)
    world.know("garbage\n@unknown-marker x y z\n|1|broken|hash ssh-ed25519 AAAA")
    world.know(daemon.known_line())
    await (await world.pool().connect(world.target(daemon))).close()


@pytest.mark.parametrize("hashed", [False, True])
def test_names_are_looked_up_as_ssh_keygen_does(tmp_path: Path, lab: Any, hashed: bool) -> None:
    keys = [lab.make_key(tmp_path / f"k{i}").with_name(f"k{i}.pub").read_text().strip() for i in range(4)]
    file = tmp_path / "known_hosts"
    names = ["gpu1,10.0.0.1", "GPU2.Cluster", "[gpu3]:2222", "::1,[fe80::1]:22000"]
    patterns = [] if hashed else ["*.rack,!bad.rack", "node?,!node9", "@revoked old.*", "@cert-authority *.ca"]
    lines = [f"{name} {keys[i % 4]}" for i, name in enumerate([*names, *patterns])]
    file.write_text("\n".join(["# comment", "", *lines, *([] if hashed else ["short line", "x y z"])]) + "\n")
    if hashed:
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
        assert "gpu1" not in file.read_text()
    asked = (
        "gpu1 10.0.0.1 gpu2.cluster gpu3 [gpu3]:2222 ::1 [fe80::1]:22000 a.rack bad.rack node1 node9 node10 old.x y.ca"
    )
    found: dict[str, list[int]] = {}
    for name in asked.split():
        found[name] = [entry.line_no for entry in KnownHosts().entries([str(file)], [name])]
        said = subprocess.run(["ssh-keygen", "-F", name, "-f", file], capture_output=True, text=True).stdout
        assert found[name] == [
            int(line.split("line ")[1].split()[0]) for line in said.split("\n") if "found: line" in line
        ]
    assert sum(map(len, found.values())) == (6 if hashed else 10)


def test_a_name_with_its_port_comes_before_one_without(tmp_path: Path, lab: Any) -> None:
    keys = [" ".join(lab.make_key(tmp_path / k).with_name(f"{k}.pub").read_text().split()[:2]) for k in "ab"]
    file = tmp_path / "known_hosts"
    file.write_text(f"@revoked [n]:22000 {keys[0]}\nn {keys[0]}\n")
    known = KnownHosts()
    names = ["[n]:22000", "n"]
    assert [(e.line_no, e.marker) for e in known.entries([str(file)], names)] == [(1, "@revoked"), (2, "")]
    file.write_text(file.read_text() + f"[n]:22000 {keys[1]}\n")
    assert [e.line_no for e in known.entries([str(file), str(tmp_path / "missing")], names)] == [1, 3]
