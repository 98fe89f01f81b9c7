"""ARL row 13: an LLM that gives no reply ends the rollout with an error, and never becomes the text of a message."""

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig, LLMError, Retries, policy_of
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import ChatRequest, OutcomeStatus
from osmosis_grpc.testing import run_rollout

QUESTION = [{"role": "user", "content": "Hello"}]
QUICK = Retries(attempts=2, first=0.001)


class Asks(RolloutAgentLoop):
    """Asks twice."""

    name = "asks"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for _ in range(2):
            messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages)


class FailsAt:
    """Gives replies with tokens until a chat, and then raises."""

    def __init__(self, chat):
        self.chat, self.calls = chat, 0

    async def __call__(self, messages, **kwargs):
        self.calls += 1
        if len(messages) >= 2 * self.chat - 1 or self.chat == 0:
            raise ConnectionError("the model is away")
        return answer(self.request(messages), "hi")

    @staticmethod
    def request(messages):
        return ChatRequest(rollout_id="r", messages=messages)


@pytest.mark.parametrize("chat", [0, 1])
@pytest.mark.row("ARL 13")
async def test_exhausted_retries_fail_the_rollout(chat):
    function = FailsAt(chat)
    outcome = await run_rollout(Asks(), policy_of(function, QUICK), QUESTION)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.reward is None
    assert outcome.failure.boundary == "trainer"
    assert "the LLM gave no reply after 2 calls: the LLM cannot be reached" in outcome.failure.message
    assert function.calls == 2
    said = [message.get("content") for message in outcome.messages]
    assert not any("away" in str(text) for text in said)


@pytest.mark.row("ARL 13")
async def test_what_was_sampled_before_stays_as_it_is():
    async def fails_second(messages, **kwargs):
        if len(messages) > 1:
            raise ConnectionError("the model is away")
        return answer(FailsAt.request(messages), "hi")

    async def never_fails(messages, **kwargs):
        return answer(FailsAt.request(messages), "hi")

    failed = await run_rollout(Asks(), policy_of(fails_second, QUICK), QUESTION)
    good = await run_rollout(Asks(), policy_of(never_fails), QUESTION)
    [cut], whole = failed.samples["main"].segments, good.samples["main"].segments[0]
    assert cut.ids.tolist() == whole.ids.tolist()
    assert cut.mask_runs == whole.mask_runs
    assert not failed.trainable_samples()


@pytest.mark.row("ARL 13")
async def test_the_error_of_a_function_has_its_line_and_the_log_no_traceback(caplog):
    def fails(messages, **keywords):
        raise RuntimeError("no model")

    trajectory = await AgenticRollout(AgenticRolloutConfig(), fails).run("Hi")
    line = fails.__code__.co_firstlineno + 1
    assert f"raised RuntimeError: no model at tests/compat/agentic/test_llm_failures.py:{line} in" in trajectory.error
    assert trajectory.error in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.row("ARL 13")
async def test_an_agent_can_handle_the_error():
    caught = []

    class Catches(Asks):
        async def run(self, ctx):
            try:
                return await super().run(ctx)
            except LLMError as error:
                caught.append(error)
                return ctx.error(str(error))

    await run_rollout(Catches(), policy_of(FailsAt(0), QUICK), QUESTION)
    [error] = caught
    assert error.attempts == 2
    assert not error.retryable
