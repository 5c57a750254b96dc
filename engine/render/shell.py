"""Text -> bash source that means exactly that text. Nothing else in `render` writes a user's text into a script."""

from __future__ import annotations

import re

from engine.errors import PlanError

# Words that mean themselves in every place where we write one (an argument or the right side of `=`).
_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./-]*\Z")
# A carriage return or an escape sequence, written raw, would make the script lie to whoever prints it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATORS = (":-", ":+", "-", "+")


def quote(text: str) -> str:
    """One bash word that is `text`, byte for byte in UTF-8, with nothing expanded."""
    if _PLAIN.match(text):
        return text
    if _CONTROL.search(text):
        return _ansi_c(text)
    return "'" + text.replace("'", "'\\''") + "'"


def _ansi_c(text: str) -> str:
    r"""`$'...'` with the control characters as octal bytes (`\x` would swallow the digits that follow)."""
    parts = ["$'"]
    for char in text:
        if char in "\\'":
            parts.append("\\" + char)
        elif char in "\n\t" or not _CONTROL.match(char):
            parts.append(char)
        else:
            parts += [f"\\{byte:03o}" for byte in char.encode("utf-8")]
    parts.append("'")
    return "".join(parts)


def comment(text: str) -> str:
    """`text` fit for the rest of a comment line."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", text)


def expand(text: str, where: str) -> str:
    r"""One bash word that is `text` with variables expanded, and nothing else: no command is ever run.

    `$NAME`, `${NAME}`, `${NAME:-word}`, `${NAME-word}`, `${NAME:+word}` and `${NAME+word}` are expanded (a variable
    that is not set is empty); `\$` is a dollar and `\\` a backslash. All else stands for itself, also backticks
    and `$(`.

    Args:
        where: the key that holds the text, for the message.

    Raises:
        PlanError: a `${` that is none of these.
    """
    body, end = _expand_part(text, 0, where, nested=False)
    assert end == len(text)
    return f'"{body}"'


def _expand_part(text: str, start: int, where: str, *, nested: bool) -> tuple[str, int]:
    """The inside of double quotes for `text[start:]`, up to an unescaped `}` when nested, and where it ended."""
    out: list[str] = []
    i = start
    while i < len(text):
        char = text[i]
        if nested and char == "}":
            return "".join(out), i
        if char == "\\" and text[i + 1 : i + 2] in ("$", "\\", *(("}",) if nested else ())) and i + 1 < len(text):
            out.append(_literal(text[i + 1], nested))
            i += 2
            continue
        if char != "$":
            out.append(_literal(char, nested))
            i += 1
            continue
        expansion, i = _expand_variable(text, i, where)
        out.append(expansion)
    if nested:
        raise PlanError(f'{where}: a "${{" in "{text}" has no end', "close it with }")
    return "".join(out), i


def _literal(char: str, nested: bool) -> str:
    return "\\" + char if char in '"\\`$' or (nested and char == "}") else char


def _expand_variable(text: str, at: int, where: str) -> tuple[str, int]:
    """What the `$` at `at` stands for, and where to go on."""
    braced = text.startswith("${", at)
    name = _NAME.match(text, at + (2 if braced else 1))
    if not braced:
        # A dollar before anything but a name is a dollar.
        return (f"${{{name.group()}-}}", name.end()) if name else ("\\$", at + 1)
    if name:
        rest = name.end()
        if text.startswith("}", rest):
            return f"${{{name.group()}-}}", rest + 1
        for operator in _OPERATORS:
            if text.startswith(operator, rest):
                word, end = _expand_part(text, rest + len(operator), where, nested=True)
                return f"${{{name.group()}{operator}{word}}}", end + 1
    raise PlanError(
        f'{where}: "{text[at : at + 24]}" is not understood',
        "what is expanded: $NAME, ${NAME}, ${NAME:-word}, ${NAME:+word}; a plain dollar is \\$",
    )
