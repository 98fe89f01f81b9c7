"""This project's own paths are exact in the cases of the comparison, as its page says."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("openai")

from comparison.cases import CASES
from comparison.known import BY_NAME
from comparison.models import NAMES
from comparison.run import cells

pytestmark = pytest.mark.adapters


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("system", ["osmosis_native", "osmosis_base_url"])
def test_every_case_is_exact(system, model):
    verdicts = dict(cells(BY_NAME[system], model, CASES, Path(sys.executable)))
    assert {case: verdict for case, verdict in verdicts.items() if verdict.verdict != "exact"} == {}
