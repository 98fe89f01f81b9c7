"""The site of the docs: each page in the navigation, the same text as on GitHub, and everything from its own origin."""

import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.processes import ROOT

LOADING = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
    "link": "href",
}
"""The attribute of each tag whose address a browser loads by itself."""
ABSOLUTE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.I)
MOST_WORDS = 2_500
"""The most words of a page, code blocks not counted."""
REFERENCES = {
    "comparison",
    "compatibility",
    "decisions",
    "operators",
    "protocol",
    "reliability",
    "settings",
    "trainers",
}
"""Pages to look things up in, which may be longer."""
BLOCKS = {"li", "ul", "ol", "tr", "td", "th", "pre", "p", "h2", "h3", "h4", "img", "code", "blockquote"}
UNUSED = {
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js": 'class="mermaid"',
    "https://api.github.com/repos/": 'data-md-component="source"',
    "https://api.github.com/users/": 'data-md-component="source"',
    "https://unpkg.com/resize-observer-polyfill": None,
}
"""Addresses in the theme's scripts, and the markup without which a script does not load them.

None: only browsers from before 2020, which have no ResizeObserver, load it.
"""
COMMENTS = {"http://lunrjs.com", "http://tartarus.org/", "https://clipboardjs.com/", "https://bit.ly/2s3ChXG"}
"""Addresses in comments and messages of the theme's scripts."""


class Markup(HTMLParser):
    """Counts the blocks in the article of a page, and collects what a browser loads for the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.blocks: Counter[str] = Counter()
        self.loads: list[str] = []
        self._in_article = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self._in_article = self._in_article or tag == "article"
        self.blocks[tag] += self._in_article and tag in BLOCKS
        self.loads += [values[name] for name in (LOADING.get(tag), "srcset", "poster") if values.get(name)]

    def handle_endtag(self, tag):
        self._in_article = self._in_article and tag != "article"


def pages_of(navigation) -> list[str]:
    if isinstance(navigation, str):
        return [navigation]
    values = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for value in values for page in pages_of(value)]


def test_the_navigation_names_each_page_once():
    text = (ROOT / "mkdocs.yml").read_text()
    named = pages_of(yaml.safe_load(text[text.index("\nnav:") :])["nav"])
    assert [page for page, times in Counter(named).items() if times > 1] == []
    ours = {page for page in named if not page.startswith("source/")}
    assert ours == {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_a_page_that_is_no_reference_has_at_most_2500_words(path):
    text = re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.S | re.M)
    assert len(text.split()) <= MOST_WORDS or path.stem in REFERENCES
    assert path.stem not in REFERENCES or len(text.split()) > MOST_WORDS


def build(folder: Path, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *options]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_is_complete(tmp_path):
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    texts = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    pages = {path: Markup(text) for path, text in texts.items()}
    everything = "".join(texts.values())

    # A browser loads nothing from another origin.
    assert {load for page in pages.values() for load in page.loads if ABSOLUTE.match(load)} == set()
    styles = everything + "".join(path.read_text() for path in tmp_path.rglob("*.css"))
    urls = re.findall(r"(?:url\(\s*|@import\s+)[\"']?([^\"')\s]+)", styles)
    assert [url for url in urls if ABSOLUTE.match(url)] == []
    code = tmp_path / "assets" / "javascripts"  # its folder lunr is for languages other than English
    scripts = "".join(path.read_text() for path in [*code.glob("*.js"), *code.glob("workers/*.js")])
    assert set(re.findall(r"https?://[\w./@-]+", scripts)) <= set(UNUSED) | COMMENTS
    assert [markup for markup in UNUSED.values() if markup and markup in everything] == []

    # A page has the same lists, tables and code on the site as on GitHub.
    github = MarkdownIt("commonmark").enable("table")
    for path in sorted((ROOT / "docs").glob("*.md")):
        expected = Markup(f"<article>{github.render(path.read_text())}</article>").blocks
        shown = pages["index.html" if path.stem == "index" else f"{path.stem}/index.html"].blocks
        assert shown == expected, path.name

    # Links to files of the repository lead to pages of the site.
    assert 'href="../source/examples/grpo_numpy.py/"' in texts["trainers/index.html"]
    assert "advantages" in texts["source/examples/grpo_numpy.py/index.html"]
    assert "test_data.jsonl" in texts["source/examples/calculator/index.html"]
    assert 'href="../../trainers/"' in texts["source/README.md/index.html"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("[gone](agents.md#gone)", "does not contain an anchor '#gone'"),
        ("[gone](../examples/gone.py)", "which is no file of the repository"),
    ],
)
def test_a_broken_link_stops_the_build(link, message, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Start\n\n{link}\n")
    (docs / "agents.md").write_text("# Agents\n")
    config = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(config.replace("scripts/", f"{ROOT}/scripts/"))
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode == 1
    assert message in done.stdout + done.stderr
