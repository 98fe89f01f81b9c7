"""Adds the files of the repository that the docs link to the site: a hook of mkdocs (`hooks` in mkdocs.yml).

A page of docs/ links a file outside docs/ as GitHub wants it, such as `../examples/grpo_numpy.py`. The site has a page
for each such file or folder, here `source/examples/grpo_numpy.py.md`. The page of a Markdown file is its text. The page
of any other file shows its code, and the page of a folder shows the code of all its files.
"""

import itertools
import os
import re
import subprocess
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "source"
"""The folder of the site that has these pages."""
IN_NAVIGATION = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LOOKED_UP = {
    "comparison",
    "compatibility",
    "decisions",
    "older-names",
    "performance",
    "protocol",
    "reliability",
    "settings",
    "simulation",
}
"""Pages that have nearly every word. In the results of a search, the guides come before them."""
LANGUAGES = {".jsonl": "json", ".proto": "protobuf", ".tsx": "typescript", ".ts": "typescript", ".txt": "text"}
"""The name of a language for its highlighter, where it is not the ending of the file."""
_CODE = re.compile(r"^( *)(```+).*?^\1\2`*$", re.S | re.M)
_LINK = re.compile(r"\[([^\[\]]*)\]\(([^)#:\s]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file or folder of the repository that a page links, and for those in the navigation."""
    waiting = [f"docs/{file.src_uri}" for file in files if file.is_documentation_page()] + list(IN_NAVIGATION)
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.startswith("docs/"):
            made = File.generated(config, _page_of(path), content=_content(path))
            made.inclusion = InclusionLevel.INCLUDED if path in IN_NAVIGATION else InclusionLevel.NOT_IN_NAV
            files.append(made)
        if path.endswith(".md"):
            found = {_target(path, link) for link in _links((ROOT / path).read_text())} - seen
            waiting += sorted(found)
            seen |= found
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the page's links lead to the pages of the site, and name a page by its title where a link names its file."""
    source = page.file.src_uri
    path = f"docs/{source}"
    if source.startswith(f"{FOLDER}/"):
        path = source.removeprefix(f"{FOLDER}/").removesuffix(".md")
        page.meta["search"] = {"boost": 0.2}  # the docs come first in the results of a search
    else:
        page.meta["search"] = {"boost": 0.5 if PurePosixPath(source).stem in LOOKED_UP else 2}
    if not path.endswith(".md"):
        return markdown

    def lead(match: re.Match[str]) -> str:
        to = _page_of(_target(path, match[2]))
        linked = files.get_file_from_path(to)
        named_by_file = linked and linked.page and match[1] in (match[2], linked.src_uri)
        text = linked.page.title if named_by_file else match[1]
        return f"[{text}]({os.path.relpath(to, PurePosixPath(source).parent)}"

    ends = [0, *(end for code in _CODE.finditer(markdown) for end in code.span()), len(markdown)]
    parts = [markdown[a:b] for a, b in itertools.pairwise(ends)]
    return "".join(part if n % 2 else _LINK.sub(lead, part) for n, part in enumerate(parts))


def _links(markdown: str) -> list[str]:
    return [match[2] for match in _LINK.finditer(_CODE.sub("", markdown))]


def _target(path: str, link: str) -> str:
    """Return the path that a link leads to, from the top of the repository. Raises PluginError if nothing is there."""
    target = os.path.normpath(PurePosixPath(path).parent / link)
    if target.startswith("..") or not (ROOT / target).exists():
        raise PluginError(f"{path} links {link}, which is no file of the repository: mend the link")
    return target


def _page_of(path: str) -> str:
    """Return the path of a file's page below docs/."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{FOLDER}/{path}.md"


def _content(path: str) -> str:
    """Return the Markdown of a file's page."""
    if path.endswith(".md"):
        return (ROOT / path).read_text()
    if not (ROOT / path).is_dir():
        return f"# {path}\n\n{_code(path)}"
    listed = subprocess.run(["git", "ls-files", path], cwd=ROOT, check=True, capture_output=True, text=True)
    return f"# {path}\n\n" + "".join(
        f"## {name.removeprefix(path + '/')}\n\n{_code(name)}" for name in listed.stdout.split()
    )


def _code(path: str) -> str:
    """Return a text file as a code block whose fence is longer than any in the file."""
    text = (ROOT / path).read_text()
    fence = "`" * (1 + max((len(run) for run in re.findall("`{3,}", text)), default=2))
    suffix = PurePosixPath(path).suffix
    return f"{fence}{LANGUAGES.get(suffix, suffix.removeprefix('.') or 'text')}\n{text.rstrip()}\n{fence}\n\n"
