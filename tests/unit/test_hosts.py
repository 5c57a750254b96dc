"""Hosts as users write them: lists, ranges, hostfiles, and every way to get them wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.config.host_entry import HostEntry, labels, some
from engine.config.hosts import MAX_SLOTS, find_hosts, parse_hosts, select
from engine.errors import ConfigError, PlanError


def faults_of(hosts: list[str] | None = None, text: str | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_hosts(hosts or [], text, "hosts.txt")
    return caught.value.lines


def names(*hosts: str) -> list[str]:
    return [entry.host_port for entry in parse_hosts(hosts)]


HOSTFILE = """\
# the big ones
gpu01 slots=8 type=A100
ml@gpu02:2222\tslots=8  type=A100   # behind the other switch

[fd00::1]:22 slots=4 type=H100
me@[FD00:0::2] type=H100
10.0.0.7
gpu[08-09] slots=2
"""


def test_a_hostfile() -> None:
    assert parse_hosts([], HOSTFILE, "hosts.txt") == (
        HostEntry("gpu01", None, None, 8, "A100", 2),
        HostEntry("gpu02", "ml", 2222, 8, "A100", 3),
        HostEntry("fd00::1", None, 22, 4, "H100", 5),
        HostEntry("fd00::2", "me", None, None, "H100", 6),
        HostEntry("10.0.0.7", None, None, None, None, 7),
        HostEntry("gpu08", None, None, 2, None, 8),
        HostEntry("gpu09", None, None, 2, None, 8),
    )


def test_a_hostfile_from_windows_and_without_a_last_newline() -> None:
    assert parse_hosts([], "\ufeffgpu01 slots=8\r\ngpu02\r\n\r\ngpu03", "hosts.txt") == (
        HostEntry("gpu01", slots=8, line=1),
        HostEntry("gpu02", line=2),
        HostEntry("gpu03", line=4),
    )


def test_entries_of_the_config_are_the_same_and_have_no_line() -> None:
    (entry,) = parse_hosts(["ml@gpu02:2222 slots=8 type=A100"])
    assert entry == HostEntry("gpu02", "ml", 2222, 8, "A100", None)
    assert entry.where == "cluster.hosts[0]"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[008-011]", ["node008", "node009", "node010", "node011"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("node[1-9/4]", ["node1", "node5", "node9"]),
        ("node[3,1]", ["node3", "node1"]),
        ("node[7-8,2]-ib0", ["node7-ib0", "node8-ib0", "node2-ib0"]),
        ("r[2,1]n[1-2]", ["r2n1", "r2n2", "r1n1", "r1n2"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
        ("b,a[1-2]", ["b", "a1", "a2"]),
        ("ml@n[1-2]:2222,k", ["n1:2222", "n2:2222", "k"]),
        ("[1-2].example.com", ["1.example.com", "2.example.com"]),
        ("node[5]", ["node5"]),
    ],
)
def test_ranges_keep_the_order_in_which_they_are_written(written: str, expected: list[str]) -> None:
    assert names(written) == expected


def test_user_port_and_values_hold_for_a_whole_range() -> None:
    entries = parse_hosts(["ml@node[1-2]:2222 slots=4 type=A"])
    assert {(e.user, e.port, e.slots, e.type) for e in entries} == {("ml", 2222, 4, "A")}


@pytest.mark.parametrize("user", ["ml", "a.b-c_d", "CORP\\ml", "ml@corp.example"])
def test_logins_that_exist(user: str) -> None:
    assert parse_hosts([f"{user}@node1"])[0].user == user


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("node1 slots=x", 'slots: expected a number of processes, got "x"; leave it out'),
        ("node1 slots=", 'slots: expected a number of processes, got ""'),
        ("node1 slots=4.5", 'slots: expected a number of processes, got "4.5"'),
        ("node1 slots=0", "slots=0: a host with no process has nothing to do; write 1 or more"),
        ("node1 slots=-2", "slots=-2: a host with no process"),
        (f"node1 slots={MAX_SLOTS + 1}", f"is more than a host can run; write at most {MAX_SLOTS}"),
        ("node1 slots=" + "9" * 5000, f"is more than a host can run; write at most {MAX_SLOTS}"),
        ("node1 slots=²", "slots: expected a number of processes"),
        ("node1 slots=1 slots=2", "slots is given twice"),
        ("node1 type=", '"" cannot be a type'),
        ("node1 slot=8", 'unknown key "slot"; did you mean slots?'),
        ("node1 gpus=8", 'unknown key "gpus"; did you mean slots?'),
        ("node1 GPU-Type=A", 'unknown key "GPU-Type"; did you mean type?'),
        ("node1 max_slots=8", 'unknown key "max_slots"; remove it'),
        ("node1 colour=red", 'unknown key "colour"; the keys are slots and type'),
        ("node1 8", '"8" is no key=value; did you mean slots=8?'),
        ("node1 node2", '"node2" is no key=value; one host on each line'),
        ("slots=8", 'begins with "slots=8" instead of a host'),
        ("node1:0", '"0" is no port; ports go from 1 to 65535'),
        ("node1:65536", '"65536" is no port'),
        ("node1:ssh", '"ssh" is no port'),
        ("node1:", '"" is no port'),
        ("[fd00::1]:x", '"x" is no port'),
        ("fd00::1", '"fd00::1": an IPv6 address needs brackets; write [fd00::1], or [fd00::1]:22 with a port'),
        ("me@fd00::1", "write [fd00::1], or [fd00::1]:22"),
        ("node1:22:33", '"node1:22:33" has more than one colon'),
        ("[fd00::zz]", '"[fd00::zz]" holds no IPv6 address'),
        ("[fd00::1]22", '"[fd00::1]22" holds no IPv6 address'),
        ("[fe80::1%$(id)]", "holds no IPv6 address"),
        ("10.0.0.300", '"10.0.0.300" is no IPv4 address'),
        ("10.0.0.[254-256]", '"10.0.0.256" is no IPv4 address'),
        ("8", '"8" is no IPv4 address, and names have letters'),
        ("ssh://node1", '"ssh://node1" is a URL; write [user@]host[:port]'),
        ("@node1", '"" cannot be the name of a user'),
        ("me@", "there is no host's name"),
        ("node1,", "there is no host's name"),
        ("..", '".." cannot be a host'),
        ("n" * 254, "is longer than 253 characters"),
        ("node[1-", '"node[1-": a bracket has no partner'),
        ("node1-3]", "a bracket has no partner"),
        ("node[[1-3]]", "a bracket has no partner"),
        ("node[]", '"node[]": expected numbers in brackets, got nothing'),
        ("node[a-c]", '"node[a-c]": expected numbers in brackets, got "a-c"; write it as in node[01-16,20]'),
        ("[node1]:22", 'expected numbers in brackets, got "node1"'),
        ("node[3-1]", "the range 3-1 ends before it begins; write 1-3"),
        ("node[1-3/0]", "the range 1-3/0 has a step of 0"),
        ("node[01-100]", '"node[01-100]": the ends of 01-100 are padded differently; write 001-100, or 01-99,100-100'),
        ("node[001-9]", "the ends of 001-9 are padded differently; write 001-009, or 1-9"),
        ("node[1,01-120/3]", "write 001-120, or 01-99,100-120"),
        ("n[1-200]x[1-200]", '"n[1-200]x[1-200]" stands for 40000 hosts; at most 10000'),
        ("n[1-999999999]", "stands for 999999999 hosts"),
        ("@all", '"" cannot be the name of a user'),
    ],
)
def test_what_is_wrong_with_a_line_is_said_with_its_place(row: str, said: str) -> None:
    (line,) = faults_of(text=f"# first\ngood1\n{row}\n")
    assert line.startswith("hosts.txt:3: ")
    assert said in line
    (line,) = faults_of(["good1", row])
    assert line.startswith("cluster.hosts[1]: ")
    assert said in line


DANGEROUS = [
    "-oProxyCommand=id",
    "--",
    "-v",
    "a b",
    "a\x1b[31m",
    "a\x00",
    "a\nb",
    "a;id",
    "$(id)",
    "`id`",
    "a|b",
    "a&b",
]
DANGEROUS += [
    "a'b",
    'a"b',
    "a\\b",
    "a<b",
    "a>b",
    "a(b)",
    "{a}",
    "a*",
    "a?",
    "a!b",
    "../x",
    "a/b",
    "~root",
    "%h",
    "a\u202eb",
]
DANGEROUS += [
    "a\xa0b",
    "@-oX",
    "me@-oX",
    "-l@node1",
    "me\\@node1",
    "m;e@node1",
    "$USER@node1",
    "-[1-2]",
    "node[1-2];id",
]
DANGEROUS += ["a&b[1-2]", "@*", "a^b", "a\rb", "a\x85b", "a\u2028b"]


@pytest.mark.parametrize("written", DANGEROUS)
def test_what_could_become_an_option_or_a_command_is_refused_on_one_printable_line(written: str) -> None:
    assert all(line.startswith("cluster.hosts[0]: ") and line.isprintable() for line in faults_of([written]))


def test_a_leading_dash_is_refused_with_the_reason() -> None:
    for word in ("-v", "-oProxyCommand=id", "-[1-2]", "me@-v"):
        (line,) = faults_of([word])
        assert "begins with a dash: ssh would take it for an option" in line


def test_everything_that_is_wrong_is_said_at_once_in_order() -> None:
    text = "node1 slots=0 typ=A\nnode2\nnode3:99999\nnode2 slots=3\n"
    assert [line.split(":")[1] for line in faults_of(text=text)] == ["1", "1", "3", "4"]


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n  \n\t# at all", "\r\n", "\ufeff"])
def test_an_empty_hostfile_is_a_fault(text: str) -> None:
    assert faults_of(text=text) == ["hosts.txt: names no host; write one on each line, such as: node1 slots=8"]


def test_no_hosts_at_all_are_no_fault() -> None:
    assert parse_hosts([]) == ()


@pytest.mark.parametrize("written", ["", "  ", "\t"])
def test_an_empty_entry_is_a_fault(written: str) -> None:
    assert faults_of([written]) == ["cluster.hosts[0]: is empty; remove it, or name a host"]


def test_a_hostfile_and_a_list_cannot_both_be_given() -> None:
    (line,) = faults_of(["node1"], "node2\n")
    assert line.startswith("cluster.hosts: there is a cluster.hostfile already; keep one of the two")


def test_a_host_named_twice_is_told_with_both_places() -> None:
    assert faults_of(text="node1\nnode2\nNode1. slots=3\n") == [
        "hosts.txt:3: Node1. stands there twice, first in hosts.txt:1; "
        "keep one of them; slots=N gives a host several processes"
    ]


def test_hosts_named_twice_through_ranges_are_one_fault() -> None:
    (line,) = faults_of(["node[1-3]", "node[2-9]"])
    assert line.startswith("cluster.hosts[1]: node2 and node3 stand there twice, first in cluster.hosts[0]")
    (line,) = faults_of(["node[1-9,3-8]"])
    assert line.startswith("cluster.hosts[0]: node3, node4, node5 and 3 more stand there twice, in the same entry")


@pytest.mark.parametrize("other", ["me@node1", "node1:22", "you@NODE1:22"])
def test_the_same_server_is_the_same_host_whoever_logs_in(other: str) -> None:
    (line,) = faults_of(["node1", other])
    assert line.startswith("cluster.hosts[1]: ")


def test_two_servers_on_one_machine_are_two_hosts() -> None:
    entries = parse_hosts(["node1:2201", "node1:2202", "node2"])
    assert labels(entries) == ("node1:2201", "node1:2202", "node2")
    assert labels(parse_hosts(["[fd00::1]:1", "[fd00::1]:2"])) == ("[fd00::1]:1", "[fd00::1]:2")


def test_a_port_for_all_decides_what_is_the_same() -> None:
    assert len(find_hosts(["node1", "node1:22"], default_port=2222)[0]) == 2
    assert not find_hosts(["node1", "node1:22"], default_port=2222)[1]
    assert find_hosts(["node1", "node1:2222"], default_port=2222)[1]


def test_the_first_hosts_are_selected() -> None:
    entries = parse_hosts(["node[1-4]"])
    assert [e.host for e in select(entries, 2)] == ["node1", "node2"]
    assert select(entries, None) == select(entries, 4) == entries


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (parse_hosts([], "a\n", "hosts.txt"), "cluster.nnodes is 5, but hosts.txt names 1 host"),
        (parse_hosts(["a[1-3]"]), "cluster.nnodes is 5, but cluster.hosts names 3 hosts"),
        ((), "cluster.nnodes is 5, but cluster.hosts names 0 hosts"),
    ],
)
def test_more_nodes_than_hosts_are_a_fault_with_both_numbers(entries: tuple[HostEntry, ...], said: str) -> None:
    with pytest.raises(PlanError) as caught:
        select(entries, 5)
    assert caught.value.message == said


def test_many_names_are_told_in_few() -> None:
    assert [some(["a", "b", "c", "d", "e"][:n]) for n in range(1, 6)] == [
        *("a", "a and b", "a, b and c", "a, b, c and d", "a, b, c and 2 more"),
    ]


ROW = st.text(st.sampled_from("node1-3[]@:,=.#/ \t%slotypeA\\\x1b\u2028é"), max_size=30)


@given(st.lists(st.one_of(ROW, st.text(max_size=20)), max_size=6))
@example(["node[1-3]", "a@b@c", "[::]:1", "[::"])
def test_whatever_is_written_gives_safe_hosts_or_a_sentence(rows: list[str]) -> None:
    entries, faults = find_hosts(rows)
    for entry in entries:
        assert entry.host.isprintable()
        assert not entry.host.startswith("-")
        assert not set(entry.host) & set(" \t;|&$`'\"<>(){}/\\")
        assert not (entry.user or "").startswith("-")
    assert all(fault.line().isprintable() for fault in faults)


def test_hosts_without_ranges_do_not_pay_for_clustershell() -> None:
    code = "import sys; from engine.config.hosts import parse_hosts; parse_hosts(['a', '[::1]:22']);"
    code += "sys.exit('ClusterShell' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
