"""Makes a text that matches a simple regular expression.

A simple expression has only characters, escapes, sets, groups, alternatives, anchors and repetition.
Python's own parser reads the pattern.
"""

import re
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

_MOST = 1000
"""The most characters of a text, and the most repetitions of a part."""
_CANDIDATES = "a1A_- .:/" + "".join(map(chr, range(33, 127)))

_parser: Any = import_module("re._parser")
_compiler: Any = import_module("re._compiler")
_REPEATS = _parser.MAX_REPEAT, _parser.MIN_REPEAT, _parser.POSSESSIVE_REPEAT
_SETS = _parser.IN, _parser.NOT_LITERAL, _parser.ANY


class _NotSimple(Exception):
    pass


def matching(pattern: str, at_least: int = 0) -> str | None:
    """Return a text of at least `at_least` characters that contains a match; None if no text is found."""
    with suppress(_NotSimple, re.error, Warning, RecursionError, OverflowError), warnings.catch_warnings():
        warnings.simplefilter("error")  # a pattern with a warning is not simple
        compiled = re.compile(pattern)
        for more in dict.fromkeys((0, at_least)) if compiled.flags == re.UNICODE else ():
            text = _text(_parser.parse(pattern), more)
            if len(text) >= at_least and compiled.search(text):
                return text
    return None


def _text(parsed: Any, more: int) -> str:
    """Return a text for a parsed pattern; `more` is the wanted number of repetitions of a part."""
    text = ""
    for kind, value in parsed:
        if kind is _parser.LITERAL:
            text += chr(value)
        elif kind in _SETS:
            allowed = _compiler.compile(_parser.SubPattern(parsed.state, [(kind, value)]))
            text += next(filter(allowed.fullmatch, _CANDIDATES), "")
        elif kind in _REPEATS:
            low, high, part = value
            text += _text(part, more) * min(max(low, min(more, high)), _MOST)
        elif kind is _parser.BRANCH:
            text += _text(value[1][0], more)
        elif kind is _parser.SUBPATTERN:
            text += _text(value[-1], more)
        elif kind is not _parser.AT:
            raise _NotSimple
        if len(text) > _MOST:
            raise _NotSimple
    return text
