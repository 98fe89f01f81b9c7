"""Values of configurations from a TOML file, the environment, the command line and the request (rows 18 to 20)."""

import pytest
from pydantic import ConfigDict

from osmosis_grpc.agent.config_sources import ConfigSources, configured
from osmosis_grpc.agent.loader import LoadError, load_object
from osmosis_grpc.agent.workflow import config_class
from osmosis_grpc.agent.workflow_files import FoundWorkflow
from osmosis_grpc.agent.workflow_toml import WorkflowToml, WorkflowTomlError
from osmosis_grpc.cli.options import AgentSources
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.rollout import AgentWorkflow, AgentWorkflowConfig, Grader, GraderConfig
from osmosis_grpc.serve.options import config_sources
from osmosis_grpc.settings.command_line import Line
from osmosis_grpc.settings.settings import command_settings
from osmosis_grpc.testing import run_rollout
from tests.agent.workflows.made import QUESTION, Asks, Ones

SPEC = "tests.agent.workflows.made:Ones"


class Config(AgentWorkflowConfig):
    name: str = "mine"
    max_iterations: int = 10
    label: str = ""
    tool: object = None


class Strict(Config):
    model_config = ConfigDict(extra="forbid")


class Threshold(GraderConfig):
    name: str = "grader"
    threshold: float = 0.5


class Configured(Asks, AgentWorkflow[Config]):
    pass


class Graded(Ones, Grader[Threshold]):
    pass


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write


def one(path, config=None, workflow=Configured, **sources):
    sources = ConfigSources(toml=WorkflowToml.read(path), **sources)
    found = FoundWorkflow(workflow=workflow, config=config, grader=Graded, grader_config=None)
    (made,) = configured([found], sources, load_object)
    return made


@pytest.mark.row("SDK 18")
def test_a_value_of_the_file_reaches_the_configuration(toml):
    tool = object()
    path = toml(
        "[workflow.config]\nmax_iterations = 20\nmore = [1]\n[workflow.config.concurrency]\nmax_concurrent = 3\n"
    )
    config = one(path, Config(tool=tool)).config
    assert (config.max_iterations, config.more, config.concurrency.max_concurrent) == (20, [1], 3)
    assert config.tool is tool


@pytest.mark.row("SDK 18")
def test_an_unknown_key_is_refused_where_the_class_forbids_it(toml):
    path = toml("[workflow.config]\nother = 20\n")
    assert one(path, Config()).config.other == 20
    with pytest.raises(ValueError, match=rf"^{path}: \[workflow.config\]: other: Extra inputs are not permitted$"):
        one(path, Strict())


@pytest.mark.parametrize("config", [Config(), None])
@pytest.mark.row("SDK 18")
def test_an_unknown_key_that_looks_like_a_field_is_refused(toml, config):
    path = toml("[workflow.config]\nmax_iteration = 20\n")
    problem = "max_iteration: Config has no field of this name; is max_iterations meant?"
    with pytest.raises(ValueError, match="max_iteration") as raised:
        one(path, config)
    assert str(raised.value) == f"{path}: [workflow.config]: {problem}"
    assert one(path, Config(max_iteration=3)).config.max_iteration == 20  # the code has it
    with pytest.raises(ValueError, match=r"treshold: .* is threshold meant"):
        one(toml(""), grader=("treshold=1",))


@pytest.mark.row("SDK 18")
def test_a_wrong_value_of_the_environment_names_the_variable(toml, monkeypatch):
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_WORKFLOW_CONFIG", "max_iterations=many")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_GRADER", SPEC)
    found, variable = FoundWorkflow(workflow=Configured, config=Config()), "OSMOSIS_ROLLOUT_SERVER_WORKFLOW_CONFIG"
    for given in ([], ["label=x"]):
        line = Line("serve", {"OSMOSIS_ROLLOUT_SERVER_WORKFLOW_CONFIG": given})
        served = config_sources(command_settings(line).server, line)
        for sources in (served, AgentSources(workflow_config=given).sources()):
            with pytest.raises(ValueError, match=f"^{variable}: max_iterations: Input should be a valid integer"):
                configured([found], sources, load_object)
            assert sources.grader_class_place == "OSMOSIS_ROLLOUT_SERVER_GRADER"
    with pytest.raises(ValueError, match=r"^--workflow-config: max_iterations: "):
        configured([found], AgentSources(workflow_config=["max_iterations=few"]).sources(), load_object)
    made = configured([found], AgentSources(workflow_config=["max_iterations=3"], grader=SPEC).sources(), load_object)
    assert (made[0].config.max_iterations, made[0].grader) == (3, Ones)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("grpc_prot = 1", "[server] has the unknown key grpc_prot; is grpc_port meant?"),
        ("grpc_port = 'many'", "[server] grpc_port: 'many' is not a whole number"),
    ],
)
@pytest.mark.row("SDK 19")
def test_the_commands_that_serve_nothing_check_the_table_of_the_server(toml, line, problem):
    path = toml(f"[server]\n{line}\n")
    with pytest.raises(LoadError, match=r"run\.toml: ") as raised:
        AgentSources(config=str(path)).sources()
    assert problem in str(raised.value)


@pytest.mark.row("SDK 18")
def test_a_value_of_a_wrong_type_names_the_key_and_the_file(toml):
    path = toml('[workflow.config]\nmax_iterations = "many"\nlabel = 3\n')
    with pytest.raises(ValueError, match="max_iterations: ") as raised:
        one(path, Config())
    assert str(raised.value).startswith(f"{path}: [workflow.config]: max_iterations: Input should be a valid integer")
    assert "; label: Input should be a valid string" in str(raised.value)


@pytest.mark.row("SDK 18")
def test_the_graders_values_and_class_are_in_the_file_too(toml):
    path = toml('[grader]\nmodule = "tests.agent.workflows.made:Ones"\n[grader.config]\nname = "g"\nthreshold = 0.9\n')
    with pytest.raises(ValueError, match=r"\[grader.config\]: the code has no configuration for the values of name"):
        one(path, Config())
    made = one(toml("[grader.config]\nthreshold = 0.9\n"), Config())
    assert (made.grader_config, made.grader) == (Threshold(threshold=0.9), Graded)
    assert one(toml('[grader]\nmodule = "tests.agent.workflows.made:Ones"\n'), Config()).grader is Ones
    with pytest.raises(ValueError, match=r"\[grader\] module: 'Ones' is not MODULE:CLASS, for example graders:Strict"):
        one(toml('[grader]\nmodule = "Ones"\n'), Config())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[workflows]\n", "the table [workflows] is unknown; the tables are [workflow], [grader], [server]"),
        ("[serve]\nentrypoint = 'a.py'\n", '[client]; name the workflow with -m FILE, or with module = ["FILE"] in'),
        ("[workflow]\nlabel = 'a'\n", "a value of the configuration belongs into [workflow.config]"),
        ("workflow = 3\n", "workflow is not a table"),
        ("[workflow]\nmax_iterations = 3\n", "the key workflow.max_iterations is unknown; the keys are config"),
        ("[workflow.other.config]\na = 3\n", "[workflow.other]: there is no workflow other; use mine"),
        ("[workflow]\nother = 3\n", "the key workflow.other is unknown; the keys are config, and NAME.config"),
        ("[grader.mine]\nclass = 'a:B'\n", "the key grader.mine.class is unknown; the keys are config, module"),
        ("[grader]\nmodule = 3\n", "grader.module is not a text MODULE:CLASS"),
        ("[workflow]\nconfig = 3\n", "workflow.config is not a table"),
        ("[workflow", "cannot be read: "),
    ],
)
@pytest.mark.row("SDK 19")
def test_unknown_tables_and_keys_are_refused_by_name(toml, text, problem):
    path = toml(text)
    with pytest.raises(WorkflowTomlError) as raised:
        one(path, Config())
    assert str(raised.value).startswith(f"{path}")
    assert problem in str(raised.value)


@pytest.mark.row("SDK 19")
def test_several_workflows_have_tables_with_their_names(toml):
    both = [FoundWorkflow(workflow=Configured, config=Config(name=name)) for name in ("a", "b")]

    def read(text):
        return configured(both, ConfigSources(toml=WorkflowToml.read(toml(text))), load_object)

    made = read("[workflow.a.config]\nmax_iterations = 1\n[workflow.b.config]\nmax_iterations = 2\n")
    assert [found.config.max_iterations for found in made] == [1, 2]
    with pytest.raises(WorkflowTomlError, match=r"2 workflows, so workflow.config needs a name: write \[workflow.a"):
        read("[workflow.config]\nmax_iterations = 1\n")


@pytest.mark.row("SDK 19")
def test_values_without_a_workflow_are_refused(toml):
    sources = ConfigSources(toml=WorkflowToml.read(toml("[workflow.config]\na = 1\n")))
    with pytest.raises(WorkflowTomlError, match=r"\[workflow\]: there is no workflow to use it for"):
        configured([], sources, load_object)
    with pytest.raises(ValueError, match=r"^--grader: there is no workflow to use it for"):
        configured([], ConfigSources(grader_class="a:B"), load_object)


@pytest.mark.row("SDK 20")
def test_without_an_instance_the_class_in_the_brackets_is_made(toml):
    assert config_class(Configured, AgentWorkflow) is Config
    assert config_class(Asks, AgentWorkflow) is None
    path = toml("[workflow.config]\nmax_iterations = 20\n")
    assert one(path).config == Config(max_iterations=20)
    with pytest.raises(ValueError, match="the code has no configuration for the values of max_iterations"):
        one(path, workflow=Asks)
    assert one(toml("")).config is None


async def seen_by_the_workflow(found, **request):
    class Sees(found.workflow):
        async def run(self, ctx):
            seen.append(ctx.config)
            await super().run(ctx)

    seen = []
    found = FoundWorkflow(workflow=Sees, config=found.config)
    assert (await run_rollout(found.runnable(), EchoPolicy(), QUESTION, **request)).failure is None
    return seen[0]


@pytest.mark.row("SDK 18")
async def test_the_request_wins_over_line_environment_file_and_code(toml, monkeypatch):
    path = toml(
        """
        [server]
        max_concurrent_rollouts = 7
        record_ttl_seconds = 120
        drain_timeout = 3
        [workflow.config]
        file = 1
        environment = 1
        line = 1
        request = 1
        """
    )
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_WORKFLOW_CONFIG", "environment=2 line=2 request=2 text=2 label=2")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_RECORD_TTL_SECONDS", "240")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_DRAIN_TIMEOUT", "4")
    given = {
        "OSMOSIS_ROLLOUT_SERVER_CONFIG_FILE": str(path),
        "OSMOSIS_ROLLOUT_SERVER_WORKFLOW_CONFIG": ["line=3", "request=3"],
    }
    settings = command_settings(Line("serve", given | {"OSMOSIS_ROLLOUT_SERVER_DRAIN_TIMEOUT": "5"}))
    assert settings.server.max_concurrent_rollouts == 7
    assert (settings.server.record_ttl_seconds, settings.server.drain_timeout) == (240, 5)
    code = Config(code=0, file=0, environment=0, line=0, request=0)
    (found,) = configured(
        [FoundWorkflow(workflow=Configured, config=code)], config_sources(settings.server), load_object
    )
    config = await seen_by_the_workflow(found, metadata={"workflow_config": {"request": 4}})
    assert [config.code, config.file, config.environment, config.line, config.request] == [0, 1, 2, 3, 4]
    assert (config.text, config.label) == (2, "2")  # a text where the class has a str
    assert (await seen_by_the_workflow(found)).request == 3


@pytest.mark.row("SDK 18")
async def test_wrong_values_of_a_request_refuse_it_by_name():
    found = FoundWorkflow(workflow=Configured, config=Config())
    for given, problem in {
        "many": r"workflow_config: is a str, not an object",
        ("max_iterations", "many"): r"workflow_config.max_iterations: Input should be a valid integer",
    }.items():
        values = dict([given]) if isinstance(given, tuple) else given
        with pytest.raises(InvalidArgument, match=rf"spec.metadata_json.{problem}"):
            await run_rollout(found.runnable(), EchoPolicy(), QUESTION, metadata={"workflow_config": values})
    without = FoundWorkflow(workflow=Asks)
    with pytest.raises(InvalidArgument, match="the workflow Asks has no configuration"):
        await run_rollout(without.runnable(), EchoPolicy(), QUESTION, metadata={"workflow_config": {"a": 1}})
    with pytest.raises(InvalidArgument, match=r"workflow_config.max_iteration: .* is max_iterations meant\?"):
        metadata = {"workflow_config": {"max_iteration": 1}}
        await run_rollout(found.runnable(), EchoPolicy(), QUESTION, metadata=metadata)
    generic = FoundWorkflow(workflow=Configured)
    config = await seen_by_the_workflow(generic, metadata={"workflow_config": {"max_iterations": 3}})
    assert config == Config(max_iterations=3)


@pytest.mark.row("SDK 18")
async def test_a_request_sets_values_of_the_graders_configuration():
    class Reads(Grader[Threshold]):
        async def grade(self, ctx):
            ctx.set_sample_reward("main", self.config.threshold)

    async def run(grader, given, config=None):
        found = FoundWorkflow(workflow=Configured, grader=grader, grader_config=config)
        return await run_rollout(found.runnable(), EchoPolicy(), QUESTION, metadata={"grader_config": given})

    given, config = {"threshold": 0.25}, Threshold(threshold=0.75)
    assert [(await run(Reads, given)).reward, (await run(Reads, given, config)).reward] == [0.25, 0.25]
    assert (await run(Reads, {}, config)).reward == 0.75
    wrong = {
        "grader_config: is a str, not an object": (Reads, "many"),
        "grader_config.treshold: Threshold has no field of this name; is threshold meant?": (Reads, {"treshold": 1}),
        "grader_config: the workflow Configured has no grader": (None, given),
        "grader_config: the grader Ones has no configuration": (Ones, given),
    }
    for problem, arguments in wrong.items():
        with pytest.raises(InvalidArgument) as raised:
            await run(*arguments)
        assert f"spec.metadata_json.{problem}" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[server]\ngrpc_prot = 1\n", "[server] has the unknown key grpc_prot; is grpc_port meant?"),
        ("[server]\nconfig_file = 'a'\n", "[server] has the unknown key config_file"),
        ("[server]\ntoken = 'secret'\n", "[server] token is a secret; name its file with token_file"),
        ("[server]\ngrpc_port = 'many'\n", "[server] grpc_port: 'many' is not a whole number"),
        ("[server]\ngrpc_port = 99999\n", "[server] grpc_port: 99999 is not in the range 0 to 65535"),
    ],
)
@pytest.mark.row("SDK 19")
def test_the_table_of_the_server_names_wrong_keys_and_values(toml, text, problem):
    with pytest.raises(ValueError, match=r"run\.toml: ") as raised:
        command_settings(Line("serve", {"OSMOSIS_ROLLOUT_SERVER_CONFIG_FILE": str(toml(text))}))
    assert problem in str(raised.value)
    assert "secret'" not in str(raised.value)


def test_values_of_the_line_are_key_and_value():
    found = FoundWorkflow(workflow=Configured, config=Config())
    with pytest.raises(ValueError, match=r"^--workflow-config: 'max_iterations' is not KEY=VALUE$"):
        configured([found], ConfigSources(workflow=("max_iterations",)), load_object)
    with pytest.raises(ValueError, match=r"^--workflow-config: max_iterations: Input should be a valid integer"):
        configured([found], ConfigSources(workflow=("max_iterations=many",)), load_object)
    texts = ("max_iterations = 3", " label = a b", "description= c")
    config = configured([found], ConfigSources(workflow=texts), load_object)[0].config
    assert (config.max_iterations, config.label, config.description) == (3, "a b", " c")


def test_the_table_of_the_client_has_the_calls_over_http(toml, monkeypatch):
    monkeypatch.setenv("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES", "2")
    path = str(toml("[client]\ntimeout_seconds = 60\nmax_retries = 7\n"))
    settings = command_settings(Line("serve", {"OSMOSIS_ROLLOUT_SERVER_CONFIG_FILE": path}))
    assert (settings.client.timeout_seconds, settings.client.max_retries) == (60.0, 2)
    wrong = str(toml("[client]\nmax_retries = 11\n"))
    monkeypatch.delenv("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES")
    with pytest.raises(ValueError) as raised:
        command_settings(Line("serve", {"OSMOSIS_ROLLOUT_SERVER_CONFIG_FILE": wrong}))
    assert str(raised.value).startswith(f"{wrong}: [client] max_retries: ")
