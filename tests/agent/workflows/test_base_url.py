"""The base URL of a rollout: ctx.chat_completions_url and ctx.api_key."""

import asyncio
import urllib.error
from typing import ClassVar

import pytest

from osmosis_grpc.network.http.server import Uvicorn
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.protocol.errors import RolloutEndedError
from osmosis_grpc.protocol.types import ChatPurpose
from osmosis_grpc.rollout import AgentWorkflow, Grader, RolloutContext, WorkflowRunnable, get_rollout_context
from osmosis_grpc.testing import run_rollout
from tests.agent.workflows.made import post
from tests.waiting import until

QUESTION = [{"role": "user", "content": "hello"}]


class OverHttp(AgentWorkflow):
    seen: ClassVar = []

    async def run(self, ctx):
        rollout = get_rollout_context()
        self.seen.append((rollout.chat_completions_url, rollout.api_key))
        assert rollout.api_key not in repr(rollout)
        assert await asyncio.to_thread(post, rollout.chat_completions_url, rollout.api_key, "over-http") == "hello"


@pytest.mark.row("SDK 34")
async def test_a_rollout_has_a_base_url_and_a_key_of_its_own():
    for _ in range(2):
        outcome = await run_rollout(OverHttp, EchoPolicy(), QUESTION)
        assert outcome.failure is None
        assert list(outcome.samples) == ["over-http"]
    (first, key), (_, other) = OverHttp.seen
    assert key != other
    with pytest.raises(urllib.error.URLError):  # the server ends with its last rollout
        await asyncio.to_thread(post, first, key, "late")


@pytest.mark.row("SDK 34")
async def test_a_base_url_whose_server_fails_serves_again_at_the_same_port(monkeypatch):
    main_loop, failures = Uvicorn.main_loop, [OSError("the first run fails")]

    async def fails_once(server):
        if failures:
            raise failures.pop()
        await main_loop(server)

    class Patient(AgentWorkflow):
        async def run(self, ctx):
            rollout = get_rollout_context()
            url = rollout.chat_completions_url
            await until(lambda: not failures)
            while True:
                try:
                    assert await asyncio.to_thread(post, url, rollout.api_key, "main") == "hello"
                except OSError:
                    await asyncio.sleep(0.01)  # the port is closed until the next run
                else:
                    break

    monkeypatch.setattr(Uvicorn, "main_loop", fails_once)
    outcome = await asyncio.wait_for(run_rollout(Patient, EchoPolicy(), QUESTION), 20)
    assert (outcome.failure, list(outcome.samples)) == (None, ["main"])


@pytest.mark.row("SDK 34")
def test_without_a_rollout_the_variables_fill_the_blanks(monkeypatch):
    assert RolloutContext().chat_completions_url == RolloutContext().api_key == RolloutContext().rollout_id == ""
    monkeypatch.setenv("OSMOSIS_CHAT_COMPLETIONS_URL", "http://trainer/v1")
    monkeypatch.setenv("OSMOSIS_API_KEY", "from-environment")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_ID", "r-1")
    context = RolloutContext()
    assert (context.chat_completions_url, context.api_key) == ("http://trainer/v1", "from-environment")
    assert context.rollout_id == context.request.rollout_id == "r-1"
    given = RolloutContext(chat_completions_url="http://other", api_key="given", rollout_id="r-2")
    assert (given.chat_completions_url, given.api_key, given.rollout_id) == ("http://other", "given", "r-2")
    assert "given" not in repr(given)


@pytest.mark.row("SDK 64")
async def test_the_base_url_of_a_grader_is_another_one_and_its_chats_are_for_judging():
    seen, contexts = [], []

    class Asks(AgentWorkflow):
        async def run(self, ctx):
            rollout = get_rollout_context()
            contexts.append(rollout)
            await asyncio.to_thread(post, rollout.chat_completions_url, rollout.api_key, "main")

    class Judge(Grader):
        async def grade(self, ctx):
            rollout = get_rollout_context()
            contexts.append(rollout)
            await asyncio.to_thread(post, rollout.chat_completions_url, rollout.api_key, "judge")
            ctx.set_sample_reward("main", 1.0)

    async def policy(request):
        seen.append((request.sample, request.purpose))
        return await EchoPolicy()(request)

    outcome = await run_rollout(WorkflowRunnable(Asks, None, Judge), policy, QUESTION, label="x")
    assert (outcome.failure, list(outcome.samples)) == (None, ["main"])
    assert seen == [("main", ChatPurpose.POLICY), ("judge", ChatPurpose.JUDGE)]
    assert contexts[0].api_key != contexts[1].api_key
    fresh = contexts[1].for_grader()
    with pytest.raises(RolloutEndedError):
        fresh.chat_completions_url
