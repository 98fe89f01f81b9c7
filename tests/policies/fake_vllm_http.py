"""vLLM's HTTP server without a model: its answers, streams and refusals are those that vLLM 0.32 gives."""

import json
from contextlib import asynccontextmanager

from aiohttp import web

from tests.http_servers import posting, url_of

NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
NEUTRAL |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""The values of vLLM with --generation-config vllm."""
NULLS = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
PROMPT = [1, 9690, 198]


class FakeVllmHttp:
    """Replies with `text`, a token for each character. `model` is the generation_config.json of the model."""

    def __init__(self, text="#### 5", model=None):
        self.text, self.model = text, NEUTRAL | (model or {})
        self.bodies, self.sampled = [], []
        """What was asked, and the values that the tokens of each chat are sampled with."""

    @asynccontextmanager
    async def serving(self):
        async with posting({"/v1/chat/completions": self._handle}) as server:
            yield f"{url_of(server)}/v1"

    async def _handle(self, request):
        body = await request.json()
        self.bodies.append(body)
        if body.get("tool_choice", "none") != "none" and not body.get("tools"):
            return _refused("When using `tool_choice`, `tools` must be set. (parameter=tool_choice)")
        given = {name: body[name] for name in NEUTRAL if body.get(name) is not None}
        if given.get("top_p") == 0:
            return _refused("top_p must be in (0, 1], got 0.0. (parameter=top_p, value=0.0)")
        if given.get("top_k") == -1:
            given["top_k"] = 0
        self.sampled.append(self.model | given)
        if body.get("stream"):
            return web.Response(body=self._stream(body).encode(), content_type="text/event-stream")
        return web.json_response(self._whole(body))

    def _choices(self, body):
        return range(body.get("n") or 1)

    def _rows(self, text):
        return {"content": [{"token": each, "logprob": -0.5, "top_logprobs": []} for each in text]}

    def _usage(self, body):
        count = len(self.text) * len(self._choices(body))
        return {"prompt_tokens": len(PROMPT), "total_tokens": len(PROMPT) + count, "completion_tokens": count}

    def _whole(self, body):
        message = {"role": "assistant", "content": self.text} | NULLS
        ids = list(map(ord, self.text)) if body.get("return_token_ids") else None
        choice = {"message": message, "logprobs": self._rows(self.text), "finish_reason": "stop", "token_ids": ids}
        return {
            "choices": [{"index": index} | choice for index in self._choices(body)],
            "usage": self._usage(body) | {"prompt_tokens_details": None},
            "prompt_token_ids": PROMPT if body.get("return_token_ids") else None,
        }

    def _stream(self, body):
        """Return the events. The prompt's ids are in the first event of each choice."""
        made, ids = [], bool(body.get("return_token_ids"))
        for index in self._choices(body):
            first = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            made.append({"choices": [first], "prompt_token_ids": PROMPT if ids else None, "prompt_text": None})
        for index in self._choices(body):
            for number, character in enumerate(self.text, 1):
                choice = {"index": index, "delta": {"content": character}, "logprobs": self._rows(character)}
                choice["finish_reason"] = "stop" if number == len(self.text) else None
                made.append({"choices": [choice | ({"token_ids": [ord(character)]} if ids else {})]})
        if (body.get("stream_options") or {}).get("include_usage"):
            made.append({"choices": [], "usage": self._usage(body)})
        written = [json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in made]
        return "".join(f"data: {each}\n\n" for each in [*written, "[DONE]"])


def _refused(why):
    return web.json_response({"error": {"message": why, "type": "BadRequestError", "code": 400}}, status=400)
