"""The policy that asks through litellm, against a server on a real socket."""

import re

import pytest

from osmosis_grpc.policies import LiteLLMPolicy
from osmosis_grpc.protocol.errors import (
    InvalidArgument,
    MissingExtraError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from osmosis_grpc.protocol.types import ChatRequest
from tests.model_server import KEY, model_server, reply

QUESTION = ChatRequest(
    rollout_id="r",
    messages=[{"role": "user", "content": "Hi"}],
    params={"temperature": 0.5},
    tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
)


def test_litellm_without_its_extra_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "litellm", None)
    with pytest.raises(MissingExtraError, match=r"litellm:openai/x needs the extra 'litellm': pip install"):
        LiteLLMPolicy("openai/x")


@pytest.mark.adapters
@pytest.mark.filterwarnings("ignore")  # those of litellm
async def test_litellm_asks_the_provider_and_knows_the_price():
    with model_server(lambda body: reply(None, ("f", {"a": 1}))) as server:
        response = await LiteLLMPolicy("openai/gpt-4o-mini", api_key=KEY, base_url=server.url)(QUESTION)
    (asked,) = server.asked
    assert (asked["model"], asked["temperature"], asked["messages"]) == ("gpt-4o-mini", 0.5, list(QUESTION.messages))
    assert asked["tools"] == list(QUESTION.tools)
    (call,) = response.message["tool_calls"]
    assert (call["function"]["name"], response.finish_reason) == ("f", "tool_calls")
    assert response.usage["prompt_tokens"] == 1000
    assert response.extra["cost"] == pytest.approx((1000 * 0.15 + 500 * 0.6) / 1_000_000)
    assert response.tokens is None


@pytest.mark.adapters
@pytest.mark.filterwarnings("ignore")  # those of litellm
@pytest.mark.parametrize(
    ("status", "kind"), [(401, Unauthenticated), (429, ResourceExhausted), (500, Unavailable), (400, InvalidArgument)]
)
async def test_an_error_of_litellm_is_an_error_of_its_kind(status, kind):
    with (
        model_server(lambda body: (status, {"error": {"message": f"bad {KEY}"}})) as server,
        pytest.raises(kind, match=re.escape("openai/gpt-4o-mini")) as error,
    ):
        await LiteLLMPolicy("openai/gpt-4o-mini", api_key=KEY, base_url=server.url)(QUESTION)
    assert KEY not in str(error.value)


@pytest.mark.adapters
@pytest.mark.filterwarnings("ignore")  # those of litellm
async def test_a_provider_that_is_down_is_unavailable():
    with model_server(lambda body: reply("Hi")) as server:
        pass
    with pytest.raises(Unavailable):
        await LiteLLMPolicy("openai/gpt-4o-mini", api_key=KEY, base_url=server.url)(QUESTION)
