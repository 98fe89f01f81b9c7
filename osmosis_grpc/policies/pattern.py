"""Makes a text that matches a simple regular expression.

Simple is: characters, escapes, sets, groups, alternatives, anchors at the ends, and repetition. For anything else
there is no text.
"""

import re
import warnings

_MOST = 1000
"""The most characters of a text, and the most repetitions of a part."""
_ESCAPES = {
    "d": "1",
    "w": "a",
    "s": " ",
    "D": "a",
    "W": "-",
    "S": "a",
    "t": "\t",
    "n": "\n",
    "b": "",
    "B": "",
    "A": "",
    "Z": "",
    "z": "",
}
_CANDIDATES = "a1A_- .:/" + "".join(map(chr, range(33, 127)))


class _NotSimple(Exception):
    pass


def matching(pattern: str, at_least: int = 0) -> str | None:
    """Return a text of a minimum length in which a pattern is found; None if the pattern is not simple."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what Python warns of is not simple
            compiled = re.compile(pattern)
            for more in dict.fromkeys((0, at_least)):
                text = _Reader(pattern, more).alternatives()
                if len(text) >= at_least and compiled.search(text):
                    return text
    except (_NotSimple, re.error, Warning, RecursionError, OverflowError):
        pass
    return None


class _Reader:
    """Reads a pattern from left to right; `more` is the number of repetitions of a part without an upper limit."""

    def __init__(self, pattern: str, more: int) -> None:
        self._pattern = pattern
        self._at = 0
        self._more = more

    def alternatives(self) -> str:
        """Return the text of the first alternative, up to the end or a closing bracket."""
        first = self._sequence()
        while self._peek() == "|":
            self._at += 1
            self._sequence()
        return first

    def _sequence(self) -> str:
        text = ""
        while self._peek() not in ("", "|", ")"):
            part = self._part()
            low, high = self._repetition()
            text += part * min(max(low, min(self._more, high)), _MOST)
            if len(text) > _MOST:
                raise _NotSimple
        return text

    def _part(self) -> str:
        char = self._next()
        if char in "^$":
            return ""
        if char == ".":
            return "a"
        if char == "\\":
            return self._escape()
        if char == "[":
            return self._set()
        if char == "(":
            if self._peek() == "?":
                self._at += 1
                if self._next() != ":":
                    raise _NotSimple
            text = self.alternatives()
            if self._next() != ")":
                raise _NotSimple
            return text
        if char in "*+?{":
            raise _NotSimple
        return char

    def _escape(self) -> str:
        char = self._next()
        if char.isalnum() and char not in _ESCAPES:
            raise _NotSimple
        return _ESCAPES.get(char, char)

    def _set(self) -> str:
        begin = self._at
        self._at += self._peek() == "^"
        self._at += self._peek() == "]"
        while (char := self._next()) != "]":
            self._at += char == "\\"
        allowed = re.compile("[" + self._pattern[begin : self._at])
        for candidate in _CANDIDATES:
            if allowed.fullmatch(candidate):
                return candidate
        raise _NotSimple

    def _repetition(self) -> tuple[int, int]:
        low, high = {"*": (0, _MOST), "+": (1, _MOST), "?": (0, 1)}.get(self._peek(), (1, 1))
        found = re.compile(r"\{(\d*)(,?)(\d*)\}").match(self._pattern, self._at)
        if found:
            low = int(found[1] or 0)
            high = int(found[3]) if found[3] else _MOST if found[2] else low
            self._at = found.end()
        elif self._peek() in ("*", "+", "?"):
            self._at += 1
        else:
            return 1, 1
        self._at += self._peek() in ("?", "+")  # lazy and possessive
        return low, high

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise _NotSimple
        self._at += 1
        return char
