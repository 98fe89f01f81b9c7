"""Finds workflows in files and modules (rows 21 to 28 of the SDK's list)."""

import os
import py_compile
import sys

import pytest

from osmosis_grpc.agent.config_sources import ConfigSources
from osmosis_grpc.agent.loader import LoadError, load_agents, load_configured, load_object
from osmosis_grpc.agent.source_version import AgentVersion
from osmosis_grpc.agent.workflow_files import DiscoveryError
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.rollout import AgentWorkflow, Grader
from osmosis_grpc.testing import run_rollout
from tests.agent.workflows.made import QUESTION

HEAD = """
from osmosis_grpc.rollout import (
    AgentWorkflow, AgentWorkflowConfig, Grader, GraderConfig, RolloutAgentLoop, get_rollout_context
)
"""
WORKFLOW = """
class Mine(AgentWorkflow):
    async def run(self, ctx):
        await get_rollout_context().chat(ctx.prompt)
"""
GRADER = """
class Ones(Grader):
    async def grade(self, ctx):
        for name in ctx.samples:
            ctx.set_sample_reward(name, 1.0)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes files below the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def write(path, source):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(HEAD + source)
        return path

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def found(spec):
    (item,) = load_configured([spec])
    return item


@pytest.mark.row("SDK 21")
async def test_exactly_one_workflow_is_found_and_runs(write):
    write("rollouts/one/entry.py", WORKFLOW + GRADER)
    (agent,) = load_agents(["rollouts/one/entry.py"])
    assert agent.name == "Mine"
    assert (await run_rollout(agent, EchoPolicy(), QUESTION, label="x")).reward == 1.0


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "No AgentWorkflow subclass found in 'entry.py'"),
        (
            WORKFLOW + WORKFLOW.replace("Mine", "Another"),
            "Multiple AgentWorkflow subclasses found in 'entry.py': Another, Mine; keep only one in this file",
        ),
    ],
    ids=["none", "two"],
)
@pytest.mark.row("SDK 22")
def test_none_and_several_are_refused(write, source, problem):
    with pytest.raises(LoadError, match=f"^{problem}$"):
        load_configured([write("entry.py", source)])


@pytest.mark.row("SDK 22")
def test_a_file_with_agent_loops_says_how_to_name_one(write):
    loop = "class Loop(RolloutAgentLoop):\n    name = 'l'\n    async def run(self, ctx): ...\n"
    with pytest.raises(LoadError, match=r"'loops/entry.py'; it has an agent loop: name it as loops.entry:Loop$"):
        load_configured([write("loops/entry.py", loop)])
    with pytest.raises(LoadError, match=r"name it as more.entry:the_loop$"):
        load_configured([write("more/entry.py", f"{loop}the_loop = Loop()\n")])


def test_a_module_with_a_similar_name_is_asked_for(write):
    write("entry.py", WORKFLOW)
    write("package/server.py", WORKFLOW)
    for spec, meant in (("entri:Mine", "entry"), ("package.sever:Mine", "package.server")):
        with pytest.raises(LoadError, match=rf"do you mean {meant}\?$"):
            load_configured([spec])


@pytest.mark.row("SDK 23")
def test_an_alias_counts_once_and_an_imported_class_counts(write):
    write("siblings/base.py", WORKFLOW)
    write("siblings/entry.py", "from .base import Mine\nAlias = Mine\n")
    assert found("siblings/entry.py").workflow.__name__ == "Mine"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("nowhere/entry.py", "there is no folder 'nowhere' in "),
        ("here/other.py", "there is no file 'here/other.py' in "),
        ("{folder}/here/entry.py", "is absolute; name the file by its path below "),
        ("here/entry.txt", "'here/entry.txt' does not end in .py"),
        ("here/../../entry.py", "is outside of "),
    ],
    ids=["folder", "file", "absolute", "ending", "escape"],
)
@pytest.mark.row("SDK 24")
def test_wrong_paths_have_five_errors(write, tmp_path, monkeypatch, spec, problem):
    write("work/here/entry.py", WORKFLOW)
    write("work/here/entry.txt", "")
    write("entry.py", WORKFLOW)
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(LoadError) as raised:
        load_configured([spec.format(folder=tmp_path)])
    assert problem in str(raised.value)


@pytest.mark.row("SDK 24")
def test_an_error_of_the_file_has_its_line(write):
    with pytest.raises(LoadError, match=r"^entry.py: ModuleNotFoundError: No module named 'numpi'; .*entry.py:5$"):
        load_configured([write("entry.py", "import numpi\n")])


@pytest.mark.parametrize("line", ["from .tools import TEXT", "from tools import TEXT"], ids=["relative", "plain"])
@pytest.mark.row("SDK 25")
def test_modules_of_equal_names_do_not_collide(write, line):
    for name in ("a", "b"):
        write(f"{name}/tools.py", f"TEXT = {name!r}\n")
        write(f"{name}/entry.py", f"{line}\n{WORKFLOW.replace('Mine', name.upper())}    text = TEXT\n")
    for name in ("a", "b", "a"):
        assert found(f"{name}/entry.py").workflow.text == name
    agents = load_agents(["a/entry.py", "b/entry.py"])
    assert [agent.name for agent in agents] == ["A", "B"]


@pytest.mark.parametrize("line", ["from .tools import TEXT", "from tools import TEXT"], ids=["relative", "plain"])
@pytest.mark.row("SDK 25")
def test_loading_again_sees_new_code(write, line):
    write("a/entry.py", f"{line}\n{WORKFLOW}    text = TEXT\n")
    versions = []
    for text in ("one", "two"):
        write("a/tools.py", f"TEXT = {text!r}\n")
        workflow = found("a/entry.py").workflow
        assert workflow.text == text
        versions.append(AgentVersion.of(workflow))
    assert versions[0].digest != versions[1].digest
    assert set(versions[0].parts) >= {"entry.py", "tools.py"}


@pytest.mark.row("SDK 26")
def test_two_configurations_are_refused_by_name(write):
    two = WORKFLOW + "b = AgentWorkflowConfig(name='b')\na = AgentWorkflowConfig(name='a')\n"
    with pytest.raises(LoadError, match=r"^Multiple AgentWorkflowConfig instances found in 'entry.py': a, b; keep"):
        load_configured([write("entry.py", two)])


@pytest.mark.row("SDK 26")
def test_the_configuration_names_the_workflow_and_an_alias_counts_once(write):
    one = WORKFLOW + "config = AgentWorkflowConfig(name='mine')\nalias = config\n"
    (agent,) = load_agents([write("entry.py", one)])
    assert (agent.name, agent.config.name) == ("mine", "mine")


@pytest.mark.row("SDK 27")
def test_the_grader_is_that_of_the_file(write):
    write("none.py", WORKFLOW)
    write("one.py", WORKFLOW + GRADER + "config = GraderConfig(name='g')\n")
    write("two.py", WORKFLOW + GRADER + GRADER.replace("Ones", "More"))
    assert (found("none.py").grader, found("none.py").grader_config) == (None, None)
    assert (found("one.py").grader.__name__, found("one.py").grader_config.name) == ("Ones", "g")
    with pytest.raises(LoadError, match=r"^Multiple Grader subclasses found in 'two.py': More, Ones; keep only one"):
        load_configured(["two.py"])


@pytest.mark.row("SDK 28")
def test_another_grader_replaces_that_of_the_file(write):
    write("entry.py", WORKFLOW + GRADER)
    write("others.py", GRADER.replace("Ones", "Strict") + "function = print\n")
    (item,) = load_configured(["entry.py"], ConfigSources(grader_class="others:Strict"))
    assert issubclass(item.grader, Grader)
    assert (item.grader.__name__, item.grader_config) == ("Strict", None)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    {
        "others:AgentWorkflow": "others:AgentWorkflow is not a subclass of Grader: it is AgentWorkflow",
        "others:function": "others:function is not a subclass of Grader: it is a builtin_function_or_method",
        "others:None_": "others has no attribute 'None_'",
        "others": "--grader: 'others' is not MODULE:CLASS, for example graders:Strict",
    }.items(),
)
@pytest.mark.row("SDK 28")
def test_what_is_no_grader_is_refused(write, wrong, problem):
    write("entry.py", WORKFLOW + GRADER)
    write("others.py", GRADER + "function = print\n")
    with pytest.raises(LoadError, match=f"^{problem}"):
        load_configured(["entry.py"], ConfigSources(grader_class=wrong))


@pytest.mark.row("SDK 28")
def test_another_grader_has_the_configuration_of_its_own_module(write):
    write("entry.py", WORKFLOW + GRADER + "config = GraderConfig(name='of the file')\n")
    own = "class Own(GraderConfig):\n    name: str = 'own'\n    word: str = ''\n"
    write("instance.py", GRADER + own + "own = Own()\n")
    write("typed.py", own + GRADER.replace("(Grader)", "(Grader[Own])"))
    write("plain.py", GRADER)
    given = {"instance:Ones": "Own 43", "typed:Ones": "Own 43", "plain:Ones": "GraderConfig 43"}
    for name, wanted in given.items():
        (item,) = load_configured(["entry.py"], ConfigSources(grader_class=name, grader=("word=43",)))
        assert f"{type(item.grader_config).__name__} {item.grader_config.word}" == wanted
        assert type(item.grader_config.word) is (int if name == "plain:Ones" else str)


@pytest.mark.parametrize("spec", ["package_of_mine.work", "package_of_mine.work:Mine"])
def test_a_module_and_a_class_lead_to_the_workflow_too(write, spec):
    write("package_of_mine/__init__.py", "")
    write("package_of_mine/work.py", WORKFLOW + GRADER)
    item = found(spec)
    assert issubclass(item.workflow, AgentWorkflow)
    assert item.grader.__name__ == "Ones"


def test_a_module_without_a_workflow_is_refused():
    with pytest.raises(LoadError, match=r"^'json' is not MODULE:ATTRIBUTE, and has no workflow: No AgentWorkflow sub"):
        load_configured(["json"])
    assert issubclass(DiscoveryError, ValueError)


def test_a_class_of_a_module_with_several_workflows_can_be_named(write):
    write("several.py", WORKFLOW + WORKFLOW.replace("Mine", "Other"))
    assert [agent.name for agent in load_agents(["several:Mine", "several:Other"])] == ["Mine", "Other"]
    with pytest.raises(LoadError, match=r"^two agent loops are named Mine$"):
        load_agents(["several:Mine", "several:Mine"])
    with pytest.raises(LoadError, match=r"^several has no attribute 'Mime'; it has: Mine, Other \("):
        load_agents(["several:Mime"])


def test_an_error_that_names_an_extra_ends_with_its_place_after_the_command(write):
    write(
        "lacks.py",
        "from osmosis_grpc.protocol.errors import MissingExtraError\nraise MissingExtraError('It', 'strands')\n",
    )
    with pytest.raises(
        LoadError, match=r"It needs the extra 'strands': pip install .+; it is imported at \S+lacks.py:\d+$"
    ):
        load_agents(["lacks.py"])


def test_a_named_class_gets_the_configuration_of_its_own_class(write):
    source = ""
    for name in ("A", "B"):
        source += f"class {name}Config(AgentWorkflowConfig):\n    name: str = 'the {name}'\n"
        source += WORKFLOW.replace("Mine(AgentWorkflow)", f"{name}(AgentWorkflow[{name}Config])")
        source += f"{name.lower()} = {name}Config()\n"
    write("pairs.py", source)
    assert [agent.name for agent in load_agents(["pairs:A", "pairs:B"])] == ["the A", "the B"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder of a user. Its modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def edited_at_once(path, old, new):
    """Compile a source, and write one of equal length in the same second."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(old)
    py_compile.compile(str(path))
    time = path.stat().st_mtime_ns
    path.write_text(new)
    os.utime(path, ns=(time, time))


@pytest.mark.parametrize("module", ["edited_agent", "edited_package.inner"])
def test_a_module_that_was_edited_within_a_second_is_read_again(folder, module):
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    edited_at_once(path, "X = 1\n", "X = 2\n")
    assert load_object(f"{module}:X") == 2


def test_an_old_compiled_file_stays_in_use(folder):
    path = folder / "settled_agent.py"
    path.write_text("X = 1\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    compiled = py_compile.compile(str(path))
    inode = os.stat(compiled).st_ino
    assert load_object("settled_agent:X") == 1
    assert os.stat(compiled).st_ino == inode
