"""Reads a tool call that is written as text: name(key=value, ...)."""

import ast
import json
import re
from dataclasses import dataclass, field
from typing import Any

NAME = re.compile(r"[A-Za-z_][\w.-]*")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)")
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
LONGEST_LITERAL = 100_000
"""An unquoted value with more characters is not parsed: it stays a text."""


class CallTextError(ValueError):
    """The text is not a tool call. The message says what is wrong."""


@dataclass(frozen=True, slots=True)
class CallText:
    """A call that was read from a text."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    positional: tuple[Any, ...] = ()
    """The values that are written without a key."""

    def named(self, parameters: list[str]) -> dict[str, Any]:
        """Return the arguments by name. Positional values get the names of the parameters that are left, in order.

        Surplus values are named arg_N, so that the tool's error can name them.
        """
        free = [name for name in parameters if name not in self.arguments]
        names = free + [f"arg_{number}" for number in range(len(free), len(self.positional))]
        return dict(zip(names, self.positional, strict=False)) | self.arguments


def read_call(text: str, start: int = 0) -> tuple[CallText, int]:
    """Read the call that begins at `start`. Return it and the index after it. Raises CallTextError.

    Quotes are single, double or triple, with the escapes of JSON and Python. An unquoted value is read as JSON or as a
    Python literal, or else stays a text. If the only value is an object without a key, it holds the arguments.
    """
    found = NAME.match(text, start)
    if not found:
        raise CallTextError(f"{text[start : start + 40].strip()!r} is not NAME(KEY=VALUE, ...)")
    at = _spaces(text, found.end())
    if text[at : at + 1] != "(":
        raise CallTextError(f"{found[0]} has no arguments in parentheses; write {found[0]}(KEY=VALUE, ...)")
    arguments: dict[str, Any] = {}
    positional: list[Any] = []
    at += 1
    while True:
        at = _spaces(text, at)
        if text[at : at + 1] == ")":
            break
        key = _KEY.match(text, at)
        value, at = _value(text, key.end() if key else at, found[0])
        if key is None:
            positional.append(value)
        elif key[1] in arguments:
            raise CallTextError(f"{found[0]} has the argument {key[1]!r} twice")
        else:
            arguments[key[1]] = value
        at = _spaces(text, at)
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != ")":
            raise CallTextError(f"the call of {found[0]} is not closed with a parenthesis")
    if len(positional) == 1 and not arguments and isinstance(positional[0], dict):
        return CallText(found[0], positional[0]), at + 1
    return CallText(found[0], arguments, tuple(positional)), at + 1


def _spaces(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _value(text: str, at: int, name: str) -> tuple[Any, int]:
    at = _spaces(text, at)
    if text[at : at + 1] in ("'", '"'):
        end = _after_quotes(text, at, name)
        after = _spaces(text, end)
        if text[after : after + 1] in (",", ")"):
            return _unquoted(text[at:end]), after
    end = at
    open_: list[str] = []
    while end < len(text):
        char = text[end]
        if char in "'\"":
            end = _after_quotes(text, end, name)
            continue
        if char in _PAIRS:
            open_.append(_PAIRS[char])
        elif open_ and char == open_[-1]:
            open_.pop()
        elif not open_ and char in ",)":
            break
        end += 1
    if end == len(text):
        raise CallTextError(f"the call of {name} is not closed with a parenthesis")
    return _literal(text[at:end].strip()), end


def _after_quotes(text: str, at: int, name: str) -> int:
    quotes = text[at] * 3 if text.startswith(text[at] * 3, at) else text[at]
    end = at + len(quotes)
    while end < len(text):
        if text[end] == "\\":
            end += 2
        elif text.startswith(quotes, end):
            return end + len(quotes)
        else:
            end += 1
    raise CallTextError(f"a text in the call of {name} has no closing {quotes}")


def _unquoted(text: str) -> str:
    """Return the text within quotes. Line breaks and unknown escapes stay as they are."""
    if text[0] == '"' and not text.startswith('"""'):
        try:
            read: str = json.loads(text, strict=False)
        except ValueError:
            pass
        else:
            return read
    width = 3 if text.startswith(text[0] * 3) and len(text) >= 6 else 1
    return re.sub(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|(?s:.))", _escaped, text[width:-width])


def _escaped(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, code if code in "\\'\"/" else found[0])


def _literal(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > LONGEST_LITERAL:
        return text
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
            json.dumps(value, allow_nan=False)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        return value
    return text
