"""The docs command: prints a page of the documentation, or one section of it."""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import osmosis_grpc
from osmosis_grpc.cli.screen import Screen
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.serve.json_output import records, usage_error

PACKAGE = Path(osmosis_grpc.__file__).parent
FOLDERS = PACKAGE / "docs", PACKAGE.parent / "docs"
"""The folders of the pages: inside the package if a wheel is installed, and beside the package in a checkout."""


class Section(NamedTuple):
    """A heading and the text from it to the next heading of the same or a higher level."""

    page: str
    title: str
    text: str


def run_docs(topic: str | None, *, json: bool) -> int:
    """Print a page or a section, or the list of pages, and return the exit code."""
    pages = {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.md"))}
    if not pages:
        usage_error("docs", "this installation has no pages; install the wheel again")
    with records(json) as out:
        if topic is None:
            for name, path in pages.items():
                title = next(sections(name, path.read_text(encoding="utf-8"))).title
                out.write("page", page=name, title=title)
                out.say(f"{name:<24}{title}")
            return 0
        found = _found(pages, topic)
        out.write("page", page=found.page, title=found.title, text=found.text)
        screen = Screen.of(out)
        for line in found.text.splitlines():
            screen.say(line, "head" if line.startswith("#") else "")
    return 0


def sections(page: str, text: str) -> Iterator[Section]:
    """Yield the sections of a page. A section contains its subsections. The first section is the whole page."""
    lines = text.splitlines()
    heads: list[tuple[int, int]] = []
    in_block = False
    for at, line in enumerate(lines):
        in_block ^= line.startswith("```")
        level = len(line) - len(line.lstrip("#"))
        if level and not in_block:
            heads.append((at, level))
    for number, (at, level) in enumerate(heads):
        end = next((other for other, its in heads[number + 1 :] if its <= level), len(lines))
        yield Section(page, lines[at].strip("# "), "\n".join(lines[at:end]).rstrip())


def _found(pages: dict[str, Path], topic: str) -> Section:
    """Return the page or the section with this name. An unknown name ends the command with exit code 2."""
    wanted = topic.lower().removesuffix(".md")
    known: dict[str, Section] = {}
    for name, path in pages.items():
        page, *others = sections(name, path.read_text(encoding="utf-8"))
        known[name] = page
        for section in (page, *others):
            known.setdefault(section.title.strip("`").lower(), section)
    if wanted not in known and f"{wanted}s" not in pages:
        near = difflib.get_close_matches(wanted, known, 3, 0.6)
        hint = f"near are: {', '.join(near)}" if near else f"the pages are {', '.join(pages)}"
        usage_error("docs", printable(f"there is no page and no heading {topic}; {hint}"))
    return known[f"{wanted}s" if f"{wanted}s" in pages and wanted not in pages else wanted]
