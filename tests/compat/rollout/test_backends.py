"""The scaffold of the SDK's 0.3.8: a backend, a server, a workflow with one sample, and its grader."""

import asyncio
from contextlib import asynccontextmanager
from typing import ClassVar

import aiohttp
import pytest

from osmosis_grpc.network.http.server import HttpServer
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.rollout.agent_workflow import AgentWorkflow
from osmosis_grpc.rollout.backend import ExecutionBackend
from osmosis_grpc.rollout.backend.harbor import HarborBackend, TaskMode
from osmosis_grpc.rollout.backend.local import LocalBackend
from osmosis_grpc.rollout.context import AgentWorkflowContext, GraderContext, SampleSource, get_rollout_context
from osmosis_grpc.rollout.grader import Grader
from osmosis_grpc.rollout.server import create_rollout_server
from osmosis_grpc.rollout.types import AgentWorkflowConfig, AgentWorkflowOutput, ConcurrencyConfig, RolloutSample
from osmosis_grpc.testing import run_rollout
from tests.legacy.polling_client import PollingClient

QUESTION = [{"role": "user", "content": "What is 2 * 3?"}]
OWN = [{"role": "user", "content": "in my own format"}]


class Posts(AgentWorkflow):
    """Asks at the base URL over HTTP."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = get_rollout_context()
        headers = {"Authorization": f"Bearer {rollout.api_key}"}
        body = {"model": "policy", "messages": ctx.prompt}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{rollout.chat_completions_url}/chat/completions", json=body, headers=headers) as response,
        ):
            assert response.status == 200


class HasLabel(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        ctx.set_reward(float(ctx.label in str(ctx.sample.messages[-1]["content"])))


class Source(SampleSource):
    async def get_sample(self) -> RolloutSample:
        return RolloutSample(messages=OWN, metrics={"turns": 1})


class Registers(AgentWorkflow):
    """Sets a source of its own, and a second one if asked."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = get_rollout_context()
        await rollout.chat(ctx.prompt)
        rollout.set_sample_source(Source())
        if ctx.metadata.get("twice"):
            rollout.set_sample_source(Source())


def returning(value, samples=("main",)):
    """Make a workflow that asks once in each sample and returns a value."""

    class Returns(AgentWorkflow):
        async def run(self, ctx):
            for sample in samples:
                await get_rollout_context().chat(ctx.prompt, sample=sample)
            return value

    return Returns


class Keeps(Grader):
    """Keeps what it gets."""

    seen: ClassVar[list] = []

    async def grade(self, ctx):
        self.seen.append({name: list(sample.messages) for name, sample in ctx.samples.items()})
        for name in ctx.samples:
            ctx.set_sample_reward(name, 1.0)


@pytest.fixture
def seen(monkeypatch):
    monkeypatch.setattr(Keeps, "seen", [])
    return Keeps.seen


@asynccontextmanager
async def served(backend, **options):
    """Serve a backend as an entry point does. Yields HOST:PORT."""
    app = create_rollout_server(backend=backend, configure_logging=False, **options)
    async with HttpServer(app, host="127.0.0.1", port=0) as http:
        yield http.address


async def run(workflow, grader=Keeps, **request):
    backend = LocalBackend(workflow=workflow, grader=grader)
    return await run_rollout(backend.agent, EchoPolicy(), QUESTION, label="2 * 3", **request)


async def test_a_polling_trainer_gets_the_reward_of_a_backend():
    async with served(LocalBackend(workflow=Posts, grader=HasLabel)) as address, PollingClient() as client:
        result = await client.run(address)
        assert (result.status, result.sample.reward) == ("success", 1.0)
        ungraded = await client.run(address, "r2", grade=False)
        assert (ungraded.status, ungraded.sample.reward) == ("success", None)


async def test_a_key_is_required_if_there_is_one():
    async with (
        served(LocalBackend(workflow=Posts, grader=HasLabel), api_key="a-secret-key") as address,
        PollingClient(token="a-secret-key") as client,
        aiohttp.ClientSession() as stranger,
    ):
        async with stranger.post(f"http://{address}/rollout", json=client.request()) as refused:
            assert refused.status == 401
        assert (await client.run(address)).sample.reward == 1.0


async def test_the_lifespan_is_open_while_the_application_runs():
    events = []

    @asynccontextmanager
    async def lifespan(app):
        events.append("open")
        yield
        events.append("closed")

    async with served(LocalBackend(workflow=Posts), lifespan=lifespan):
        assert events == ["open"]
    assert events == ["open", "closed"]


async def test_a_backend_without_a_configuration_runs_four_rollouts_at_once():
    assert LocalBackend(workflow=Posts).max_concurrent == 4
    most = ConcurrencyConfig(max_concurrent=2)
    config = AgentWorkflowConfig(name="posts", concurrency=most)
    assert LocalBackend(workflow=Posts, workflow_config=config).max_concurrent == 2
    assert LocalBackend(workflow=Posts, workflow_config=AgentWorkflowConfig(name="posts")).max_concurrent is None


def test_classes_are_named_by_their_places():
    backend = LocalBackend(workflow=f"{__name__}:Posts", grader=f"{__name__}:HasLabel")
    assert (backend.agent.workflow, backend.agent.grader, backend.name) == (Posts, HasLabel, "Posts")
    with pytest.raises(ValueError):
        LocalBackend(workflow="Posts")
    with pytest.raises(ImportError):
        LocalBackend(workflow=f"{__name__}:Nothing")


def test_a_backend_of_its_own_is_refused_with_what_to_write():
    with pytest.raises(TypeError, match="RolloutAgentLoop"):
        create_rollout_server(backend=type("Own", (ExecutionBackend,), {})())
    with pytest.raises(TypeError):
        create_rollout_server(backend=object())
    with pytest.raises(ValueError):
        create_rollout_server(backend=LocalBackend(workflow=Posts), polling_lease_timeout_sec=1.0)


async def test_a_backend_says_how_a_test_runs_it():
    with pytest.raises(NotImplementedError, match="run_rollout"):
        await LocalBackend(workflow=Posts).execute(None)


@pytest.mark.parametrize("returned", [OWN, AgentWorkflowOutput(messages=OWN)], ids=["list", "output"])
@pytest.mark.row("SDK S16")
async def test_returned_messages_are_those_of_the_sample(returned, seen):
    outcome = await run(returning(returned))
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0)
    assert seen == [{"main": OWN}]
    assert outcome.messages[0] == QUESTION[0]  # the trainer has the recorded ones


@pytest.mark.parametrize("returned", [None, 3, "text", [1], AgentWorkflowOutput(metrics={"turns": 2})])
async def test_without_returned_messages_the_sample_has_the_recorded_ones(returned, seen):
    outcome = await run(returning(returned))
    assert outcome.status is OutcomeStatus.COMPLETED
    assert [message["role"] for message in seen[0]["main"]] == ["user", "assistant"]
    if isinstance(returned, AgentWorkflowOutput):
        assert outcome.extra_fields["samples"]["main"]["metrics"] == {"turns": 2}


async def test_an_output_for_several_samples_is_refused_and_a_list_is_ignored(seen):
    outcome = await run(returning(AgentWorkflowOutput(messages=OWN), ("first", "second")))
    assert outcome.status is OutcomeStatus.FAILED
    assert (await run(returning(OWN, ("first", "second")))).status is OutcomeStatus.COMPLETED
    assert OWN not in seen[0].values()


@pytest.mark.row("SDK S17")
async def test_a_source_has_the_messages_and_metrics_of_the_sample(seen):
    outcome = await run(Registers)
    assert outcome.extra_fields["samples"]["main"]["metrics"] == {"turns": 1}
    assert seen == [{"main": OWN}]
    assert (await run(Registers, metadata={"twice": True})).status is OutcomeStatus.FAILED


@pytest.mark.row("SDK S18")
async def test_a_context_has_its_only_sample():
    context = GraderContext(label="6", sample=RolloutSample(messages=OWN))
    context.set_reward(1)
    assert (context.sample.reward, context.samples["main"]) == (1.0, context.sample)
    assert GraderContext().sample is None
    with pytest.raises(ValueError):
        GraderContext().set_reward(1.0)
    several = GraderContext(samples={name: RolloutSample(id=name) for name in ("a", "b")})
    for use in (lambda: several.sample, lambda: several.set_reward(1.0)):
        with pytest.raises(ValueError):
            use()


@pytest.mark.row("SDK S19")
async def test_a_folder_for_files_is_made_by_its_first_use(tmp_path):
    folder = tmp_path / "artifacts"
    for context in (AgentWorkflowContext([], artifacts_dir=folder), GraderContext(artifacts_dir=folder)):
        assert context.artifacts_dir == folder
    assert folder.is_dir()
    assert GraderContext().artifacts_dir is None


def test_the_options_of_harbor_that_change_a_rollout_are_refused(tmp_path):
    backend = HarborBackend(tasks_dir=tmp_path, agent="claude-code", orchestrator=object(), max_queue_depth=3)
    assert backend.name == "claude-code"
    for wrong in (
        {"agent": None},
        {"agent": Posts},
        {"agent": "claude-code", "grader": HasLabel},
        {"agent": "claude-code", "environment_config": object()},
        {"agent": "claude-code", "task_mode": TaskMode.TEMPLATE},
        {"agent": "claude-code", "nonsense": 1},
    ):
        with pytest.raises(TypeError):
            HarborBackend(tasks_dir=tmp_path, **wrong)


async def test_twenty_rollouts_of_a_backend_keep_their_samples_apart():
    async with served(LocalBackend(workflow=Posts, grader=HasLabel)) as address, PollingClient() as client:
        results = await asyncio.gather(*(client.run(address, f"r{number}") for number in range(20)))
    assert {(result.status, result.sample.reward) for result in results} == {("success", 1.0)}
