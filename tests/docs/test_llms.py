"""llms.txt is made from the docs, and leads to all of them."""

import re

from typer.main import get_command

from osmosis_grpc.cli.commands import app
from tests.docs.test_settings import leaves
from tests.processes import ROOT

PAGE = (ROOT / "llms.txt").read_text()


def test_it_links_every_page_with_a_sentence():
    links = dict(re.findall(r"^- \[.+\]\(docs/(.+)\): (.+)$", PAGE, re.M))
    assert set(links) == {path.name for path in (ROOT / "docs").glob("*.md")}
    assert all(len(text) > 30 and text.endswith(".") for text in links.values())


def test_it_names_every_command_and_each_has_records():
    for name, command in leaves(get_command(app)):
        assert f"- `osmosis-grpc {name}`: " in PAGE
        assert any("--json" in parameter.opts for parameter in command.params), name
