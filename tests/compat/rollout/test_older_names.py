"""Every name that the Osmosis SDK promised works, or raises one sentence that says what to write instead."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_grpc.compat.older_paths import names_of, recorded, sentence_of, source_of
from osmosis_grpc.protocol.errors import MissingExtraError

MODULES = sorted(module for module in recorded() if module)
NAMES = [(module, name) for module in MODULES for name in sorted(recorded()[module])]
SENTENCES = [(module, name) for module, name in NAMES if source_of(module, name) is None]


def test_the_recorded_versions_have_names():
    assert {"AgentWorkflowOutput", "LocalBackend", "RolloutAgentLoop", "OsmosisStrandsAgent"} <= {
        name for _, name in NAMES
    }
    assert len(SENTENCES) < len(NAMES) / 2


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.row("SDK S14", "SDK 1")
def test_each_name_of_a_module_works_or_has_a_sentence(module):
    opened = importlib.import_module(f"osmosis_grpc.{module}")
    for name in recorded()[module]:
        if source_of(module, name) is None:
            with pytest.raises(ImportError) as failed:
                getattr(opened, name)
            assert not isinstance(failed.value, MissingExtraError)
            assert str(failed.value) == sentence_of(module, name, opened.__name__)
        else:
            assert name in opened.__all__


@pytest.mark.parametrize(("module", "name"), SENTENCES)
def test_a_sentence_is_one_line_without_a_place_to_fill_in(module, name):
    text = sentence_of(module, name, "here")
    assert text.startswith(f"{name} is not in here: ")
    assert "\n" not in text
    assert "{" not in text.replace("{...}", "").replace("{'mounts': }", "")


@pytest.mark.parametrize("name", sorted(recorded()[""] - {"__version__"}))
def test_each_name_of_the_root_works_or_has_a_sentence(name):
    root = importlib.import_module("osmosis_grpc")
    if name in root.__all__:
        assert getattr(root, name) is not None
        return
    with pytest.raises(ImportError):
        getattr(root, name)


def test_a_module_that_no_version_had_is_missing():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("osmosis_grpc.rollout.nowhere")
    assert names_of("rollout.nowhere") == []


def test_a_private_name_is_an_attribute_error():
    with pytest.raises(AttributeError):
        exec("import osmosis_grpc.rollout.server.app as app; app._handle_rollout")


def test_the_modules_of_eval_are_there_without_an_import_before():
    program = "from osmosis_grpc.eval.rubric import RubricResult; print(RubricResult(1.0, 'good').score)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1.0\n"


def test_the_page_lists_all_names():
    page = Path(__file__).parents[3].joinpath("docs", "older-names.md").read_text()
    assert [name for _, name in NAMES if f"`{name}`" not in page] == []
