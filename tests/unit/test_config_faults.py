"""What a user reads when a config cannot be used: every fault, one line each, at its place."""

# ruff: noqa: E501  a table of whole lines, as a user reads them
from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from engine.config.load import load_config
from engine.errors import ConfigError

RUN = "task: {command: [true]}\n"


def faults(folder: Path, text: str | bytes, *overrides: str, **environ: str) -> list[str]:
    """The lines of the ConfigError, with the folder's name taken off."""
    file = folder / "cfg.yml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_config(str(file), overrides, environ=environ)
    assert str(caught.value) == "\n".join(caught.value.lines)
    return [line.replace(f"{folder}/", "") for line in caught.value.lines]


ONE_FAULT = [
    # unknown keys
    (RUN + "cluster:\n  nproc_per_nod: 2\n", 'cfg.yml:3: cluster.nproc_per_nod: unknown key; did you mean "nproc_per_node"?'),
    (RUN + "nproc_per_node: 2\n", 'cfg.yml:2: nproc_per_node: unknown key; did you mean "cluster.nproc_per_node"?'),
    (RUN + "Env: {A: 1}\n", 'cfg.yml:2: Env: unknown key; did you mean "env"?'),
    (RUN + "gpus: 2\n", 'cfg.yml:2: gpus: unknown key; did you mean "cluster.nproc_per_node"?'),
    (RUN + "stop: {zzz: 2}\n", "cfg.yml:2: stop.zzz: unknown key; known here: grace_s"),
    ("task: {comand: [true]}\n", 'cfg.yml:1: task.comand: unknown key; did you mean "command"?'),
    ("task:\n  command: [true]\n  env: {A: 1}\n", 'cfg.yml:3: task.env: unknown key; did you mean "env", at the top of the file?'),
    # types
    (RUN + "stop: {grace_s: soon}\n", 'cfg.yml:2: stop.grace_s: expected a number of seconds, got "soon"'),
    (RUN + "stop: {grace_s: true}\n", "cfg.yml:2: stop.grace_s: expected a number of seconds, got true"),
    (RUN + "stop: {grace_s: [1]}\n", "cfg.yml:2: stop.grace_s: expected a number of seconds, got a list"),
    (RUN + "stop:\n  grace_s:\n", "cfg.yml:3: stop.grace_s: expected a number of seconds, got nothing"),
    (RUN + "stop: 3\n", "cfg.yml:2: stop: expected a mapping, got 3"),
    (RUN + "env: [A=1]\n", "cfg.yml:2: env: expected a mapping, got a list"),
    (RUN + "env:\n  A: [1, 2]\n", "cfg.yml:3: env.A: expected text, got a list; quote it to pass it on as text"),
    (RUN + "mkdirs: out\n", 'cfg.yml:2: mkdirs: expected a list, got "out"; write [out]'),
    (RUN + "cluster: {nnodes: 1.5}\n", "cfg.yml:2: cluster.nnodes: expected a whole number, got 1.5"),
    (RUN + "cluster: {master_port: http}\n", 'cfg.yml:2: cluster.master_port: expected a port number, got "http"'),
    ("task:\n  command:\n    - python\n    - {a: b}\n",
     "cfg.yml:4: task.command[1]: expected text, got a mapping; quote it to pass it on as text"),
    ("task: {command: {a: 1}}\n", "cfg.yml:1: task.command: expected a list or text, got a mapping"),
    (RUN + "run_root: ???\n", "cfg.yml:2: run_root: has no value (???); give it here, or as run_root=... on the command line"),
    # values
    (RUN + "stop: {grace_s: -1}\n", "cfg.yml:2: stop.grace_s: -1 seconds cannot be waited; give 0 or more"),
    (RUN + "fail: {policy: stopp}\n", 'cfg.yml:2: fail.policy: expected stop or continue, got "stopp"; did you mean "stop"?'),
    (RUN + "stop: {grace_s: .inf}\n",
     "cfg.yml:2: stop.grace_s: expected a number of seconds, got inf; for ever is 1000000000 here"),
    (RUN + "extends: ~no-such-user-at-all/base.yml\n",
     "cfg.yml:2: extends: ~no-such-user-at-all/base.yml: no such file"),
    (RUN + "cluster: {nproc_per_node: 80000}\n",
     "cfg.yml:2: cluster.nproc_per_node: 80000 processes on one node are too many; at most 4096"),
    ("task: {command: [x]}\nstop: {grace_s: 1e300}\n",
     "cfg.yml:2: stop.grace_s: 1e+300 seconds are more than a clock can tell; give at most 1000000000"),
    ("env: {A: 1}\n", "cfg.yml:1: task.command: nothing to run; give a command, such as [python, train.py], or a script"),
    ("task:\n  command: x\n  script: y\n", "cfg.yml:3: task.script: there is a task.command already; keep one of the two"),
    ("task:\n  command: []\n", "cfg.yml:2: task.command: is empty; give a command, such as [python, train.py]"),
    ("task:\n  command: echo 'a\n", "cfg.yml:2: task.command: cannot be split into words: no closing quotation; quote it as a shell would"),
    ("task: {command: [x], torchrun: {}, mode: per_gpu}\n",
     "cfg.yml:1: task.mode: per_gpu contradicts task.torchrun, which starts the node's ranks by itself; remove it, or write per_node"),
    (RUN + "name: a/b\n", 'cfg.yml:2: name: "a/b" cannot be a folder\'s name: the run\'s directory is called after it; '
     "use letters, digits, `-`, `_` and `.`"),
    (RUN + 'env: {A: "x\\0y"}\n', "cfg.yml:2: env.A: contains a NUL character, which no process can be given"),
    (RUN + "env:\n  RANK: 0\n", "cfg.yml:3: env.RANK: trainui sets this variable for each rank; remove it"),
    (RUN + "env:\n  UID: 0\n", "cfg.yml:3: env.UID: bash keeps this variable for itself; rename it, or set it in task.script"),
    (RUN + "env:\n  my-var: 0\n",
     "cfg.yml:3: env.my-var: cannot be the name of a variable; use letters, digits and `_`, and no digit first"),
    (RUN + "cluster: {nproc_per_node: many}\n",
     'cfg.yml:2: cluster.nproc_per_node: expected a number of processes or auto, got "many"'),
    (RUN + "cluster: {nproc_per_node: 0}\n",
     "cfg.yml:2: cluster.nproc_per_node: 0 processes cannot be started; give 1 or more, or auto"),
    (RUN + "cluster: {master_port: 70000}\n",
     "cfg.yml:2: cluster.master_port: 70000 is no port; ports go from 1 to 65535; leave it out for a free one"),
    # interpolation
    (RUN + "env:\n  A: ${oc.env:NOPE}\n",
     "cfg.yml:3: env.A: the environment variable NOPE is not set; set it, or give a default: ${oc.env:NOPE,default}"),
    (RUN + "env:\n  A: ${PATH}/x\n", "cfg.yml:3: env.A: ${PATH} refers to a key that is not in the config; "
     r"for an environment variable write ${oc.env:PATH}; for a literal ${ write \${"),
    (RUN + "run_root: ${cluster.mater_addr}\n",
     'cfg.yml:2: run_root: ${cluster.mater_addr} refers to a key that is not in the config; did you mean "cluster.master_addr"?'),
    (RUN + "env:\n  A: ${env:HOME}\n", "cfg.yml:3: env.A: ${env:...} is no interpolation that exists; did you mean ${oc.env:...}?"),
    (RUN + "env:\n  A: ${env.A}\n", 'cfg.yml:3: env.A: "${env.A}" refers to itself'),
    (RUN + "env:\n  A: ${B\n", r'cfg.yml:3: env.A: "${B" has a "${" that starts no interpolation; write \${ for a literal ${'),
    # YAML
    ("task: {command: [a, --x=${b}]}\n",
     "cfg.yml:1: not valid YAML: expected ',' or ']', but got '{'; inside [ ] or { } a value with \"${\" needs quotes"),
    ("task:\n  command: [true\nenv: 1\n", None),
    ("task:\n\tcommand: x\n", "cfg.yml:2: not valid YAML: a tab where only spaces may stand; indent with spaces"),
    (RUN + "env:\n  A: 1\n  A: 2\n", "cfg.yml:4: env.A: given twice (first at line 3); remove one"),
    ("", "cfg.yml: empty; `trainui init` writes a config to start from"),
    ("# nothing\n", "cfg.yml: empty; `trainui init` writes a config to start from"),
    ("- a\n- b\n", "cfg.yml:1: expected keys and values, got a list; a config looks like `task: {command: [python, train.py]}`"),
    ("just words\n", 'cfg.yml:1: expected keys and values, got "just words"; a config looks like `task: {command: [python, train.py]}`'),
    (RUN + "---\n" + RUN, "cfg.yml:2: more than one YAML document; remove the `---` line"),
    (RUN + "env: {A: !secret x}\n", "cfg.yml:2: env.A: the YAML tag !secret means nothing here; remove it"),
    (RUN + "env: &a\n  X: *a\n", "cfg.yml:2: an alias refers to a value that contains it"),
    ("task: {command: [" * 200, None),
    (b"task: \xff\n", "cfg.yml: not UTF-8 text (line 1); save it as UTF-8"),
    (RUN + "env:\n  A: \x07\n", 'cfg.yml:3: not valid YAML: the character U+0007 is not allowed; write it as "\\x.."'),
    ("? [a, b]\n: 1\n" + RUN, "cfg.yml:1: a key must be a word, not a list or mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), ONE_FAULT, ids=range(len(ONE_FAULT)))
def test_one_fault_is_one_line_with_its_place(tmp_path: Path, text: str | bytes, line: str | None) -> None:
    found = faults(tmp_path, text)
    assert len(found) == 1
    if line is None:
        assert found[0].startswith("cfg.yml:")
    else:
        assert found == [line]


def test_a_huge_file_is_not_even_parsed(tmp_path: Path) -> None:
    assert faults(tmp_path, b"a: [\n" * 200_000) == [
        "cfg.yml: larger than 512 KiB, the most a config may have; keep data in files of their own"
    ]


def test_all_faults_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = faults(
        tmp_path,
        "task:\n  cmd: x\nstop: {grace_s: soon}\nenv: {RANK: 1}\ncluster: {launcher: ssh}\nfail: {policy: x}\n",
        "restart.polcy=never",
        "novalue",
    )
    places = [line.split(": ")[0] for line in found]
    assert places == [
        "cfg.yml:2", "cfg.yml:3", "cfg.yml:4", "cfg.yml:5", "cfg.yml:6",
        "override restart.polcy=never", 'override "novalue"',
    ]  # fmt: skip


def test_what_was_reported_is_not_reported_as_missing_too(tmp_path: Path) -> None:
    assert len(faults(tmp_path, "task: {commnd: [x]}\n")) == 1
    assert len(faults(tmp_path, "task: {command: {a: b}}\n")) == 1
    assert len(faults(tmp_path, "command: [x]\n")) == 1


OVERRIDES = [
    ("x", 'override "x": not an override; write KEY=VALUE, such as stop.grace_s=5'),
    ("stop.grace_s", 'override "stop.grace_s": not an override; did you mean "stop.grace_s=..."?'),
    ("=3", "override =3: not an override; write KEY=VALUE, such as stop.grace_s=5"),
    ("a..b=3", "override a..b=3: not an override; write KEY=VALUE, such as stop.grace_s=5"),
    ("stop.grace=3", 'override stop.grace=3: stop.grace: unknown key; did you mean "grace_s"?'),
    ("task.command.0=x", "override task.command.0=x: task.command: a list is overridden as a whole; write task.command=[...]"),
    ("task.command=[a", None),
    ("extends=x.yml", "override extends=x.yml: extends: cannot be overridden; write it into the file"),
    ("restart.max=two", 'override restart.max=two: restart.max: expected a whole number, got "two"'),
    ("stop=3", "override stop=3: stop: expected a mapping, got 3"),
]  # fmt: skip


@pytest.mark.parametrize(("word", "line"), OVERRIDES)
def test_a_bad_override_is_one_line(tmp_path: Path, word: str, line: str | None) -> None:
    found = faults(tmp_path, RUN, word)
    assert len(found) == 1
    assert found[0].startswith("override ") if line is None else found == [line]


def test_a_fault_shows_no_secret_and_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    found = faults(tmp_path, RUN + 'env: {HF_TOKEN: hf_abcdef}\nstop: {grace_s: hf_abcdef}\nname: "a\\e[2J\\nb/"\n')
    assert len(found) == 2
    assert "hf_abcdef" not in "".join(found)
    assert all(line.isprintable() for line in found)
    bad = faults(tmp_path, RUN, "env.API_KEY=secret-value", "env.API_KEYS.x=secret-value", "zzz_token=other-secret")
    assert not [line for line in bad if "secret" in line]


@pytest.mark.parametrize(
    ("top", "word"),
    [
        ("experiment: {exp_name: x}\ntrain: {a: 1}\nother: 2\n", "FlagScale"),
        ("defaults:\n  - _self_\nfoo: 1\n", "Hydra"),
    ],
)
def test_another_launchers_config_is_one_line(tmp_path: Path, top: str, word: str) -> None:
    found = faults(tmp_path, top)
    assert len(found) == 1
    assert found[0].startswith("cfg.yml:1: ")
    assert "not yet" in found[0]
    assert word in found[0]


@pytest.mark.parametrize(
    "override",
    [
        "cluster.launcher=ssh", "cluster.launcher=ray", "cluster.launcher=slurm", "cluster.hostfile=h", "cluster.hosts=[a]",
        "cluster.nnodes=2", "cluster.node_overrides={h: {cwd: x}}", "cluster.type_overrides={h: {cwd: x}}",
        "cluster.ssh.user=x", "cluster.ray.address=x", "cluster.slurm.partition=x", "cluster.node_dir=x",
        "cluster.shared_fs=true", "heartbeat.on_stall=stop", "heartbeat.progress_timeout_s=5", "restart.policy=on_stall",
        "tracing.enabled=true", "gpu_health.interval_s=5", "gpu_health.enabled=true", "metrics.patterns=[x]",
        "notify.command=x", "notify.on=[fail]", "logs.split_stderr=true",
    ],
)  # fmt: skip
def test_what_this_release_cannot_do_is_refused_by_name(tmp_path: Path, override: str) -> None:
    (line,) = faults(tmp_path, RUN, override)
    key = override.partition("=")[0]
    assert f"{key}: not yet: " in line or f"{key}.h" in line


@pytest.mark.parametrize(
    "override",
    [
        "heartbeat.interval_s=2",
        "gpu_health.enabled=false",
        "cluster.nnodes=1",
        "cluster.launcher=local",
        "logs.mirror=auto",
    ],
)
def test_defaults_and_what_asks_for_nothing_are_no_fault(tmp_path: Path, override: str) -> None:
    (tmp_path / "cfg.yml").write_text(RUN)
    load_config(str(tmp_path / "cfg.yml"), [override])


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "train.yml").write_text(RUN)
    for name in ("trian.yml", "train.yaml", "train"):
        with pytest.raises(ConfigError) as caught:
            load_config(str(tmp_path / name))
        assert caught.value.lines == [f'{tmp_path / name}: no such file; did you mean "{tmp_path}/train.yml"?']


def test_a_directory_and_a_file_without_permission(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/a.yml").write_text(RUN)
    with pytest.raises(ConfigError, match=r'conf: a directory, not a config file; did you mean ".*conf/a.yml"\?'):
        load_config(str(tmp_path / "conf"))
    if os.geteuid() != 0:
        (tmp_path / "conf/a.yml").chmod(0)
        with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
            load_config(str(tmp_path / "conf/a.yml"))


def test_stdin_has_a_name_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"^stdin:1: stp: unknown key"):
        load_config("-", stdin=io.StringIO("stp: 1\ntask: {command: x}\n"))


def test_faults_of_a_base_stand_in_the_base(tmp_path: Path) -> None:
    (tmp_path / "base.yml").write_text("stop:\n  grace_s: soon\nenv: {A: 1}\n")
    assert faults(tmp_path, "extends: base.yml\n" + RUN) == [
        'base.yml:2: stop.grace_s: expected a number of seconds, got "soon"'
    ]
    assert faults(tmp_path, "extends: bse.yml\n" + RUN) == [
        'cfg.yml:1: extends: bse.yml: no such file; did you mean "base.yml"?'
    ]
    assert faults(tmp_path, "extends: {a: b}\n" + RUN) == [
        "cfg.yml:1: extends: expected a file, or a list of files, got a mapping"
    ]


def test_a_circle_of_bases_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "base.yml").write_text("extends: ./cfg.yml\n")
    assert faults(tmp_path, "extends: base.yml\n" + RUN) == [
        'base.yml:1: extends: "./cfg.yml" extends this file again; break the circle'
    ]


def test_aliases_that_repeat_each_other_end(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n"
        for n in range(1, 12)
    )
    (line,) = faults(tmp_path, bomb)
    assert "more than 100000 values" in line
