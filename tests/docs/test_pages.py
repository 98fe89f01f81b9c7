"""Every block of a page runs, in order, in an empty folder."""

import pytest

from tests.docs.pages import PAGES, Reader, blocks_of

HOURS = "make test"
"""Commands that pages show in `text` blocks: they take minutes, or need a cluster."""


@pytest.mark.parametrize("name", ["docs/agents.md", "docs/trainers.md", "docs/operators.md"])
@pytest.mark.timeout(120)
async def test_the_blocks_of_a_page_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(PAGES[name])
    assert len(blocks) > 2
    with Reader(tmp_path) as reader:
        for block in blocks:
            await reader.run(block)
