"""Text -> bash source that means exactly that text. Nothing else in `render` writes a user's text into a script."""

from __future__ import annotations

import re

from engine.errors import PlanError

# Words that mean themselves in every place where we write one (an argument or the right side of `=`).
_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./-]*\Z")
# A carriage return or an escape sequence, written raw, would make the script lie to whoever prints it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Between a character above 127 and what could be the rest of a character in GB18030, Big5 or Shift JIS.
_AFTER_WIDE = re.compile(r"(?<=[^\x00-\x7f])(?=[0-9\\])")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A dollar before anything but one of these is a dollar.
_NAME_START = re.compile(r"[A-Za-z_{]")
_OPERATORS = (":-", ":+", "-", "+")


def quote(text: str) -> str:
    """One bash word that is `text`, byte for byte in UTF-8, with nothing expanded.

    No byte above 127 ever stands before a backslash or a digit: in a Chinese or Japanese locale that is not UTF-8,
    bash would take them for one character, and the closing quote with it.
    """
    if _PLAIN.match(text):
        return text
    parts = re.split(f"({_CONTROL.pattern}+)", text)
    # Every second part is a run of control characters.
    words = [_octal(part) if i % 2 else _single(part) for i, part in enumerate(parts) if part]
    return "".join(words) or "''"


def _single(text: str) -> str:
    parts = _AFTER_WIDE.split(text)
    return "".join("'" + part.replace("'", "'\\''") + "'" for part in parts)


def _octal(text: str) -> str:
    # Octal always has three digits; `\x` would swallow what follows.
    return "$'" + "".join(f"\\{byte:03o}" for byte in text.encode("utf-8")) + "'"


def comment(text: str) -> str:
    """`text` fit for the rest of a comment line."""
    return _CONTROL.sub("?", text.replace("\n", "?").replace("\t", "?"))


def expand(text: str, where: str) -> tuple[list[str], str]:
    r"""Lines of bash, and after them one word that is `text` with variables expanded; no command is ever run.

    `$NAME`, `${NAME}`, `${NAME:-word}`, `${NAME-word}`, `${NAME:+word}` and `${NAME+word}` are expanded (a variable
    that is not set is empty); `\$` is a dollar, `\\` a backslash and in a word `\}` a brace. All else stands for
    itself, also backticks and `$(`.

    Args:
        where: the key that holds the text, for the message.

    Raises:
        PlanError: a `${` that is none of these.
    """
    before: list[str] = []
    pieces, _ = _pieces(text, 0, where, before, nested=False)
    return before, _word(pieces)


def _word(pieces: list[tuple[str, bool]]) -> str:
    """One bash word of literal and (True) variable pieces."""
    if all(variable or (piece.isascii() and not _CONTROL.search(piece)) for piece, variable in pieces):
        inside = [piece if variable else re.sub(r'(["\\`$])', r"\\\1", piece) for piece, variable in pieces]
        return '"' + "".join(inside) + '"'
    return "".join(f'"{piece}"' if variable else quote(piece) for piece, variable in pieces)


def _pieces(
    text: str, start: int, where: str, before: list[str], *, nested: bool
) -> tuple[list[tuple[str, bool]], int]:
    """The pieces of `text[start:]`, up to an unescaped `}` when nested, and where they ended."""
    escapable = "$\\}" if nested else "$\\"
    pieces: list[tuple[str, bool]] = []
    literal = ""
    i = start
    while i < len(text) and not (nested and text[i] == "}"):
        char = text[i]
        if char == "\\" and i + 1 < len(text) and text[i + 1] in escapable:
            literal += text[i + 1]
            i += 2
        elif char == "$" and _NAME_START.match(text, i + 1):
            variable, i = _variable(text, i, where, before)
            pieces += [(literal, False), (variable, True)]
            literal = ""
        else:
            literal += char
            i += 1
    if nested and i == len(text):
        raise PlanError(f'{where}: a "${{" in "{text}" has no end', "close it with }")
    return [(piece, variable) for piece, variable in (*pieces, (literal, False)) if piece], i


def _variable(text: str, at: int, where: str, before: list[str]) -> tuple[str, int]:
    """What the `$` at `at` stands for, and where to go on."""
    braced = text.startswith("${", at)
    name = _NAME.match(text, at + (2 if braced else 1))
    if name and not braced:
        return f"${{{name.group()}-}}", name.end()
    if name:
        rest = name.end()
        if text.startswith("}", rest):
            return f"${{{name.group()}-}}", rest + 1
        for operator in _OPERATORS:
            if text.startswith(operator, rest):
                pieces, end = _pieces(text, rest + len(operator), where, before, nested=True)
                # A variable of its own: quotes and braces inside `"${X:-...}"` mean something else in each bash.
                helper = f"trainui_word_{len(before)}"
                before.append(f"{helper}={_word(pieces)}")
                return f"${{{name.group()}{operator}${helper}}}", end + 1
    raise PlanError(
        f'{where}: "{text[at : at + 24]}" is not understood',
        "what is expanded: $NAME, ${NAME}, ${NAME:-word}, ${NAME:+word}; a plain dollar is \\$",
    )
