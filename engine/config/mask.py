"""Secrets: which names hold one, and how their values are kept out of everything that is shown or saved."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

MASK = "***"
# A shorter value would blot out ordinary text (and "1" or "yes" is no secret worth the name).
MIN_LENGTH = 4

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET = _words("TOKEN SECRET SECRETS PASSWORD PASSWORDS PASSWD PASSPHRASE KEY CREDENTIAL CREDENTIALS CREDS")
# Written without a separator: PGPASSWORD, apikey, MYSECRET.
_GLUED = tuple(
    _words(
        "PASSWORD PASSWD SECRET CREDENTIALS CREDENTIAL APIKEY ACCESSKEY SECRETKEY PRIVATEKEY AUTHKEY "
        "APITOKEN AUTHTOKEN ACCESSTOKEN"
    )
)
_PLURAL = _words("TOKENS KEYS")
_OWNERS = _words("API AUTH ACCESS BEARER REFRESH SECRET PRIVATE HF")
# Training has tokens and keys that are no secret: MAX_TOKEN_LENGTH, KEY_DIM, PAD_TOKEN, PAD_TOKEN_ID.
_MEASURES = _words("BUDGET COUNT DIM DIMS DIMENSION LEN LENGTH LIMIT NUM RATE SIZE")
_SPECIAL = _words("BOS CLS EOS IMAGE MASK PAD SEP UNK")


def is_secret_name(name: str) -> bool:
    """True for a name (variable, key, flag) whose value must not be shown.

    Words are compared whole, however they are joined: `HF_TOKEN`, `wandb-api-key`, `apiKey`,
    but not `MONKEY`, `KEYBOARD_LAYOUT`, `TOKENIZERS_PARALLELISM`, `MAX_TOKENS`.
    """
    words = [word.upper() for word in _WORD.findall(name)]
    for number, word in enumerate(words):
        before, after = words[:number], words[number + 1 :]
        if word in _PLURAL and _OWNERS & set(before):
            return True
        if word in ("TOKEN", "KEY") and (_MEASURES & set(after) or _SPECIAL & set(before)):
            continue
        if word in _SECRET or word.endswith(_GLUED):
            return True
    return False


def secrets_in(data: Any) -> Iterable[str]:
    """Every text in nested dicts and lists that stands under a secret name."""
    if isinstance(data, Mapping):
        pairs = cast("Mapping[Any, Any]", data)
        for key, value in pairs.items():
            if isinstance(value, str):
                if value and is_secret_name(str(key)):
                    yield value
            else:
                yield from secrets_in(value)
    elif isinstance(data, list | tuple):
        words = cast("Sequence[Any]", data)
        yield from secret_args([word for word in words if isinstance(word, str)])
        for item in words:
            yield from secrets_in(item)


def secret_args(argv: Sequence[str]) -> Iterable[str]:
    """The values of flags with a secret name: `--api-key=V`, `--api-key V`, `HF_TOKEN=V`."""
    for number, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if equals:
            if value and re.fullmatch(r"[-\w.]+", name) and is_secret_name(name):
                yield value
        elif word.startswith("--") and is_secret_name(word) and number + 1 < len(argv):
            following = argv[number + 1]
            if following and not following.startswith("-"):
                yield following


def ordered(secrets: Iterable[str]) -> tuple[str, ...]:
    """Without repetition, longest first: the order in which they must be replaced."""
    return tuple(sorted(set(secrets), key=lambda s: (-len(s), s)))


def mask_text(text: str, secrets: Iterable[str]) -> str:
    """`text` with every secret of at least 4 characters replaced by `***`."""
    known = [s for s in ordered(secrets) if len(s) >= MIN_LENGTH]
    # One pass, longest first: a secret that is part of another must not leave the other's rest behind.
    return re.sub("|".join(map(re.escape, known)), MASK, text) if known else text


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment as it may be shown. An empty value stays empty: that it is so is worth seeing."""
    secrets = ordered(secrets_in(env))
    return {name: MASK if value and is_secret_name(name) else mask_text(value, secrets) for name, value in env.items()}


def mask_data(data: Any, secrets: Iterable[str] = ()) -> Any:
    """Nested dicts and lists as they may be shown: masked by name, and wherever a secret recurs."""
    known = ordered([*secrets, *secrets_in(data)])

    def masked(value: Any) -> Any:
        if isinstance(value, str):
            return mask_text(value, known)
        if isinstance(value, Mapping):
            pairs = cast("Mapping[Any, Any]", value)
            return {key: hidden(key, inner) for key, inner in pairs.items()}
        if isinstance(value, list | tuple):
            items = cast("Sequence[Any]", value)
            return [masked(item) for item in items]
        return value

    def hidden(key: Any, value: Any) -> Any:
        secret = isinstance(value, str) and value != "" and is_secret_name(str(key))
        return MASK if secret else masked(value)

    return masked(data)
