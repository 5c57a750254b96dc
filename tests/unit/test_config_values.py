"""What a sound config becomes: text as written, interpolations, bases, overrides, the saved copy."""

# ruff: noqa: E501  tables and configs, one case a line
from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config.load import Loaded, load_config
from engine.errors import ConfigError

RUN = "task: {command: [true]}\n"


def load(text: str, *overrides: str, **environ: str) -> Loaded:
    return load_config("-", overrides, environ=environ, stdin=io.StringIO(text))


AS_WRITTEN = [
    ("1e-3", "1e-3"), ("yes", "yes"), ("True", "True"), ("0x10", "0x10"), ("010", "010"), ("12:30:00", "12:30:00"),
    ("1.10", "1.10"), ("null", "null"), ("~", "~"), ("", ""), ("''", ""), ("'a''b'", "a'b"), ('"a\\tb"', "a\tb"),
    ("2024-01-01", "2024-01-01"), ("1_000", "1_000"), ("=", "="), ("$HOME", "$HOME"), ("a $ b $(c) `d`", "a $ b $(c) `d`"),
    (r"\${X}", "${X}"), (r"C:\dir", r"C:\dir"), ("???", "???"), ("-- -x", "-- -x"), ("ü✓🎉", "ü✓🎉"), ("a#b", "a#b"),
    ("|\n    one\n    two\n", "one\ntwo\n"), ("|-\n    one\n\n    two\n", "one\n\ntwo"), (">\n    one\n    two\n", "one two\n"),
    ("!!str 5", "5"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "value"), AS_WRITTEN)
def test_a_variable_arrives_as_it_is_written(written: str, value: str) -> None:
    assert load(f"{RUN}env:\n  V: {written}\n").config.env == {"V": value}
    command = load(f"task:\n  command:\n  - x\n  - {written}\n").config.task.command
    assert command == ["x", value]


@pytest.mark.parametrize(
    "value", ["1e-3", "yes", "", " a ", "a=b", '"q"', "[1, 2]", "{a: 1}", "null", "# no", "- x", "a: b", "'"]
)
def test_a_variable_on_the_command_line_is_what_the_shell_passed(value: str) -> None:
    assert load(RUN, f"env.V={value}").config.env == {"V": value}


@given(
    st.dictionaries(st.from_regex(r"V_[A-Z]{1,5}", fullmatch=True), st.text(st.characters(codec="utf-8")), max_size=4)
)
def test_any_text_that_yaml_quotes_comes_through(env: dict[str, str]) -> None:
    # PyYAML itself does not read back what it writes of NEL and its kin.
    wanted = {name: "".join(c for c in value if c.isprintable() or c in "\n\t") for name, value in env.items()}
    written = {name: value.replace("${", r"\${") for name, value in wanted.items() if "\\${" not in value}
    wanted = {name: wanted[name] for name in written}
    loaded = load(yaml.safe_dump({"task": {"command": ["x"]}, "env": written}, allow_unicode=True))
    assert loaded.config.env == wanted


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=4),
    st.text(alphabet="$\\{}ab'\"\n :#"),
)
def test_the_saved_config_loads_as_the_same_config(argv: list[str], odd: str) -> None:
    from engine.config.dump import to_yaml

    config = load(RUN).config
    config.task.command = ["x", *argv, odd]
    config.env = {"ODD": odd}
    config.env_expand = {"PATH": f"{odd}:$PATH"}
    config.hooks.activate = odd
    assert load(to_yaml(config, ())).config == config


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda t: t.encode("utf-8", "replace"))))
def test_no_bytes_make_it_fail_in_another_way(data: bytes) -> None:
    _only_config_errors(data, ())


WORDS = [
    "task",
    "command",
    "env",
    "extends",
    "cluster",
    "hooks",
    "<<",
    "a",
    "${env.a}",
    "${",
    "&x",
    "*x",
    "!!int",
    "|",
    "'",
    "1e3",
]


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from([*WORDS, ": ", "\n", "\n  ", "- ", "[", "]", "{", "}", ", ", "? ", "---", "\t", "#"]),
        max_size=40,
    ),
    st.lists(st.text(max_size=20), max_size=2),
)
def test_no_yaml_and_no_override_makes_it_fail_in_another_way(parts: list[str], overrides: list[str]) -> None:
    _only_config_errors("".join(parts).encode(), overrides)


values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([*WORDS, "auto", "???", "${a.b}", "${oc.env:X}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*WORDS, "torchrun", "mode", "on"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(
    st.dictionaries(
        st.sampled_from(["task", "env", "hooks", "cluster", "metrics", "notify", "name", "stop", "mkdirs"]), values
    )
)
def test_no_structure_makes_it_fail_in_another_way(data: Any) -> None:
    _only_config_errors(yaml.safe_dump(data).encode(), ())


def _only_config_errors(data: bytes, overrides: Any) -> None:
    stream = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
    lines = ["sound"]
    try:
        load_config("-", overrides, environ={}, stdin=stream)
    except ConfigError as e:
        lines = e.lines
    assert lines
    assert all(line.isprintable() and line for line in lines)


def test_interpolation() -> None:
    text = """
task:
  command: [train, --lr, "${env.LR}", "--root=${oc.env:DATA}/x", "${oc.env:NOPE,fall back}", "${name}", "${stop.grace_s}"]
  cwd: ${oc.env:DATA}
env:
  LR: 1e-3
  AGAIN: x${env.LR}y
  FLAG: yes
  SAME: ${env.FLAG}
stop: {grace_s: "${oc.env:GRACE}"}
"""
    config = load(text, DATA="/data", GRACE="7").config
    assert config.task.command == ["train", "--lr", "1e-3", "--root=/data/x", "fall back", "stdin", "7"]
    assert config.task.cwd == "/data"
    assert config.env == {"LR": "1e-3", "AGAIN": "x1e-3y", "FLAG": "yes", "SAME": "yes"}
    assert config.stop.grace_s == 7.0
    assert load(RUN, "env.X=${oc.env:DATA}", DATA="/d").config.env == {"X": "/d"}


def test_an_interpolation_reads_the_environment_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "of the process")
    assert load(RUN + "env: {A: '${oc.env:DATA}'}\n", DATA="given").config.env["A"] == "given"
    from omegaconf import OmegaConf

    assert OmegaConf.create({"a": "${oc.env:DATA}"})["a"] == "of the process"


def test_bash_keeps_its_own_braces() -> None:
    text = 'task: {script: "echo ${X:-1} ${name}"}\nenv_expand: {P: "${PATH}:/x"}\nhooks: {activate: "a ${b"}\n'
    config = load(text).config
    assert config.task.script == "echo ${X:-1} ${name}"
    assert config.env_expand == {"P": "${PATH}:/x"}
    assert config.hooks.activate == "a ${b"
    assert load("task: {command: [x, '${hooks.activate}']}\nhooks: {activate: 'a ${b'}\n").config.task.command == [
        "x",
        "a ${b",
    ]


def test_types() -> None:
    config = load(
        "name: 010\ntask: {command: python train.py, torchrun: {max_restarts: 3, no_python: true, log_dir: '5'}}\n"
        "stop: {grace_s: 1e1}\ncluster: {nproc_per_node: auto, master_port: '29500'}\nenv:\nhooks:\nmkdirs:\n"
    ).config
    assert config.name == "010"
    assert config.task.torchrun == {"max_restarts": 3, "no_python": True, "log_dir": "5"}
    assert config.task.mode == "per_node"
    assert config.stop.grace_s == 10.0
    assert config.cluster.nproc_per_node == "auto"
    assert config.cluster.master_port == 29500
    assert (config.env, config.mkdirs, config.hooks.activate) == ({}, [], "")
    assert load(RUN + "cluster: {nproc_per_node: 4}\n").config.cluster.nproc_per_node == 4


def test_bases_merge_below_the_file_and_overrides_above(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/first.yml").write_text("extends: deep.yml\nenv: {A: first, B: first}\nmkdirs: [a, b]\n")
    (tmp_path / "sub/deep.yml").write_text("env: {A: deep, C: deep}\ntask: {torchrun: {x: 1}}\nstop: {grace_s: 9}\n")
    (tmp_path / "second.yml").write_text("env: {B: second, D: second}\n")
    file = tmp_path / "cfg.yml"
    file.write_text(
        "extends: [sub/first.yml, second.yml]\ntask: {command: x, torchrun: null}\nenv: {D: own}\nmkdirs: [c]\nstop:\n"
    )
    loaded = load_config(
        str(file), ["env.E=over", "task.command=[a, 1e3]", "env.D=over", "stop.grace_s=4", "stop.grace_s=5"]
    )
    config = loaded.config
    assert config.env == {"A": "first", "B": "second", "C": "deep", "D": "over", "E": "over"}
    assert config.mkdirs == ["c"]
    assert config.task.command == ["a", "1e3"]
    assert config.task.torchrun is None
    assert config.stop.grace_s == 5.0
    assert (config.name, loaded.path) == ("cfg", file)


def test_one_base_used_twice_is_no_circle(tmp_path: Path) -> None:
    (tmp_path / "base.yml").write_text("env: {A: 1}\n")
    for name in ("b", "c"):
        (tmp_path / f"{name}.yml").write_text("extends: base.yml\n")
    (tmp_path / "cfg.yml").write_text("extends: [b.yml, c.yml]\n" + RUN)
    assert load_config(str(tmp_path / "cfg.yml")).config.env == {"A": "1"}


def test_overrides_of_strings_and_brackets() -> None:
    config = load(RUN, "task.command=python train.py --a 'b c: d'", "task.cwd=", "name=a b").config
    assert config.task.command == "python train.py --a 'b c: d'"
    assert config.task.cwd is None
    assert config.name == "a b"
    with pytest.raises(
        ConfigError, match=r"cluster.node_overrides.gpu01.lab.cwdd: unknown key; did you mean \"cwd\"\?"
    ):
        load(RUN, "cluster.node_overrides[gpu01.lab].cwdd=x")


def test_yaml_anchors_and_merge_keys() -> None:
    config = load("task: {command: [x]}\nenv:\n  <<: &b {A: 1, B: 2}\n  B: 3\nenv_expand: *b\n").config
    assert config.env == {"A": "1", "B": "3"}
    assert config.env_expand == {"A": "1", "B": "2"}


def test_secrets_are_found_and_masked_in_the_saved_config() -> None:
    text = """
task: {command: [train, --token, "${oc.env:HF_TOKEN}", --api-key=key-one, --max-tokens, "4096"]}
env: {WANDB_API_KEY: wandb-secret, URL: "https://u:wandb-secret@h", MAX_TOKENS: 4096, EMPTY_KEY: ""}
env_expand: {DB_PASSWORD: "pass$USER"}
hooks: {activate: "export X=wandb-secret"}
"""
    loaded = load(text, HF_TOKEN="hf_longest_secret")
    assert loaded.secrets == ("hf_longest_secret", "wandb-secret", "pass$USER", "key-one")
    assert loaded.config.env["WANDB_API_KEY"] == "wandb-secret"
    for secret in loaded.secrets:
        assert secret not in loaded.resolved_yaml
    saved = yaml.safe_load(loaded.resolved_yaml)
    assert saved["env"] == {"WANDB_API_KEY": "***", "URL": "https://u:***@h", "MAX_TOKENS": "4096", "EMPTY_KEY": ""}
    assert saved["task"]["command"] == ["train", "--token", "***", "--api-key=***", "--max-tokens", "4096"]


def test_warnings() -> None:
    assert load(RUN).warnings == ()
    (line,) = load("task: {command: 'a && b'}\n").warnings
    assert '"&&" is passed on as a word' in line
    (line,) = load("task: {command: 'a $HOME'}\n").warnings
    assert '"$HOME" is not expanded' in line
    (line,) = load(RUN + "env: {A_KEY: x}\n").warnings
    assert "env.A_KEY: shorter than 4" in line


def test_the_heavy_libraries_load_only_where_they_are_needed(tmp_path: Path) -> None:
    (tmp_path / "cfg.yml").write_text(RUN)
    code = (
        "import sys; from engine.config import load, starter\n"
        "assert 'yaml' not in sys.modules\n"
        "load.load_config(sys.argv[1])\n"
        "assert 'omegaconf' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "cfg.yml")], check=True, cwd=os.getcwd())
