"""Changes the imports of programs for the older systems, and lists what is left to do by hand.

A program is read as a syntax tree. Only the names of modules are replaced; every other character stays.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_grpc.compat.older_paths import recorded, sentence_of, source_of

SDK, HERE = "osmosis_ai", "osmosis_grpc"
LIBRARY_HERE = f"{HERE}.agentic"
_LIBRARY = ("workers", "verl.workers.rollout.agentic_rollout")
_PLATFORMS = "it belonged to the SDK's own command line and platform"
_SKIPPED = {"node_modules", "site-packages", "__pycache__", "build", "dist"}
_REQUIREMENT = re.compile(r"osmosis-ai(?=[\[\s\"'=<>~!;,)]|$)")
_PROJECT = ("pyproject.toml", "setup.cfg", "setup.py", "requirements*.txt", "Dockerfile*", "*.yml", "*.yaml")
_PLATFORM = re.compile(r"^\[experiment\]", re.M)


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """Something that is left to do by hand."""

    path: Path
    line: int
    text: str


@dataclass(slots=True)
class Change:
    """The change of one file."""

    path: Path
    text: str
    """The text after the change."""
    lines: list[int] = field(default_factory=list)
    """The numbers of the lines that change."""


@dataclass(slots=True)
class _File:
    """The edits and notes of one file, collected while it is read."""

    path: Path
    lines: list[str]
    edits: list[tuple[int, int, int, str]] = field(default_factory=list)
    """The line, the begin and end in its UTF-8 bytes, and the new text between them."""
    notes: list[Note] = field(default_factory=list)

    def note(self, line: int, text: str) -> None:
        self.notes.append(Note(self.path, line, text))

    def replace(self, line: int, column: int, old: str, new: str) -> None:
        """Replace the first `old` at or after `column`. The rest of the line stays."""
        text = self.lines[line - 1].encode()
        at = text.find(old.encode(), column)
        if at >= 0:
            self.edits.append((line, at, at + len(old.encode()), new))
        else:
            self.note(line, f"change {old} to {new} by hand")

    def change(self) -> Change:
        lines = list(self.lines)
        for line, begin, end, new in sorted(self.edits, reverse=True):
            text = lines[line - 1].encode()
            lines[line - 1] = (text[:begin] + new.encode() + text[end:]).decode()
        return Change(self.path, "".join(lines), sorted({line for line, *_ in self.edits}))


def migration(folder: Path) -> tuple[list[Change], list[Note]]:
    """Return the changes of a folder, and the notes on what is left to do. Writes nothing.

    Args:
        folder: The folder, or one file.
    """
    changes, notes = [], []
    for path in _files(folder, ("*.py",)):
        file = _python(path)
        if file.edits:
            changes.append(file.change())
        notes += file.notes
    for path in _files(folder, _PROJECT):
        notes += _requirements(path)
    for path in _files(folder, ("*.toml",)):
        if _PLATFORM.search(_text(path)):
            notes.append(Note(path, 1, "is for the SDK's platform: pass its values to osmosis-grpc eval or test"))
    return changes, sorted(set(notes))


def _files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    if folder.is_file():
        return [folder] if any(folder.match(pattern) for pattern in patterns) else []
    found = {path for pattern in patterns for path in folder.rglob(pattern) if path.is_file()}
    return sorted(path for path in found if not _skipped(path.relative_to(folder)))


def _skipped(path: Path) -> bool:
    return any(part in _SKIPPED or (part[0] == "." and part != ".github") for part in path.parts[:-1])


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        return file.read()


def _python(path: Path) -> _File:
    text = _text(path)
    file = _File(path, text.splitlines(keepends=True))
    if SDK not in text and not any(name in text for name in _LIBRARY):
        return file
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        file.note(getattr(error, "lineno", None) or 1, "cannot be read as Python; change its imports by hand")
        return file
    if "�" in text or len(file.lines) != text.count("\n") + (not text.endswith("\n")):
        file.note(1, "has characters that change the count of lines; change its imports by hand")
        return file
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            _from(file, node, node.module)
        elif isinstance(node, ast.Import):
            _import(file, node)
        elif isinstance(node, ast.Name) and node.id == SDK:
            file.replace(node.lineno, node.col_offset, SDK, HERE)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(rf"\b{SDK}\b", node.value):
            file.note(node.lineno, f"a text names {SDK}; if it is the name of a module, change it to {HERE}")
        elif isinstance(node, ast.Call) and _called(node) == "create_rollout_server" and not _has_key(node):
            file.note(node.lineno, "without api_key only callers on this machine are served; pass a token")
    return file


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", "") or getattr(node.func, "id", "")


def _has_key(node: ast.Call) -> bool:
    return any(keyword.arg in ("api_key", None) for keyword in node.keywords)


def _from(file: _File, node: ast.ImportFrom, module: str) -> None:
    top, _, below = module.partition(".")
    if top == SDK and below and not _is_here(below):
        file.note(node.lineno, f"there is no {HERE}.{below}: {_PLATFORMS}")  # kept, so the next run notes it again
    elif top == SDK:
        file.replace(node.lineno, node.col_offset, SDK, HERE)
        for alias in node.names:
            _check(file, alias.lineno, below, alias.name)
    elif any(f"{module}.".startswith(f"{name}.") for name in _LIBRARY):
        names = recorded("library").get(below if top == "workers" else "agentic_rollout")
        if names is None or not all(alias.name in names for alias in node.names):
            return  # the author's own package with the same name
        file.replace(node.lineno, node.col_offset, module, LIBRARY_HERE)
        for alias in node.names:
            if sentence := sentence_of("agentic", alias.name, LIBRARY_HERE):
                file.note(alias.lineno, sentence)


def _check(file: _File, line: int, module: str, name: str) -> None:
    """Note a name that does not work here."""
    known = recorded()
    inner = f"{module}.{name}" if module else name
    if name == "*" or inner in known or any(each.startswith(f"{inner}.") for each in known):
        return
    if module and source_of(module, name) is None:
        sentence = sentence_of(module, name, f"{HERE}.{module}")
        file.note(line, sentence or f"{name} is not in {HERE}.{module}, and was no public name of the SDK")
    elif not module and name not in known[""]:
        file.note(line, f"{name} is not in {HERE}, and was no public name of the SDK")
    elif not module and name in ("evaluate_rubric", "osmosis_rubric"):
        file.note(line, str(sentence_of("rollout", name, HERE)))


def _is_here(module: str) -> bool:
    """Return whether a module of the SDK has a counterpart here, which has its names or says what replaces them."""
    known = recorded()
    ours = module.partition(".")[0] in ("rollout", "eval")
    return ours and (module in known or any(each.startswith(f"{module}.") for each in known))


def _import(file: _File, node: ast.Import) -> None:
    for alias in node.names:
        top, _, below = alias.name.partition(".")
        if top != SDK:
            continue
        if below and not _is_here(below):
            file.note(alias.lineno, f"there is no {HERE}.{below}: {_PLATFORMS}")
        else:
            file.replace(alias.lineno, alias.col_offset, SDK, HERE)


def _requirements(path: Path) -> Iterator[Note]:
    for number, line in enumerate(_text(path).splitlines(), 1):
        if _REQUIREMENT.search(line):
            yield Note(path, number, "requires osmosis-ai: require osmosis-grpc[server], with the extras that are used")
