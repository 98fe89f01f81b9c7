"""ARL row 14: each variable of the library, and which value wins."""

import logging

import pytest

from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig, AnthropicFunction, OpenAIFunction
from osmosis_grpc.compat.agentic import config
from osmosis_grpc.compat.agentic.llm_calls import LLMError
from tests.compat.agentic.model_servers import serving
from tests.model_server import reply

QUESTION = [{"role": "user", "content": "Hello"}]
MESSAGE = {
    "type": "message",
    "content": [{"type": "text", "text": "hi"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
PROVIDERS = [
    (OpenAIFunction, "OPENAI", "/v1", reply("hi"), "Authorization", "Bearer "),
    (AnthropicFunction, "ANTHROPIC", "", MESSAGE, "x-api-key", ""),
]


@pytest.mark.parametrize(("kind", "name", "path", "body", "header", "prefix"), PROVIDERS)
@pytest.mark.row("ARL 14")
async def test_a_request_wins_over_the_configuration_and_that_over_the_environment(
    monkeypatch, kind, name, path, body, header, prefix
):
    async with serving(body) as of_env, serving(body) as of_config, serving(body) as of_request:
        monkeypatch.setenv(f"{name}_API_KEY", "key-env")
        monkeypatch.setenv(f"{name}_BASE_URL", of_env.url + path)
        llm = kind(model="of-config")
        assert await llm.generate(QUESTION) == "hi"
        llm = kind(model="of-config", api_key="key-config", base_url=of_config.url + path)
        async with llm:
            assert await llm.generate(QUESTION) == "hi"
            more = {"model": "of-request", "api_key": "key-request", "base_url": of_request.url + path}
            assert await llm.generate(QUESTION, **more) == "hi"
    seen = [(s.headers[0][header], s.bodies[0]["model"], len(s.bodies)) for s in (of_env, of_config, of_request)]
    assert seen == [
        (f"{prefix}key-env", "of-config", 1),
        (f"{prefix}key-config", "of-config", 1),
        (f"{prefix}key-request", "of-request", 1),
    ]


@pytest.mark.parametrize(("kind", "name"), [(OpenAIFunction, "OPENAI"), (AnthropicFunction, "ANTHROPIC")])
@pytest.mark.row("ARL 14")
async def test_a_missing_key_is_an_error_that_names_the_variable(monkeypatch, kind, name):
    monkeypatch.delenv(f"{name}_API_KEY", raising=False)
    monkeypatch.setenv(f"{name}_BASE_URL", "")
    with pytest.raises(LLMError, match=f"api_key: is missing; give api_key, or set {name}_API_KEY"):
        await kind(model="m")(QUESTION)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("0", False), ("", False), ("On", True)])
@pytest.mark.row("ARL 14")
def test_agentic_save_trajectories(monkeypatch, text, value):
    monkeypatch.setenv("AGENTIC_SAVE_TRAJECTORIES", text)
    assert config.save_trajectories() is value
    assert config.save_trajectories(not value) is (not value)


@pytest.mark.row("ARL 14")
def test_agentic_log_level(monkeypatch):
    monkeypatch.setenv("AGENTIC_LOG_LEVEL", "debug")
    assert config.log_level() == logging.DEBUG
    monkeypatch.delenv("AGENTIC_LOG_LEVEL")
    assert config.log_level() is None


@pytest.mark.row("ARL 14")
def test_a_rollout_sets_the_level_of_the_log(monkeypatch):
    log = logging.getLogger("osmosis_grpc")
    monkeypatch.setattr(log, "level", log.level)  # the level of before comes back
    monkeypatch.setenv("AGENTIC_LOG_LEVEL", "error")
    AgenticRollout(AgenticRolloutConfig(), lambda messages: "")
    assert log.level == logging.ERROR


@pytest.mark.row("ARL 14")
def test_a_wrong_value_names_its_variable(monkeypatch):
    monkeypatch.setenv("AGENTIC_LOG_LEVEL", "loud")
    monkeypatch.setenv("AGENTIC_SAVE_TRAJECTORIES", "perhaps")
    with pytest.raises(ValueError, match="AGENTIC_LOG_LEVEL: 'loud' is none of DEBUG"):
        config.log_level()
    with pytest.raises(ValueError, match="AGENTIC_SAVE_TRAJECTORIES: 'perhaps' is neither true nor false"):
        config.save_trajectories()
