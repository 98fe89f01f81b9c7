"""docs/conformance.md says what the suite has, and its commands run; docs/write-a-trainer.md names cases that exist."""

import re

import pytest

from osmosis_grpc.testing.conformance import patterns, server_steps, trainer_steps
from osmosis_grpc.testing.conformance.cases import load
from osmosis_grpc.testing.conformance.server_session import KINDS as SERVER
from osmosis_grpc.testing.conformance.trainer_session import KINDS as TRAINER
from tests.conformance.mutants import faults
from tests.docs.pages import Reader, blocks_of
from tests.processes import ROOT

PAGE = ROOT / "docs" / "conformance.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_names_every_kind_step_and_operator():
    names = {*SERVER, *TRAINER, *server_steps.VERBS, *trainer_steps.VERBS}
    assert not sorted(name for name in names if f"`{name}`" not in TEXT)
    assert not sorted(name for name in patterns.OPERATORS if f"{{{name}:" not in TEXT)


def test_the_page_has_the_number_of_faults():
    assert f"plants {len(faults.SERVER) + len(faults.TRAINER)} faults" in TEXT


def test_a_trainers_author_finds_the_cases_that_the_page_names():
    page = (ROOT / "docs" / "write-a-trainer.md").read_text(encoding="utf-8")
    table = page[page.index("| rule of this page | case |") :]
    named = set(re.findall(r"`([a-z0-9-]+-[a-z0-9-]+|goodbye)`", table))
    assert len(named) > 25
    assert not named - {case.name for case in load("trainer", TRAINER)}


@pytest.mark.conformance
@pytest.mark.timeout(120)
async def test_the_commands_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Reader(tmp_path) as reader:
        for block in blocks_of(PAGE):
            await reader.run(block, timeout=60)
    printed = "".join(reader.output)
    assert "1 case in" in printed
    assert "3 cases in" in printed
