"""Which names are secrets, and that their values do not get through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config.mask import MASK, is_secret_name, mask_data, mask_env, mask_text, ordered, secret_args, secrets_in

SECRET = [
    "HF_TOKEN",
    "WANDB_API_KEY",
    "apiKey",
    "api-key",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "DB_PASSWORD",
    "PGPASSWORD",
    "password",
    "client_secret",
    "CREDENTIAL",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "ssh.passphrase",
    "SSH_PASSWD",
    "token",
    "hfToken",
    "HFToken",
    "KEY",
    "API_KEYS",
    "AUTH_TOKENS",
    "OPENAI_APIKEY",
    "Token2",
    "--auth-token",
    "TOKEN_2",
    "MY_SECRETS",
]
HARMLESS = [
    "MONKEY",
    "KEYBOARD_LAYOUT",
    "TOKENIZERS_PARALLELISM",
    "MAX_TOKENS",
    "tokens_per_batch",
    "TOKENS",
    "NUM_KEYS",
    "tokenizer_path",
    "MAX_TOKEN_LENGTH",
    "KEY_DIM",
    "head_key_size",
    "PAD_TOKEN",
    "eos_token_id",
    "PATH",
    "LD_LIBRARY_PATH",
    "SECRETARY",
    "PASSAGE",
    "keystone",
    "TURKEY",
    "MASTER_PORT",
    "lr",
]


@pytest.mark.parametrize("name", SECRET)
def test_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless(name: str) -> None:
    assert not is_secret_name(name)


def test_text() -> None:
    assert mask_text("a tok1 b tok1-long c", ["tok1", "tok1-long"]) == "a *** b *** c"
    assert mask_text("yes (1) a.b", ["yes", "1", ""]) == "yes (1) a.b"
    assert mask_text("x.*y", [".*y1"]) == "x.*y"
    assert mask_text("anything", []) == "anything"


@given(st.lists(st.text(min_size=4)), st.lists(st.text()))
def test_no_secret_survives(secrets: list[str], between: list[str]) -> None:
    text = "".join(b + s for b, s in zip(between, secrets, strict=False))
    # What is left are pieces around the masks; a secret could only be seen in one of them.
    assert not [s for s in secrets for piece in mask_text(text, secrets).split(MASK) if s in piece]


def test_environment() -> None:
    env = {"HF_TOKEN": "hf_12345", "URL": "https://u:hf_12345@h", "A_KEY": "x", "B_KEY": "", "N": "1"}
    assert mask_env(env) == {"HF_TOKEN": "***", "URL": "https://u:***@h", "A_KEY": "***", "B_KEY": "", "N": "1"}
    assert env["HF_TOKEN"] == "hf_12345"


def test_command_lines() -> None:
    argv = [
        "train",
        "--api-key",
        "k1",
        "--token=t1",
        "--max-tokens",
        "10",
        "WANDB_API_KEY=w1",
        "--secret",
        "--verbose",
        "--key",
    ]
    assert list(secret_args(argv)) == ["k1", "t1", "w1"]


def test_nested_data() -> None:
    data = {
        "env": {"HF_TOKEN": "hf_12345"},
        "argv": ("x", "--t=hf_12345"),
        "n": 3,
        "given": ["other-secret"],
        "none": None,
    }
    assert mask_data(data, ["other-secret"]) == {
        "env": {"HF_TOKEN": "***"},
        "argv": ["x", "--t=***"],
        "n": 3,
        "given": ["***"],
        "none": None,
    }
    assert ordered(secrets_in(data)) == ("hf_12345",)
