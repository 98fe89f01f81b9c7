"""The OpenAI-compatible policy as a trainer uses it: its extra, its session key, aborts, and what its errors name."""

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from osmosis_grpc.policies import OpenAIPolicy
from osmosis_grpc.protocol.errors import CallError, Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import ChatRequest, Trainer, VersionSpan
from tests.callback_trainer import CallbackTrainer
from tests.http_servers import posting, url_of
from tests.processes import ROOT
from tests.waiting import until

KEY = "sk-very-secret"
QUESTION = [{"role": "user", "content": "2+3?"}]
REPLY = {"role": "assistant", "content": "#### 5"}
PATIENCE = 20.0


def choice(text="#### 5", **changes):
    message = {"role": "assistant", "content": text}
    first = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [20, 21]} | changes
    first["logprobs"] = {"content": [{"logprob": -1.0}, {"logprob": -2.0}]}
    return {"choices": [first], "prompt_token_ids": [1, 2, 3]}


class ModelServer:
    """Answers in turn with each reply, and with the last one from then on; keeps requests and connections."""

    def __init__(self, *replies):
        self.replies, self.seen, self.connections = list(replies), [], set()

    async def handle(self, request):
        self.seen.append((request.headers.get("X-Session-ID"), await request.json()))
        self.connections.add(request.transport)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return web.json_response(reply) if isinstance(reply, dict) else web.Response(status=reply, text="no")

    @asynccontextmanager
    async def serving(self):
        async with posting({"/v1/chat/completions": self.handle}) as server:
            self.port = server.addresses[0][1]
            yield f"{url_of(server)}/v1"


@asynccontextmanager
async def agent_server(**config):
    engine = ServerConfig(**({"retry_delay": (0.01, 0.02)} | config))
    async with AgentServer([CalculatorAgent()], port=0, config=engine) as server:
        yield server.address


async def test_an_abort_is_asked_again_and_is_never_a_reply():
    half = choice("The answer i", finish_reason="abort")
    model = ModelServer(half, choice("half", finish_reason="abort", token_ids=None), choice())
    async with (
        model.serving() as url,
        agent_server() as target,
        Trainer([target], OpenAIPolicy(url, "m", version="v1")) as trainer,
    ):
        outcome = await asyncio.wait_for(trainer.rollout(rollout_id="r", messages=QUESTION, label="5"), PATIENCE)
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0)
    assert [m["content"] for m in outcome.messages if m["role"] == "assistant"] == ["#### 5"]
    assert outcome.samples["main"].segments[0].ids.tolist() == [1, 2, 3, 20, 21]
    assert [body["messages"] for _, body in model.seen] == [QUESTION] * 3, "the same chat, three times"


async def test_aborts_without_end_end_the_rollout():
    model = ModelServer(choice(finish_reason="abort"))
    async with (
        model.serving() as url,
        agent_server(trainer_grace=0.5) as target,
        Trainer([target], OpenAIPolicy(url, "m")) as trainer,
    ):
        outcome = await asyncio.wait_for(trainer.rollout(rollout_id="r", messages=QUESTION), PATIENCE)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.failure.boundary == "trainer"
    assert f"aborted the chat (POST {url}/chat/completions)" in outcome.failure.message


async def test_a_session_key_is_the_same_for_a_sample_and_another_for_another():
    model = ModelServer(choice())
    async with model.serving() as url, OpenAIPolicy(url, "m") as policy:
        for rollout_id, sample, number in (("a", "main", 1), ("a", "main", 2), ("a", "two", 1), ("ü b", "main", 1)):
            await policy(ChatRequest(rollout_id=rollout_id, sample=sample, chat_number=number, messages=QUESTION))
        await policy(ChatRequest(rollout_id="a\r\nX-Evil: 1", messages=QUESTION))
    keys = [key for key, _ in model.seen]
    assert keys == ["a/main", "a/main", "a/two", "%C3%BC%20b/main", "a%0D%0AX-Evil%3A%201/main"]


@pytest.mark.parametrize("transport", ["attach", "callbacks"])
async def test_the_trainer_opens_one_session_and_closes_it(transport):
    """No `async with` for the policy; a session that is left open is a ResourceWarning, and so an error here."""
    model = ModelServer(choice())
    async with model.serving() as url:
        policy = OpenAIPolicy(url, "m", connections=1)
        if transport == "attach":
            async with agent_server() as target, Trainer([target], policy) as trainer, Trainer([target], policy):
                await asyncio.wait_for(trainer.rollout(rollout_id="r", messages=QUESTION), PATIENCE)
                await asyncio.wait_for(trainer.rollout(rollout_id="s", messages=QUESTION), PATIENCE)
        else:
            async with CallbackTrainer(policy):
                for _ in range(2):
                    await policy(ChatRequest(rollout_id="r", messages=QUESTION))
        assert len(model.connections) == 1
        await asyncio.sleep(0)
        await until(lambda: all(transport.is_closing() for transport in model.connections))


async def test_the_trainers_version_is_kept_with_replies():
    model = ModelServer(choice())
    async with model.serving() as url, agent_server() as target, Trainer([target], OpenAIPolicy(url, "m")) as trainer:
        trainer.resume(version=12)
        outcome = await asyncio.wait_for(trainer.rollout(rollout_id="r", messages=QUESTION), PATIENCE)
    assert outcome.samples["main"].segments[0].versions == (VersionSpan("12", 2),)


@pytest.mark.parametrize("reply", [400, 401, 403, 429, 500, {"choices": []}, choice(finish_reason="abort")])
async def test_errors_name_the_url_and_never_the_key(reply):
    async with ModelServer(reply).serving() as url, OpenAIPolicy(url, "m", api_key=KEY) as policy:
        with pytest.raises(CallError) as raised:
            await policy(ChatRequest(rollout_id="r", messages=QUESTION))
    assert f"{url}/chat/completions" in str(raised.value)
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "says"),
    [(401, "answered 401"), (404, "answered 404: no"), (429, "answered 429: no"), (None, "cannot be reached")],
)
async def test_a_failed_chat_is_one_warning_of_the_trainer(caplog, status, says):
    """Those that the agent server asks again, too, and without a traceback."""
    async with ModelServer(status or 200).serving() as url:
        if status is None:
            url = url.replace(url.rpartition(":")[2], "1/v1")
        async with agent_server() as target, Trainer([target], OpenAIPolicy(url, "m", api_key=KEY)) as trainer:
            rollout = asyncio.ensure_future(trainer.rollout(rollout_id="r", messages=QUESTION))
            await until(lambda: trainer.metrics()["chats/failed"])
            rollout.cancel()
            await asyncio.wait({rollout})
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("osmosis_grpc.trainer")]
    assert lines
    assert "the policy failed at chat 1 of rollout r" in lines[0]
    assert says in lines[0]
    assert f"(POST {url}/chat/completions)" in lines[0]
    assert ("asks again" in lines[0]) == (status not in (401, 404))
    assert KEY not in caplog.text
    assert not any("Traceback" in line or "\n" in line for line in lines)


async def test_a_server_that_is_not_there_is_named():
    async with ModelServer(choice()).serving() as url:
        pass
    async with OpenAIPolicy(url, "m", api_key=KEY) as policy:
        with pytest.raises(Unavailable, match="cannot be reached") as raised:
            await policy(ChatRequest(rollout_id="r", messages=QUESTION))
    assert f"{url}/chat/completions" in str(raised.value)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000/v1", "ftp://a/v1", f"http://me:{KEY}@a/v1", f"http://a/v1?key={KEY}", f"http://a/#{KEY}"],
)
def test_a_base_url_that_is_none_or_has_a_secret_in_it(url):
    with pytest.raises(ValueError, match="base_url") as raised:
        OpenAIPolicy(url, "m")
    assert KEY not in str(raised.value)


def test_without_aiohttp_the_error_names_the_extra():
    """The trainer and its policies are imported without aiohttp, rich, fastapi and the like."""
    script = """
import json, sys
for name in ("aiohttp", "rich", "fastapi", "uvicorn", "structlog", "typer", "pydantic_settings"):
    sys.modules[name] = None
from osmosis_grpc.trainer import SyncTrainer, Trainer
from osmosis_grpc.policies import EchoPolicy, OpenAIPolicy
try:
    OpenAIPolicy("http://127.0.0.1:1/v1", "m")
except ImportError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=50)
    assert result.returncode == 0, result.stderr
    name, message = json.loads(result.stdout)
    assert name == "MissingExtraError"
    assert "[policies]" in message
