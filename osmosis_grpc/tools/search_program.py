"""Searches a folder. It runs as a program in a sandbox, so that a search that takes too long can be killed.

Reads the options as JSON from standard input, and prints the result as JSON. It uses only the standard library.
"""

import json
import os
import re
import sys
from typing import Any

SKIPPED = {".git", ".hg", ".svn", "node_modules", "venv", ".venv", "__pycache__", ".mypy_cache", ".pytest_cache"}
"""Folders that are not searched."""
LINE = 300
"""A line in the result has at most this many characters."""


def main() -> None:
    """Search, and print the result."""
    options = json.load(sys.stdin)
    flags = 0 if options["case_sensitive"] else re.IGNORECASE
    source = options["pattern"] if options["regex"] else re.escape(options["pattern"])
    if options["whole_words"]:
        source = rf"(?<!\w)(?:{source})(?!\w)"
    try:
        pattern = re.compile(source, flags)
    except (re.error, OverflowError, RecursionError) as error:
        json.dump({"error": str(error)}, sys.stdout)
        return
    json.dump(SEARCHES[options["command"]](options, pattern), sys.stdout)


def search_text(options: dict[str, Any], pattern: "re.Pattern[str]") -> dict[str, Any]:
    """Find lines in files."""
    matches: list[dict[str, Any]] = []
    total = searched = skipped = 0
    for path in files(options):
        text = text_of(path, options["max_file_size"])
        if text is None:
            skipped += 1
            continue
        searched += 1
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            line = line.rstrip("\r")
            for found in pattern.finditer(line):
                total += 1
                if len(matches) < options["max_results"]:
                    matches.append(match_of(path, number, line, found, lines, options["context_lines"]))
    return {"matches": matches, "total_matches": total, "files_searched": searched, "files_skipped": skipped}


def match_of(path: str, number: int, line: str, found: Any, lines: list[str], context: int) -> dict[str, Any]:
    """Return one match. A long line is shown around the match."""
    begin = max(0, found.start() - LINE // 2)
    made = {
        "file": path,
        "line_number": number,
        "column": found.start() + 1,
        "match_text": found.group()[:LINE],
        "line_content": line[begin : begin + LINE],
    }
    if context:
        near = range(max(1, number - context), min(len(lines), number + context) + 1)
        made["context"] = [f"{each}: {lines[each - 1].rstrip()[:LINE]}" for each in near]
    return made


def search_files(options: dict[str, Any], pattern: "re.Pattern[str]") -> dict[str, Any]:
    """Find files by name."""
    found = [path for path in files(options) if pattern.search(os.path.basename(path))]
    shown = [
        {"path": path, "name": os.path.basename(path), "type": "file", "size": os.path.getsize(path)}
        for path in found[: options["max_results"]]
    ]
    return {"matches": shown, "total_matches": len(found)}


def search_dir(options: dict[str, Any], pattern: "re.Pattern[str]") -> dict[str, Any]:
    """Find folders by name."""
    top, found = options["path"], []
    for folder, folders, _ in walk(top):
        found += [os.path.join(folder, name) for name in folders if pattern.search(name)]
    found.sort()
    shown = []
    for path in found[: options["max_results"]]:
        relative = os.path.relpath(path, top)
        name, depth = os.path.basename(path), relative.count("/") + 1
        shown.append({"path": clean(path), "relative_path": relative, "name": name, "type": "folder", "depth": depth})
    return {"matches": shown, "total_matches": len(found)}


def files(options: dict[str, Any]) -> list[str]:
    """Return the paths of the files to search, sorted."""
    top, endings = options["path"], tuple(options["file_extensions"])
    if os.path.isfile(top):
        return [clean(top)]
    found = []
    for folder, _, names in walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if (not endings or name.endswith(endings)) and os.path.isfile(path) and not os.path.islink(path):
                found.append(clean(path))
    return sorted(found)


def walk(top: str) -> Any:
    """Walk over the folders that are searched. Links are not followed."""
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        yield folder, [name for name in folders if not os.path.islink(os.path.join(folder, name))], names


def text_of(path: str, most: int) -> Any:
    """Return the text of a file; None if it is binary, too large, or cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError:
        return None
    return None if len(data) > most or b"\0" in data[:8192] else data.decode("utf-8", "replace")


def clean(path: str) -> str:
    """Return a path without a leading dot, for JSON."""
    return os.path.normpath(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


SEARCHES = {"search_text": search_text, "search_files": search_files, "search_dir": search_dir}

if __name__ == "__main__":
    main()
