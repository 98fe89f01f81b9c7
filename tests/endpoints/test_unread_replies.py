"""Clients that give up, close their connection and ask again: only what was read is part of the conversation."""

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_grpc.endpoints.open_chats import Waits
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from tests.dropping import marked
from tests.endpoints.programs import USER, running
from tests.waiting import until

ASK = [USER]
MORE = {"role": "user", "content": "And 4 + 5?"}
STEPS = ("ask", "close", "reply", "tick")


class Slow:
    """A policy that answers the first question of a rollout when it is told to, and all others at once."""

    def __init__(self):
        self.open = []
        self.calls = 0

    async def __call__(self, request):
        self.calls += 1
        text = f"reply {self.calls}"
        if len(request.messages) == 1:
            turn = asyncio.get_running_loop().create_future()
            self.open.append(turn)
            try:
                await turn
            finally:
                self.open.remove(turn)
        return answer(request, text)

    def reply(self):
        """Answer the oldest open question."""
        waiting = next((turn for turn in self.open if not turn.done()), None)
        if waiting is not None:
            waiting.set_result(None)


class Client:
    """A connection to the base URL. A client that leaves has read nothing, or what came only just before it left."""

    def __init__(self, endpoint, *, stream=False, reads=False):
        self._endpoint, self._stream, self._reads = endpoint, stream, reads
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()

    async def ask(self, messages, tries=0):
        url = urlsplit(self._endpoint.base_url)
        body = json.dumps({"model": "policy", "messages": messages, "stream": self._stream}).encode()
        head = [
            f"POST {url.path}/chat/completions HTTP/1.1",
            f"host: {url.netloc}",
            f"authorization: Bearer {self._endpoint.api_key}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *([f"x-stainless-retry-count: {tries}"] if self._reads else []),
        ]
        with contextlib.suppress(OSError):  # it is connected
            await self._loop.sock_connect(self._socket, (url.hostname, url.port))
        await self._loop.sock_sendall(self._socket, "\r\n".join(head).encode() + b"\r\n\r\n" + body)

    async def text(self):
        """Return the text of the reply."""
        raw = b""
        ends = (b"[DONE]\n\n", b"0\r\n\r\n") if self._stream else (b"}",)
        while not raw.endswith(ends):
            part = await self._loop.sock_recv(self._socket, 65536)
            assert part, raw
            raw += part
        body = raw.partition(b"\r\n\r\n")[2]
        if b"application/json" in raw:
            return json.loads(body)["choices"][0]["message"]["content"]
        deltas = [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]
        return "".join(delta["choices"][0]["delta"].get("content") or "" for delta in deltas)

    def ready(self):
        """Return whether something of the reply has come. It stays unread."""
        with contextlib.suppress(BlockingIOError):
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        return False

    def leave(self):
        if self._reads:
            with contextlib.suppress(BlockingIOError):
                self._socket.recv(65536)
        self._socket.close()


async def conversation(endpoint, policy, steps, **kind):
    """Ask until a reply is read, as `steps` say, and then once more. Return the messages, and if they are `main`."""
    clients, clean = [], True

    async def ask():
        clients.append(Client(endpoint, **kind))
        await clients[-1].ask(ASK, len(clients) - 1)

    def close():
        while len(clients) > 1:
            clients.pop(0).leave()

    for step in steps:
        if step == "ask":
            await ask()
        elif step == "close":
            close()
        elif step == "reply":
            clean = clean and len(clients) < 2
            policy.reply()
        else:
            for _ in range(3):
                await asyncio.sleep(0)
    if not clients:
        await ask()
    close()
    reading = asyncio.ensure_future(clients[-1].text())
    while not reading.done():
        policy.reply()
        await asyncio.wait({reading}, timeout=0.002)
    messages = [*ASK, {"role": "assistant", "content": reading.result()}, MORE]
    await clients[-1].ask(messages)
    messages.append({"role": "assistant", "content": await clients[-1].text()})
    clients[-1].leave()
    return messages, clean


async def test_a_reply_that_was_asked_for_again_too_late_is_dropped_and_the_conversation_is_trained():
    async def policy(request):
        return answer(request, f"reply {request.chat_number}")

    async def program(endpoint):
        messages = [USER]
        for turn in range(3):
            client = Client(endpoint)
            if turn == 1:  # it gives up
                await client.ask(messages)
                await until(client.ready)
                client.leave()
                await asyncio.sleep(0.1)  # longer than a chat waits for a retry
                client = Client(endpoint)
            await client.ask(messages)
            messages += [{"role": "assistant", "content": await client.text()}, MORE]
            client.leave()
        return 1.0

    async with running(program, policy, waits=Waits(retry=0.02)) as (trainer, _):
        outcome = await trainer.rollout(rollout_id="r1", messages=ASK)
    (sample,) = outcome.samples.values()
    assert sample.train is not False
    assert marked(sample) == ([(1, 3, 4)], [(2,)])


@pytest.mark.slow
@pytest.mark.hypothesis
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reads", [False, True], ids=["reset", "retry-count"])
def test_only_the_conversation_that_was_read_is_trained(stream, reads):
    policy, told = Slow(), {}

    async def program(endpoint):
        told["messages"], told["main"] = await conversation(endpoint, policy, told["steps"], stream=stream, reads=reads)
        return 1.0

    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        opening = stack.enter_async_context(running(program, policy, waits=Waits(headers=0.01, ping=0.01)))
        trainer, _ = runner.run(opening)

        @settings(max_examples=50)
        @given(st.lists(st.sampled_from(STEPS), max_size=12))
        def check(steps):
            told["steps"] = steps
            outcome = runner.run(trainer.rollout(rollout_id=uuid.uuid4().hex, messages=ASK))
            assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
            trained = {name: list(each.messages) for name, each in outcome.samples.items() if each.train is not False}
            assert list(trained.values()) == [told["messages"]]
            if told["main"]:
                assert list(trained) == ["main"]

        try:
            check()
        finally:
            runner.run(stack.aclose())


@pytest.mark.long
@pytest.mark.adapters
@pytest.mark.parametrize(("client", "processes"), [("http", 20), ("httpx", 14), ("openai", 8), ("anthropic", 8)])
async def test_programs_that_give_up_soon_are_trained_on_what_they_have_read(client, processes):
    pytest.importorskip(client)
    chance, at_once = random.Random(client), asyncio.Semaphore(8)
    read = {}

    async def policy(request):
        await asyncio.sleep(chance.uniform(0, 0.7))  # a slow policy
        return answer(request, uuid.uuid4().hex)

    async def program(endpoint):
        environment = os.environ | {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": endpoint.api_key}
        command = (sys.executable, str(Path(__file__).with_name("impatient.py")), client, "0.4")
        pipe = asyncio.subprocess.PIPE
        async with at_once:
            process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe)
            read[endpoint.rollout_id] = json.loads((await process.communicate())[0])
        return 1.0

    async with running(program, policy) as (trainer, _):
        rollouts = [trainer.rollout(rollout_id=f"r{number}", messages=ASK) for number in range(processes)]
        outcomes = await asyncio.gather(*rollouts)
    for outcome in outcomes:
        trained = {name: list(each.messages) for name, each in outcome.samples.items() if each.train is not False}
        assert trained == {"main": read[outcome.rollout_id]}
