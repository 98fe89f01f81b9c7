"""vLLM's plain HTTP for tokens and its control calls, over FakeEngine. It answers as vLLM 0.32 does."""

import json
from contextlib import asynccontextmanager

from aiohttp import web

from tests.http_servers import url_of
from tests.integrations.fake_engine import CONTEXT, Refused

NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
NEUTRAL |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def refused(status, text):
    return web.json_response({"error": {"message": text, "type": "BadRequestError", "code": status}}, status=status)


class FakeVllmGenerate:
    """The paths of a server. With `rust` it answers as the Rust frontend; `scale_out` has the call for tokens."""

    def __init__(self, engine, *, rust=False, scale_out=True, change=lambda body: None):
        self.engine, self.rust, self.scale_out, self.change = engine, rust, scale_out, change
        self.bodies, self.headers, self.calls, self.left = [], [], [], []
        """The bodies and headers of calls for tokens, the other calls, and the requests whose clients have left."""
        self.sleeping = False
        self.status = None
        """What the next call for tokens is refused with: a status and a text."""

    @asynccontextmanager
    async def serving(self, port=0):
        app = web.Application()
        app.add_routes([web.get("/{path:.*}", self._get), web.post("/{path:.*}", self._post)])
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", int(port)).start()
            yield url_of(runner)
        finally:
            await runner.cleanup()

    async def _get(self, request):
        self.calls.append(request.path_qs)
        answers = {
            "/v1/models": {"data": [{"id": "tiny", "max_model_len": CONTEXT}]},
            "/is_paused": {"is_paused": bool(self.engine.paused)},
            "/weight_info": {"weight_version": self.engine.version},
            "/is_sleeping": {"is_sleeping": self.sleeping},
        }
        return web.json_response(answers[request.path]) if request.path in answers else _not_found()

    async def _post(self, request):
        text = await request.text()
        body = json.loads(text) if text else None
        if request.path == "/inference/v1/generate" and self.scale_out:
            self.bodies.append(body)
            self.headers.append(dict(request.headers))
            return await self._generate(body)
        self.calls.append((request.path_qs, body))
        return self._controlled(request, body)

    async def _generate(self, body):
        if self.status:
            (status, text), self.status = self.status, None
            return refused(status, text)
        sampling, prompt = body["sampling_params"], body["token_ids"]
        if len(prompt) >= CONTEXT:
            problem = f"The decoder prompt (length {len(prompt)}) is longer than the maximum model length of {CONTEXT}."
            return refused(400, problem)
        self.engine.sampled_with.append(NEUTRAL | self.engine.generation_config | sampling)
        try:
            self.engine.check_logprobs(sampling["logprobs"])
            sampled = await self.engine.sample(body["request_id"], prompt, sampling["max_tokens"])
        except Refused as error:
            return refused(400, str(error))
        except BaseException:
            self.left.append(body["request_id"])
            self.engine.abort([body["request_id"]])
            raise
        made = self._body(body, prompt, sampled)
        self.change(made)
        return web.json_response(made)

    def _body(self, body, prompt, sampled):
        count = body["sampling_params"]["logprobs"]
        rows = sampled.candidates(count) if count else [[(token, value)] for token, value in _pairs(sampled)]
        content = [
            {**_row(token, value), "top_logprobs": [_row(*pair) for pair in row]}
            for (token, value), row in zip(_pairs(sampled), rows, strict=True)
        ]
        version = {"version": self.engine.version, "start": 0, "end": len(sampled.ids)}
        choice = {"index": 0, "finish_reason": sampled.reason, "stop_reason": None, "token_ids": sampled.ids}
        choice |= {"logprobs": {"content": content}, "weight_versions": [version] if sampled.ids else None}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled.ids), "prompt_tokens_details": None}
        return {"request_id": body["request_id"], "choices": [choice], "usage": None if self.rust else usage}

    def _controlled(self, request, body):
        path, engine = request.path, self.engine
        if path == "/pause":
            engine.paused = request.query["mode"]
            if engine.paused == "abort":
                engine.abort(list(engine.sampling))
        elif path in ("/resume", "/wake_up"):
            engine.paused, self.sleeping = "", False
        elif path == "/sleep":
            engine.paused, self.sleeping = request.query["mode"], True
        elif path == "/update_weight_version":
            engine.version = body["new_version"]
        elif path == "/finish_weight_update":
            engine.version = body["weight_version"]
        elif path == "/reset_prefix_cache":
            return web.json_response({"success": not engine.sampling})
        elif path == "/collective_rpc":
            return web.json_response({"results": [None]})
        elif path not in ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights"):
            return _not_found()
        return web.json_response({"status": "done"})


def _pairs(sampled):
    return list(zip(sampled.ids, sampled.logprobs, strict=True))


def _row(token, value):
    return {"token_id": token, "logprob": value, "rank": 1}


def _not_found():
    return web.json_response({"detail": "Not Found"}, status=404)
