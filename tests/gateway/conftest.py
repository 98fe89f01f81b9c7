"""A gateway that runs, and a trainer whose answers are bytes that the test chose."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from osmosis_gateway.http_server import InProcessRollouts, serve_http, tokens_of
from osmosis_gateway.leases import Leases
from osmosis_gateway.legacy_trainers import HttpTrainers
from osmosis_gateway.outgoing_calls import Calls
from osmosis_gateway.routes import HttpAccess, add_routes
from osmosis_grpc.network.http.server import HttpServer, http_app
from osmosis_grpc.rollout import RolloutClientSettings, RolloutServerSettings, RolloutSettings

CHAT, COMPLETED, INIT = "/v1/chat/completions", "/v1/rollout/completed", "/v1/rollout/init"
USER = {"role": "user", "content": "Hello"}
REPLY = {
    "id": "r",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


def response(body=b"{}", status=200, headers=()):
    """A response of HTTP/1.1 as bytes; its connection is not used again."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(raw)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


class RawTrainer:
    """Remembers every connection and request. `answers` gives the bytes of a path's next answers;
    the last one stays. A callable is awaited with the writer instead.
    """

    def __init__(self, host="127.0.0.1", port=0):
        self.host, self.port = host, port
        self.connections = 0
        self.requests = []
        self.answers = {}
        self._news = asyncio.Event()
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, self.host, self.port, limit=2**26)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def body(self, rollout_id="r1", **more):
        """A request to start a rollout."""
        return {"rollout_id": rollout_id, "server_url": self.url, "messages": [USER], "completion_params": {}} | more

    def bodies(self, path):
        return [json.loads(body) for at, _, body in self.requests if at == path]

    async def until(self, met, seconds=15):
        """Wait until something is true of this trainer."""
        async with asyncio.timeout(seconds):
            while not met():
                self._news.clear()
                await self._news.wait()

    async def outcome(self, rollout_id="r1", seconds=15):
        def found():
            return [body for body in self.bodies(COMPLETED) if body["rollout_id"] == rollout_id]

        await self.until(found, seconds)
        return found()[0]

    async def _serve(self, reader, writer):
        self.connections += 1
        self._news.set()
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = head[0].split(" ")[1]
        self.requests.append((path, headers, body))
        self._news.set()
        usual = [response(REPLY if path.endswith(CHAT) else b"{}")]
        answers = self.answers.get(path, usual)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if callable(answer):
            await answer(writer)
        else:
            writer.write(answer)
            await writer.drain()


class Gateway:
    """HTTP in front of an agent server, and a client of it."""

    def __init__(self, server, http, client, stack):
        self.server, self.http, self.client = server, http, client
        self._stack = stack

    async def init(self, body, **more):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | more.pop("headers", {})
        return await self.client.post(INIT, content=content, headers=headers, **more)

    async def connect(self):
        """A connection of its own, closed in the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http.port)
        self._stack.callback(writer.close)
        return reader, writer

    async def counts(self):
        health = (await self.client.get("/health")).json()
        return health["active_rollouts"], health["completed_rollouts"]

    async def untouched(self):
        """Nothing was started, and nothing stands in the way."""
        assert await self.counts() == (0, 0)

    async def still_serves(self, trainer, rollout_id="a-real-one"):
        """A real rollout goes from end to end."""
        answer = await self.init(trainer.body(rollout_id))
        assert answer.status_code == 202, answer.text
        assert (await trainer.outcome(rollout_id))["status"] == "COMPLETED"


def settings(token=None, **client):
    """Quick tries, and a token if there is one."""
    quick = {"retry_base_delay": 0.1, "retry_max_delay": 1.0, "max_retries": 1, "complete_rollout_retries": 0}
    return RolloutSettings(client=RolloutClientSettings(**(quick | client)), server=RolloutServerSettings(token=token))


@pytest.fixture
def start(stack, serve):
    """Starts a gateway: `token` and `client` settings, `bounds` of bodies, the rest is the agent server's."""

    async def start(*loops, token=None, client=(), bounds=None, **options):
        server = await serve(*loops, **options)
        known = settings(token, **dict(client))
        serving = serve_http(server, port=0, settings=known) if bounds is None else _bounded(server, known, bounds)
        http = await stack.enter_async_context(serving)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://{http.address}", timeout=50, trust_env=False)
        )
        return Gateway(server, http, client, stack)

    return start


@pytest.fixture
async def gateway(start):
    """A gateway in front of the calculator."""
    return await start()


@pytest.fixture
def listen(stack):
    """Starts a RawTrainer."""

    async def start(host="127.0.0.1", port=0):
        return await stack.enter_async_context(RawTrainer(host, port))

    return start


@pytest.fixture
async def trainer(listen):
    """A trainer that answers as it is reported."""
    return await listen()


@asynccontextmanager
async def _bounded(server, known, bounds):
    """As serve_http, with bounds that a test can wait for."""
    async with Calls(known.client) as calls:
        trainers = HttpTrainers(calls, server.callbacks.policy, known.client)
        app = http_app("test")
        app.state.rollouts = InProcessRollouts(server.engine, trainers.peer, Leases(server.engine), server.drain)
        access = HttpAccess(
            tokens=tokens_of(known), max_metadata_bytes=server.config.max_metadata_bytes, loopback=True, bounds=bounds
        )
        add_routes(app, access)
        async with HttpServer(app) as http:
            yield http
