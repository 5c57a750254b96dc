"""Reads files of ssh_config(5) for a host, as ssh does: asyncssh's keyword handlers behind a reader of our own.

asyncssh aborts on times such as `ServerAliveInterval 30s` and on comments after a value, lets ProxyJump win over an
earlier ProxyCommand, includes files in no order, passes over keywords that it does not have, and splits every line
anew for every host: with 200 Host blocks that is 12 ms for each of 200 hosts. All of that is mended here.
"""

from __future__ import annotations

import copy
import glob
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

from asyncssh.config import SSHClientConfig

# As in OpenSSH's readconf.c; a file that includes itself ends there.
MAX_INCLUDE_DEPTH = 16

_TIME = re.compile(r"(\d+)([smhdw]?)", re.IGNORECASE)
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_KEYWORD = re.compile(r"\s*([A-Za-z0-9_]+)(?:\s*=\s*|\s+|$|(?=\"))(.*)", re.DOTALL)
_KEYS_ARE_CHECKED = "is not followed: host keys are always checked"
# Keywords that asyncssh passes over and that matter here: the values that change nothing, and what to say otherwise.
_UNFOLLOWED: dict[str, tuple[str, frozenset[str], str]] = {
    "stricthostkeychecking": ("StrictHostKeyChecking", frozenset({"yes", "ask"}), _KEYS_ARE_CHECKED),
    "controlmaster": (
        "ControlMaster",
        frozenset({"no"}),
        "is not followed: each node gets one connection of its own, so a login that asks a person does not work",
    ),
    "canonicalizehostname": ("CanonicalizeHostname", frozenset({"no", "none"}), "is not followed: write full names"),
    "knownhostscommand": ("KnownHostsCommand", frozenset({"none"}), "is not run: keep its keys in a known_hosts file"),
    "verifyhostkeydns": ("VerifyHostKeyDNS", frozenset({"no"}), "is not followed: keep the keys in known_hosts"),
    "revokedhostkeys": (
        "RevokedHostKeys",
        frozenset({"none"}),
        "is not read: mark them @revoked in a known_hosts file",
    ),
    "proxyusefdpass": ("ProxyUseFdpass", frozenset({"no"}), "is not followed: ProxyCommand must pass the bytes itself"),
    "bindinterface": ("BindInterface", frozenset[str](), "is not followed: use BindAddress"),
    "pubkeyacceptedalgorithms": ("PubkeyAcceptedAlgorithms", frozenset[str](), "is not followed"),
    "pubkeyacceptedkeytypes": ("PubkeyAcceptedKeyTypes", frozenset[str](), "is not followed"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line that says something. `words` is None where its quotes do not match."""

    number: int
    keyword: str  # in lower case
    rest: str
    words: tuple[str, ...] | None


def seconds(text: str) -> int | None:
    """The seconds of a time as ssh_config writes it (`30`, `30s`, `1h30m`); None where it is none."""
    parts = _TIME.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(int(number) * _UNIT_S[unit.lower()] for number, unit in parts)


def split_words(text: str) -> tuple[str, ...] | None:
    """The arguments of a line: quoted with ' or ", a backslash before a quote, a blank or itself; # ends the line.

    None where a quote is not closed.
    """
    words: list[str] = []
    word, quote, at = None, "", 0
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text) and text[at + 1] in ("'\"\\" if quote else "'\"\\ "):
            at += 1
            word = (word or "") + text[at]
        elif quote:
            quote, word = ("", word) if char == quote else (quote, (word or "") + char)
        elif char in "'\"":
            quote, word = char, word or ""
        elif char in " \t":
            words += [] if word is None else [word]
            word = None
        elif char == "#" and word is None:
            break
        else:
            word = (word or "") + char
        at += 1
    if quote:
        return None
    return (*words, word) if word is not None else tuple(words)


def host_matches(patterns: Sequence[str], host: str) -> bool:
    """Whether `host` is meant by the words after `Host`: any of them, and none of those with a `!`."""
    positive, negative = _compiled(tuple(patterns))
    return any(map(re.Pattern[str].fullmatch, positive, [host] * len(positive))) and not any(
        pattern.fullmatch(host) for pattern in negative
    )


class Files:
    """Files split into lines once; again when they change."""

    def __init__(self) -> None:
        self._lines: dict[Path, tuple[tuple[int, int], tuple[Line, ...]]] = {}

    def lines(self, path: Path) -> tuple[Line, ...]:
        """
        Raises:
            OSError: it cannot be read.
        """
        stat = path.stat()
        stamp = (stat.st_mtime_ns, stat.st_size)
        stored = self._lines.get(path)
        if stored is None or stored[0] != stamp:
            stored = (stamp, tuple(_lines(path.read_text(encoding="utf-8", errors="surrogateescape"))))
            self._lines[path] = stored
        return stored[1]


def _noted(handler: Callable[..., Any]) -> dict[str, tuple[str, Callable[..., Any]]]:
    return {key: (words[0], handler) for key, words in _UNFOLLOWED.items()}


class Reader(SSHClientConfig):
    """What files say about one host. `ignored` is what of it is not followed, with file and line."""

    def __init__(self, files: Files, names: tuple[Any, ...], first: Reader | None = None) -> None:
        """
        Args:
            names: local user, user or (), host, port or ().
            first: the first pass; this one is the second, in which `Match final` holds and Host means the HostName.
        """
        super().__init__(cast(Any, None), False, False, first is not None, *names)
        self.ignored: list[str] = []
        self._name: str = self._orig_host
        if first is not None:
            self._options = copy.deepcopy(first.unexpanded)
            # What the first pass found stands, the name too.
            self._name = str(self._options.setdefault("Hostname", self._orig_host))
        self.unexpanded: dict[str, Any] = {}
        self._files = files
        self._depth = 0
        self._tokens = {"%": "%"}

    def read(self, paths: Sequence[Path]) -> Reader:
        """Read `paths` in order; what is said first counts.

        Raises:
            asyncssh.ConfigParseError: something in them is not understood.
            OSError: one cannot be read.
        """
        for path in paths:
            self._default_path = path.parent
            self.parse(path)
        self._set_tokens()
        self.unexpanded = dict(self._options)
        # ssh expands tokens in the last two too.
        for option in (*self._percent_expand, "UserKnownHostsFile", "HostKeyAlias"):
            value: Any = self._options.get(option)
            if isinstance(value, str):
                self._options[option] = self._expand_val(value)
            elif isinstance(value, list):
                self._options[option] = [self._expand_val(item) for item in cast(list[str], value)]
        self.loaded = True
        return self

    def parse(self, path: Path) -> None:
        """Take in one file."""
        self._path, self._line_no, self._matching = path, 0, True
        for line in self._files.lines(path):
            self._line_no = line.number
            if line.words is None:
                self._error("a quote is not closed")
            if not self._matching and line.keyword not in self._conditionals:
                continue
            entry = self._handlers.get(line.keyword)
            if entry is None:
                continue
            option, handler = entry
            args = [line.rest] if line.keyword in self._no_split and line.rest else list(line.words)
            if not args:
                self._error(f"{option} has no value")
            handler(self, option, args)
            if args:
                self._error(f"{option} has more values than it takes: {' '.join(args)}")

    def _host(self, option: str, args: list[str]) -> None:
        self._matching = host_matches(args, self._name)
        args.clear()

    def _match_block(self, option: str, args: list[str]) -> None:
        self._set_tokens()
        for at, word in enumerate(args[:-1]):
            if word.lower() in ("exec", "!exec"):
                args[at + 1] = self._expand_val(args[at + 1])
        self._match(option, args)

    def _files_of(self, option: str, args: list[str]) -> None:
        here = (self._path, self._line_no)
        self._depth += 1
        if self._depth > MAX_INCLUDE_DEPTH:
            self._error("files include each other without end")
        for pattern in args:
            path = Path(os.path.expanduser(pattern))  # noqa: PTH111 - no error for an unknown home
            for found in sorted(glob.glob(str(self._default_path / path))):  # noqa: PTH207 - an absolute pattern too
                if os.access(found, os.R_OK) and Path(found).is_file():
                    self.parse(Path(found))
        self._depth -= 1
        self._path, self._line_no = here
        self._matching = True
        args.clear()

    def _time(self, option: str, args: list[str]) -> None:
        text = args.pop(0)
        value = 0 if text.lower() == "none" else seconds(text)
        if value is None:
            self._error(f'{option} is no time: "{text}"')
        self._options.setdefault(option, value)

    def _jump(self, option: str, args: list[str]) -> None:
        # The first of the two that a host meets counts; `ProxyCommand none` is one, `ProxyJump none` is not.
        if "ProxyCommand" in self._options if option == "ProxyJump" else self._options.get("ProxyJump") is not None:
            args.clear()
        else:
            self._set_string(option, args)

    def _note(self, option: str, args: list[str]) -> None:
        keyword, harmless, remark = _UNFOLLOWED[option.lower()]
        value = " ".join(args)
        args.clear()
        if option in self._options:
            return
        self._options[option] = value
        if value.lower() not in harmless:
            self.ignored.append(f"{self._path} line {self._line_no}: {keyword} {value} {remark}")

    _handlers: ClassVar[dict[str, tuple[str, Callable[..., Any]]]] = {
        **cast(Any, SSHClientConfig)._handlers,
        **_noted(_note),
        "host": ("Host", _host),
        "match": ("Match", _match_block),
        "include": ("Include", _files_of),
        "serveraliveinterval": ("ServerAliveInterval", _time),
        "connecttimeout": ("ConnectTimeout", _time),
        "proxyjump": ("ProxyJump", _jump),
        "proxycommand": ("ProxyCommand", _jump),
    }


def _lines(text: str) -> list[Line]:
    found: list[Line] = []
    for number, line in enumerate(text.split("\n"), 1):
        match = _KEYWORD.fullmatch(line.strip())
        if match is not None:
            found.append(Line(number, match[1].lower(), match[2], split_words(match[2])))
    return found


@cache
def _compiled(patterns: tuple[str, ...]) -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
    positive = [_regex(word) for word in patterns if not word.startswith("!")]
    return positive, [_regex(word[1:]) for word in patterns if word.startswith("!")]


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
