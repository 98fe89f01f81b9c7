"""The commands of osmosis-grpc in a text: in its code blocks, in its inline code, and at the end of printed lines."""

import ast
import re
import shlex
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from osmosis_grpc.cli.commands import app

_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.S | re.M)
_INLINE = re.compile(r"`(osmosis-grpc [^`]+)`")
_LINE = re.compile(r"(?:^|[\s:(])((?:osmosis-grpc|python -m osmosis_grpc) [a-z].*)$")
_PROSE = re.compile(r"[,;)]|\. |\.$| or | and ")
"""What ends a command in a sentence."""
_OPERATORS = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<"})


def of_page(text: str) -> Iterator[str]:
    """Yield the commands of a page: those of its blocks but for Python, and those in inline code."""
    for language, block in _BLOCK.findall(text):
        if language != "python":
            yield from of_output(block.replace("\\\n", " "))
    for inline in _INLINE.findall(_BLOCK.sub("", text)):
        yield " ".join(inline.split())


def of_output(text: str) -> Iterator[str]:
    """Yield the command at the end of each printed line."""
    quoted = ""
    for line in text.splitlines():
        whole = f"{quoted}\n{line}" if quoted else line
        found = whole if quoted else (match[1] if (match := _LINE.search(line)) else "")
        quoted = found if found and _unbalanced(found) else ""
        if found and not quoted:
            yield found


def _unbalanced(text: str) -> bool:
    try:
        shlex.split(text)
    except ValueError:
        return True
    return False


def words_of(command: str) -> list[str]:
    """Return the arguments of a command, up to the first operator of the shell."""
    lexer = shlex.shlex(re.sub(r"\s#.*", "", command), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    for word in lexer:
        if word in _OPERATORS:
            break
        words.append(word)
    return words[3 if words[:2] == ["python", "-m"] else 1 :]


def problem_of(words: list[str]) -> str:
    """Return why the command line is wrong: an unknown command or option, or an argument that is missing or too much.

    Values such as N and FILE are not looked at.
    """
    group: Any = get_command(app)
    name, rest = words[0], words[1:]
    while name in group.commands and hasattr(group.commands[name], "commands"):
        if not rest or rest[0].startswith("-"):
            return ""
        group, name, rest = group.commands[name], rest[0], rest[1:]
    if name not in group.commands:
        return f"there is no command {name}"
    command = group.commands[name]
    if "--help" in rest or "--help-all" in rest:
        return ""
    if name == "serve":
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        named = [word.partition("=")[0] for word in rest if word.startswith("-") and word != "-"]
        unknown = [word for word in named if word not in known]
        return f"unknown: {unknown}" if unknown else ""
    try:
        command.make_context(name, list(rest))
    except Exception as error:
        kind = type(error).__name__
        return "" if kind == "BadParameter" else f"{kind}: {getattr(error, 'message', error)}"
    return ""


def of_source(text: str) -> Iterator[str]:
    """Yield the commands in the strings of a Python file that are no docstrings. A value that is put in is X."""
    tree = ast.parse(text)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(getattr(node, "body", None), list) and node.body and isinstance(node.body[0], ast.Expr)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in docs | parts:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            shown = node.value
        elif isinstance(node, ast.JoinedStr):
            values = (each.value if isinstance(each, ast.Constant) else _put_in(each) for each in node.values)
            shown = "".join(map(str, values))
        else:
            continue
        yield from (" ".join(each.split()) for each in _INLINE.findall(shown))
        for command in of_output(re.sub(r"`[^`]*`", "", shown)):
            yield _PROSE.split(command)[0]


def _put_in(part: ast.expr) -> str:
    """Return what stands for a value in an f-string: the program's name, options, or X."""
    text = ast.unparse(part)
    if "program()" in text:
        return "osmosis-grpc"
    if "bool(" in text or text == "{more}":
        return ""
    return "--from X" if "words" in text or text == "{where}" else "X"
