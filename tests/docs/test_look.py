"""docs/look.md, docs/query.md and docs/control.md show what their commands print."""

import re

import pytest

from tests.docs.pages import PAGES, Reader, blocks_of


def steady(text):
    """The lines of a text without what differs in each run."""
    text = re.sub(r"\d+-\d+-\d+ \d+:\d+:\d+Z", "DATE", text)
    text = re.sub(r"version [0-9a-f]+", "version V", text)
    text = re.sub(r"\d+\.\d+ (m?s)\b( \(\d+ %\))?", r"T \1", text)
    text = re.sub(r"\d+ (tokens|prompt tokens|response tokens)", r"N \1", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "SERVER", text)
    return " ".join(text.split())


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("name", "texts"), [("docs/look.md", 2), ("docs/query.md", 4), ("docs/control.md", 4), ("docs/fork.md", 1)]
)
async def test_the_page_shows_what_its_commands_print(tmp_path, monkeypatch, name, texts):
    monkeypatch.chdir(tmp_path)
    page = PAGES[name]
    with Reader(tmp_path) as reader:
        for block in blocks_of(page):
            await reader.run(block)
    shown = re.findall(r"```text\n(.*?)```", page.read_text(), re.S)
    assert len(shown) == texts
    for text in shown:
        assert any(steady(text) in steady(printed) for printed in reader.output), text
