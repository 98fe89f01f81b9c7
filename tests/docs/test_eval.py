"""docs/eval.md shows what its commands print, and names every field of the JSON."""

import json
import re

import pytest

from tests.docs.pages import PAGES, Reader, blocks_of

PAGE = PAGES["docs/eval.md"]


def steady(text):
    """A text without what differs in each run."""
    return " ".join(re.sub(r"\d+ tokens|\d+\.\d s\b", "N", text).split())


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_the_page_shows_what_the_commands_print(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Reader(tmp_path) as reader:
        for block in blocks_of(PAGE):
            await reader.run(block)
    shown = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.S)
    printed = [text for text in shown if not text.startswith("eval: ")]
    assert len(printed) == 2
    for text in printed:
        assert any(steady(text) in steady(each) for each in reader.output), text
    assert "0 annotations added, 12 known already" in reader.output[-1]
    records = [json.loads(line) for line in (tmp_path / "first" / "results.jsonl").read_text().splitlines()]
    documented = re.findall(r"`(\w+)`", PAGE.read_text() + PAGES["docs/test.md"].read_text())
    assert records[0].keys() <= set(documented)
