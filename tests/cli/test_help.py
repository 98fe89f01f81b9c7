"""The help of every command is fast, because it imports no unneeded library; the docs command has all pages."""

import json

import pytest
from typer.main import get_command

from osmosis_grpc.cli.commands import GROUPS, app
from osmosis_grpc.cli.docs import sections
from osmosis_grpc.protocol.types import FailureReason
from tests.cli.in_process import command
from tests.docs.test_settings import leaves
from tests.processes import ROOT, run

HEAVY = ["grpc", "google", "numpy", "fastapi", "uvicorn", "pyarrow", "litellm", "openai", "aiohttp", "rich"]
ALL = """
import json, sys
from typer.testing import CliRunner
from osmosis_grpc.cli.commands import app
answers = {}
for name in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    answers[name] = done.exit_code, done.stdout
print(json.dumps({"answers": answers, "imported": [name for name in json.loads(sys.argv[2]) if name in sys.modules]}))
"""
NAMES = ["", "ctl", *dict(leaves(get_command(app)))]


@pytest.fixture(scope="module")
def helps():
    """The help of all commands, printed by one process."""
    done = run("-c", ALL, json.dumps(NAMES), json.dumps(HEAVY))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_no_help_imports_a_heavy_library(helps):
    assert helps["imported"] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_help_fits_80_columns(helps, name):
    code, text = helps["answers"][name]
    assert code == 0
    assert text.startswith("Usage: ")
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", ["", "ctl"])
def test_a_list_of_commands_cuts_no_description(helps, name):
    commands = helps["answers"][name][1].partition("--help ")[2].splitlines()[1:]
    assert commands
    assert [line for line in commands if line.endswith("...") or line.startswith("    ")] == []


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("", "ctl", "serve")])
def test_a_help_says_the_exit_codes(helps, name):
    assert "xit code" in helps["answers"][name][1]


def test_the_first_page_has_four_groups_of_common_commands_and_names_the_others(helps):
    shown = [name for names in GROUPS.values() for name in names]
    assert (len(GROUPS), len(shown)) == (4, 16)
    text = helps["answers"][""][1]
    more = text.partition("More:\n")[2].replace(",", " ").split()
    assert sorted(shown + more) == sorted({name.split()[0] for name in NAMES if name})


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


def test_the_page_of_errors_has_each_reason():
    text = (ROOT / "docs" / "errors.md").read_text()
    assert {reason.value for reason in FailureReason} <= {each.title for each in sections("errors", text)}
