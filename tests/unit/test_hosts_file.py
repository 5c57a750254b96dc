"""A hostfile on the disk, with the config's overrides checked against it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from engine.config.hostfile import MAX_BYTES, load_hosts
from engine.config.schema import Cluster, Override, Ssh
from engine.errors import ConfigError


def faults_of(cluster: Cluster, start: Path, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_hosts(cluster, start, **more)
    return caught.value.lines


def test_a_relative_hostfile_counts_from_where_trainui_was_started(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("node1 slots=2\nnode2\n")
    entries = load_hosts(Cluster(hostfile="hosts.txt"), tmp_path)
    assert [(e.host, e.where) for e in entries] == [("node1", "hosts.txt:1"), ("node2", "hosts.txt:2")]
    assert load_hosts(Cluster(hostfile=str(tmp_path / "hosts.txt")), Path("/")) == entries


def test_a_hostfile_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "hosts").write_text("node1\n")
    assert load_hosts(Cluster(hostfile="~/hosts"), Path("/"))[0].host == "node1"


def test_a_hostfile_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    cluster = Cluster(hostfile="hosts.txt")
    said = f"cluster.hostfile: hosts.txt does not exist; it counts from {tmp_path}, where trainui was started"
    assert faults_of(cluster, tmp_path, beside=tmp_path / "conf") == [said]
    (tmp_path / "conf/hosts.txt").write_text("node1\n")
    assert faults_of(cluster, tmp_path, beside=tmp_path / "conf") == [f"{said}; write {tmp_path}/conf/hosts.txt"]


def test_a_hostfile_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert faults_of(Cluster(hostfile="folder"), tmp_path) == [
        "cluster.hostfile: folder cannot be read: is a directory",
    ]
    assert faults_of(Cluster(hostfile="a\0b"), tmp_path)[0].startswith("cluster.hostfile: cannot be the name of a file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_hostfile_without_permission(tmp_path: Path) -> None:
    (tmp_path / "hosts").touch(mode=0)
    assert faults_of(Cluster(hostfile="hosts"), tmp_path) == [
        "cluster.hostfile: hosts cannot be read: permission denied"
    ]


def test_a_hostfile_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"node1\nnode2\nnod\xff\n")
    assert faults_of(Cluster(hostfile="hosts"), tmp_path) == ["hosts:3: is not UTF-8 text; save the file as UTF-8"]


def test_an_endless_hostfile_is_refused() -> None:
    (line,) = faults_of(Cluster(hostfile="/dev/zero"), Path("/"))
    assert line.endswith(f"/dev/zero is larger than {MAX_BYTES >> 20} MiB, which no list of hosts is")


def test_a_fault_in_the_config_is_shown_with_its_line(tmp_path: Path) -> None:
    places = {"cluster.hosts[1]": "cfg.yml:7", "cluster": "cfg.yml:3"}
    assert faults_of(Cluster(hosts=["a", "-b"]), tmp_path, places=places)[0].startswith(
        'cfg.yml:7: cluster.hosts[1]: "-b" begins with a dash'
    )
    cluster = Cluster(hosts=["a"], node_overrides={"b.c": Override()})
    assert faults_of(cluster, tmp_path, places=places)[0].startswith("cfg.yml:3: cluster.node_overrides.b.c: ")


def test_the_port_for_all_is_taken_into_account(tmp_path: Path) -> None:
    hosts = ["a", "a:22"]
    assert len(load_hosts(Cluster(hosts=hosts, ssh=Ssh(port=2222)), tmp_path)) == 2
    assert "twice" in faults_of(Cluster(hosts=hosts), tmp_path)[0]


def test_overrides_for_hosts_and_types_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("gpu01:2222 type=A100\ngpu02 type=H100\n")
    overrides = {name: Override(args=["x"]) for name in ("gpu01", "gpu01:2222", "gpu3", "other")}
    cluster = Cluster(hostfile="hosts.txt", nnodes=1, node_overrides=overrides, type_overrides={"h100": Override()})
    assert faults_of(cluster, tmp_path) == [
        'cluster.node_overrides.gpu3: hosts.txt names no such host; did you mean "gpu02"?',
        "cluster.node_overrides.other: hosts.txt names no such host; there are gpu01, gpu01:2222 and gpu02",
        'cluster.type_overrides.h100: no host in hosts.txt has this type; did you mean "H100"?',
    ]


def test_an_override_for_a_host_that_nnodes_leaves_out_is_none_of_that(tmp_path: Path) -> None:
    cluster = Cluster(hosts=["a", "b"], nnodes=1, node_overrides={"b": Override(args=["x"])})
    assert len(load_hosts(cluster, tmp_path)) == 2


def test_types_must_be_known_for_all_hosts_where_overrides_go_by_them(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("a type=A100\nb[1-2]\nc\n")
    assert len(load_hosts(Cluster(hostfile="hosts.txt"), tmp_path)) == 4
    hint = "but others have, and cluster.type_overrides goes by it; write type=... behind it (A100)"
    assert faults_of(Cluster(hostfile="hosts.txt", type_overrides={"A100": Override()}), tmp_path) == [
        f"hosts.txt:2: b1 and b2 have no type, {hint}",
        f"hosts.txt:3: c has no type, {hint}",
    ]


def test_type_overrides_without_any_type(tmp_path: Path) -> None:
    assert faults_of(Cluster(hosts=["a"], type_overrides={"A100": Override()}), tmp_path) == [
        "cluster.type_overrides.A100: no host in cluster.hosts has this type; write type=... behind the hosts",
    ]
