"""The docs command: the pages are in a checkout and in a wheel, and every section has a name."""

import tomllib

import pytest

from osmosis_grpc.cli.docs import sections
from osmosis_grpc.protocol.types import FailureReason
from tests.cli.in_process import command
from tests.processes import ROOT

IN_THE_WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]


async def test_a_reason_has_a_section_without_its_neighbours():
    done = await command("docs", "agent_exception")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("### AGENT_EXCEPTION\n")
    assert "AGENT_ERROR\n" not in done.stdout


@pytest.mark.parametrize("name", ["query", "query.md"])
async def test_a_page_is_printed_whole(name):
    done = await command("docs", name)
    assert done.stdout.splitlines() == (ROOT / "docs" / "query.md").read_text().rstrip().splitlines()


async def test_without_a_topic_the_pages_are_listed():
    names = {line.split()[0] for line in (await command("docs")).stdout.splitlines()}
    assert names == {path.stem for path in (ROOT / "docs").glob("*.md")}


async def test_an_unknown_topic_names_near_ones():
    done = await command("docs", "agent_exeption")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("docs: there is no page and no heading agent_exeption; near are: agent_exception")


def test_a_comment_in_a_block_is_no_heading():
    text = "# A\n```bash\n# no\n```\n## B\nb\n"
    assert [(each.title, each.text) for each in sections("p", text)] == [("A", text.rstrip()), ("B", "## B\nb")]


def test_the_wheel_has_the_pages_that_commands_name():
    found = IN_THE_WHEEL["force-include"]
    pages = {name: path for name, path in found.items() if name.startswith("docs/")}
    assert {"docs/errors.md", "docs/query.md"} <= set(pages)
    assert all((ROOT / name).exists() and path == f"osmosis_grpc/{name}" for name, path in pages.items())
    text = (ROOT / "docs" / "errors.md").read_text()
    assert {reason.value for reason in FailureReason} <= {each.title for each in sections("errors", text)}
