"""The example's model server. The fast tests give it a small stand-in for its model; `make test-model` runs both."""

import asyncio
import itertools
import json
import re
import shlex
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from osmosis_grpc.policies import OpenAIPolicy
from osmosis_grpc.protocol.errors import CallError, ResourceExhausted, Unauthenticated
from osmosis_grpc.protocol.types import ChatRequest
from tests.processes import ROOT, run

FOLDER = ROOT / "examples" / "local_model"
PYTHON = ROOT / ".venv-model" / "bin" / "python"
KEY = "sk-canary-local"
TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "Returns a price.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
    },
}
CALL = {"id": "c", "type": "function", "function": {"name": "price", "arguments": '{"item": "bread"}'}}


@pytest.fixture
def example(monkeypatch):
    """The example's modules, imported as their program imports them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("model_server", "chat_format", "smollm2", "tool_texts")
    yield [__import__(name) for name in names]
    for name in names:
        sys.modules.pop(name)


class Characters:
    """A model whose tokens are characters, and which says what it is made with."""

    name = "characters"
    context = 2000

    def __init__(self, sampled, says):
        self._sampled = sampled
        self._says = says
        self.prompts = []
        self.may_reply = threading.Event()
        self.may_reply.set()

    def render(self, messages):
        self.prompts.append("\n".join(f"{message['role']}: {message['content']}" for message in messages))
        return list(map(ord, self.prompts[-1]))

    def text(self, ids):
        return "".join(map(chr, ids))

    def sample(self, prompt, sampling, gone):
        self.may_reply.wait(20)
        ids = list(map(ord, self._says))[: sampling.max_tokens]
        return self._sampled(ids, [-0.5] * len(ids), "stop" if len(ids) == len(self._says) else "length")


@contextmanager
def serving(example, says, **options):
    server_module, _, model_module, _ = example
    model = Characters(model_module.Sampled, says)
    with server_module.LocalModelServer(model, 0, **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield model, f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            model.may_reply.set()
            server.shutdown()
            thread.join()


async def ask(url, *messages, model="characters", key=None, tools=None, **params):
    request = ChatRequest(rollout_id="r", messages=list(messages), params=params, tools=tools or ())
    async with OpenAIPolicy(url, model, api_key=key) as policy:
        return await policy(request)


USER = {"role": "user", "content": "What does tea cost?"}


async def test_a_reply_has_ids_logprobs_and_usage(example):
    with serving(example, "4 euros") as (_, url):
        reply = await ask(url, USER)
    assert (reply.message["content"], reply.finish_reason) == ("4 euros", "stop")
    assert reply.tokens.ids.tolist() == list(map(ord, "4 euros"))
    assert reply.tokens.logprobs.tolist() == [-0.5] * 7
    assert len(reply.prompt_ids) == reply.usage["prompt_tokens"] > 0


async def test_tools_are_texts_for_the_model_and_a_call_at_the_beginning_of_its_reply_is_a_tool_call(example):
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    messages += [{"role": "tool", "tool_call_id": "c", "content": "3"}, USER]
    with serving(example, ' {"name": "price", "arguments": {"item": "tea"}}\nI look.') as (model, url):
        reply = await ask(url, *messages, tools=[TOOL])
        plain = await ask(url, USER)
    (call,) = reply.message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("price", {"item": "tea"})
    assert (reply.message["content"], reply.finish_reason) == ("I look.", "tool_calls")
    assert "system: You are a helpful assistant." in model.prompts[0]
    assert "price(item: string): Returns a price." in model.prompts[0]
    assert 'assistant: {"name": "price", "arguments": {"item": "bread"}}\nuser: Result: 3\n' in model.prompts[0]
    assert "tool_calls" not in plain.message, "without tools a reply is a text"


@pytest.mark.parametrize(
    "text", ["", "4", "[]x", "[1]", '{"name": 1, "arguments": {}}', '{"name": "price"}', "[" * 9999]
)
def test_another_reply_is_no_call(example, text):
    calls, rest = example[3].called(text)
    assert (calls, rest) == ([], text)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"model": "gpt"}, "404"),
        ({"stop": ["x"]}, "400: not supported: stop"),
        ({"n": 2}, "400: not supported"),
        ({"temperature": 3}, "400: temperature"),
        ({"max_tokens": 0}, "400: max_tokens"),
        ({"max_tokens": 2000}, "400: the maximum context length"),
    ],
)
async def test_what_the_server_cannot_do_is_refused(example, asked, status):
    with serving(example, "4") as (_, url), pytest.raises(CallError, match=f"the model server answered {status}"):
        await ask(url, USER, **asked)


async def test_a_key_is_checked(example):
    with serving(example, "4", key=KEY) as (_, url):
        for key in (None, "sk-other"):
            with pytest.raises(Unauthenticated) as error:
                await ask(url, USER, key=key)
            assert KEY not in str(error.value)
        assert (await ask(url, USER, key=KEY)).message["content"] == "4"


async def test_the_queue_is_bounded(example):
    with serving(example, "4", queue=1) as (model, url):
        model.may_reply.clear()
        asked = [asyncio.create_task(ask(url, USER)) for _ in range(4)]
        for ended in itertools.islice(asyncio.as_completed(asked), 2):
            with pytest.raises(ResourceExhausted):
                await ended
        model.may_reply.set()
        ends = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["ChatResponse"] * 2 + ["ResourceExhausted"] * 2


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="the model is not installed; run make test-model")
@pytest.mark.timeout(500)
async def test_the_page_runs_on_the_real_model(tmp_path):
    page = (ROOT / "docs" / "local-model.md").read_text()
    (tmp_path / "agent.py").write_text(re.search(r"```python\n(.*?)```", page, re.S)[1])
    (tmp_path / "data.jsonl").write_text(re.search(r'```text\n(\{"user_prompt".*?)```', page, re.S)[1])
    command = [str(PYTHON), str(FOLDER / "model_server.py"), "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        url = (await process.stdout.readline()).decode().split()[-1]
        sampled = await ask(url, USER, model="SmolLM2-135M-Instruct", seed=1, max_tokens=8)
        options = ("--model", "SmolLM2-135M-Instruct", "--base-url", url, "--temperature", "0", "--max-tokens", "40")
        done = await asyncio.to_thread(cli, tmp_path, "test", "-m", "agent:Agent", "-d", "data.jsonl", *options)
    finally:
        process.terminate()
        await process.wait()
    assert len(sampled.tokens.ids) == 8
    assert (sampled.tokens.logprobs <= 0).all()
    assert (done.returncode, "row 0  COMPLETED  reward 1  2 chats" in done.stdout) == (1, True), done.stdout
    last = shlex.split(done.stdout.splitlines()[-1])
    shown = cli(tmp_path, *last[last.index("show") :])
    assert re.search(r"the last tools, turn 1:\n.* calls .*\n +result \(.*\): Error", shown.stdout), shown.stdout
    again = cli(tmp_path, "test", "-m", "agent:Agent", "-d", "data.jsonl", "--replay", "last")
    assert (again.returncode, done.stdout.splitlines()[5][:10]) == (1, again.stdout.splitlines()[5][:10])


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="the model is not installed; run make test-model")
@pytest.mark.timeout(900)
async def test_eight_rollouts_in_process_are_trainable(tmp_path):
    command = [str(PYTHON), str(FOLDER / "rollouts.py")]
    done = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 9), done.stdout + done.stderr
    assert lines[8].startswith("8 of 8 rollouts are trainable")
    shape = (
        r"local-\w+-\d  COMPLETED  reward [01]  (1 chat|\d chats)  \d+ of \d+ tokens sampled, mean logprob -\d\.\d\d"
    )
    assert all(re.fullmatch(shape, line) for line in lines[:8]), done.stdout
    assert any("2 chats" in line for line in lines), "the model has called a tool"


def cli(folder, *arguments):
    return run("-m", "osmosis_grpc", *arguments, cwd=folder, timeout=300)
