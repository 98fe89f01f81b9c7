"""A trainer made of the Osmosis SDK's own code: sdk_trainer.py VERSION SERVER ROLLOUTS.

Prints a JSON line for each rollout: its id, status and reward, and what wait_for_grading() returned.
"""

import asyncio
import json
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from osmosis_ai.rollout.types.protocol import RolloutInitRequest

KEY, LLM_KEY = "the-controllers-key", "the-models-key"
PROMPT = [{"role": "user", "content": "What is 2 * 3?"}]


class Handler(BaseHTTPRequestHandler):
    """Streams replies, and hands callbacks to `server.callback`."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        *_, rollout_id, kind = self.path.removesuffix("/completions").split("/")
        chat = kind == "chat"
        assert self.headers["authorization"] == f"Bearer {self.server.llm_key if chat else KEY}", self.path
        if chat:
            delta = {"role": "assistant", "content": "The answer is 6."}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
            chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": "stop"}]
            self.answer(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", "text/event-stream")
        else:
            answer = asyncio.run_coroutine_threadsafe(self.server.callback(rollout_id, kind, body), self.server.loop)
            self.answer(json.dumps(answer.result()), "application/json")

    def answer(self, text, media):
        self.send_response(200)
        self.send_header("content-type", media)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass


class Trainer:
    """The part that all versions share: the URLs."""

    def __init__(self, server, llm_key=LLM_KEY):
        self.server = server
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.llm_key, self.http.loop, self.http.callback = llm_key, asyncio.get_running_loop(), self.callback
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def url(self, rollout_id, kind=""):
        return f"http://127.0.0.1:{self.http.server_port}/v1/rollouts/{rollout_id}" + (f"/{kind}" if kind else "")

    async def callback(self, rollout_id, kind, body):
        raise NotImplementedError


class Of0231(Trainer):
    """0.2.31 has no client: this one has its models. Chats and samples have names."""

    def __init__(self, server):
        super().__init__(server, KEY)
        self.graded = {}

    async def callback(self, rollout_id, kind, body):
        from osmosis_ai.rollout.types.protocol import GraderCompleteRequest, RolloutCompleteRequest

        if kind == "completion":
            RolloutCompleteRequest.model_validate(body)
        else:
            self.graded[rollout_id].set_result(GraderCompleteRequest.model_validate(body))
        return {}

    async def run(self, rollout_id):
        import httpx

        self.graded[rollout_id] = asyncio.get_running_loop().create_future()
        init = RolloutInitRequest(
            rollout_id=rollout_id,
            initial_messages=PROMPT,
            label="6",
            chat_completions_url=self.url("any"),
            controller_api_key=KEY,
            completion_callback_url=self.url(rollout_id, "completion"),
            grader_callback_url=self.url(rollout_id, "grader"),
        )
        async with httpx.AsyncClient() as http:
            response = await http.post(f"{self.server}/rollout", json=init.model_dump(mode="json"))
        assert response.status_code == 200, response.text
        result = await self.graded[rollout_id]
        (sample,) = result.samples.values()
        return result.status, sample, None


class Of030(Trainer):
    """0.3.0 has no client: this one has its models, and knows a rollout by the path of its URLs only."""

    def __init__(self, server):
        super().__init__(server, KEY)
        self.graded = {}

    async def callback(self, rollout_id, kind, body):
        from osmosis_ai.rollout.types.protocol import GraderCompleteRequest, RolloutCompleteRequest

        if kind == "completion":
            RolloutCompleteRequest.model_validate(body)
        else:
            self.graded[rollout_id].set_result(GraderCompleteRequest.model_validate(body))
        return {}

    async def run(self, rollout_id):
        import httpx

        self.graded[rollout_id] = asyncio.get_running_loop().create_future()
        init = RolloutInitRequest(
            initial_messages=PROMPT,
            label="6",
            chat_completions_url=self.url(rollout_id),
            controller_api_key=KEY,
            completion_callback_url=self.url(rollout_id, "completion"),
            grader_callback_url=self.url(rollout_id, "grader"),
        )
        async with httpx.AsyncClient() as http:
            response = await http.post(f"{self.server}/rollout", json=init.model_dump(mode="json"))
        assert response.status_code == 202, response.text
        result = await self.graded[rollout_id]
        return result.status, result.sample, None


class Of032(Trainer):
    """The driver of 0.3.2, with its store of callbacks."""

    def __init__(self, server):
        from osmosis_ai.rollout.controller.store import CallbackStore
        from osmosis_ai.rollout.http_driver import HttpRolloutDriver

        super().__init__(server)
        self.store = CallbackStore(on_terminal_commit=self.committed)
        self.driver = HttpRolloutDriver(
            rollout_base_url=server,
            callback_store=self.store,
            completion_url_for=lambda rollout_id: self.url(rollout_id, "completion"),
            grader_url_for=lambda rollout_id: self.url(rollout_id, "grader"),
            chat_completions_url_for=self.url,
            chat_api_key=LLM_KEY,
            controller_api_key=KEY,
        )

    async def committed(self, result):
        return None

    async def callback(self, rollout_id, kind, body):
        from osmosis_ai.rollout.types.protocol import GraderCompleteRequest, RolloutCompleteRequest

        if kind == "completion":
            return await self.store.handle_completion(rollout_id, RolloutCompleteRequest.model_validate(body))
        return await self.store.handle_grader(rollout_id, GraderCompleteRequest.model_validate(body))

    async def run(self, rollout_id):
        from osmosis_ai.rollout.driver import RolloutRunRequest

        request = RolloutRunRequest(messages=PROMPT, label="6", rollout_id=rollout_id)
        result = await self.driver.run(request)
        return result.status, result.sample, None


class Of038(Trainer):
    """The client of 0.3.8, which asks for its results."""

    def __init__(self, server):
        from osmosis_ai.rollout.client.client import RolloutClient

        super().__init__(server)
        self.client = RolloutClient(url=server)

    async def run(self, rollout_id):
        rollout = await self.client.run_rollout_async(PROMPT, self.url(rollout_id), rollout_id, LLM_KEY, "6")
        graded = await rollout.wait_for_grading()
        result = await rollout
        return result.status, result.sample, graded


async def main(version, server, count):
    trainer = {"0.2.31": Of0231, "0.3.0": Of030, "0.3.2": Of032, "0.3.8": Of038}[version](server)
    ids = [uuid.uuid4().hex for _ in range(count)]
    for rollout_id, (status, sample, graded) in zip(ids, await asyncio.gather(*map(trainer.run, ids)), strict=True):
        texts = [message["content"] for message in sample.messages] if sample else []
        row = {"rollout_id": rollout_id, "status": status, "reward": sample and sample.reward, "graded": graded}
        row["texts"] = texts
        print(json.dumps(row))


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
