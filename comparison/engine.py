"""A mock inference engine: it samples what `scripted` says, and its log is the truth of the comparison.

It answers chat completions, completions and tokenize as vLLM does, `/inference/v1/generate` of vLLM and `/generate` of
SGLang. The first messages of a conversation say "CASE=<case> ID=<key>."; each request of a key takes the next step of
the case. Run it as `python -m comparison.engine PORT MODEL_FOLDER LOG`.
"""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from comparison import replies, scripted
from comparison.models import Model

MARK = re.compile(r"CASE=([\w-]+) ID=([\w:-]+)\.")
MOST_BODY = 64 << 20
Answer = tuple[int, Any]


class Engine:
    """The samples of all rollouts so far."""

    def __init__(self, model: Model, folder: Path, log: Path | None) -> None:
        self.model = model
        self.folder = folder
        self.log = log.open("a", buffering=1) if log else None
        self.served: dict[str, int] = {}
        self.cache: dict[Any, bytes] = {}

    async def answer(self, path: str, raw: bytes) -> Answer:
        """Return the status and the body for a request: JSON, bytes of JSON, or an iterator of events."""
        if path.endswith("/models"):
            names = (str(self.folder), "mock", self.folder.name)
            return 200, {
                "object": "list",
                "data": [{"id": n, "object": "model", "max_model_len": 1_000_000} for n in names],
            }
        if not raw:
            return (200, {}) if path.endswith(("/health", "/")) else (404, {"error": path})
        body = json.loads(raw)
        if path.endswith("/tokenize"):
            ids = self._render(body) if "messages" in body else self.model.encode(body["prompt"])
            return 200, {"count": len(ids), "max_model_len": 1_000_000, "tokens": ids}
        kind = _kind(path)
        if kind is None:
            return 404, {"error": {"message": f"no such path: {path}"}}
        prompt = None if kind == "chat" else self._prompt(kind, body)
        text = json.dumps(body["messages"][:4]) if prompt is None else self.model.decode(prompt[:1200])
        mark = MARK.search(text)
        case, key = mark.groups() if mark else ("plain", "none")
        choices = int(body.get("n") or 1) if kind == "chat" else 1
        step = self.served.get(key, 0)
        self.served[key] = step + choices
        if case.startswith("bench"):
            return 200, self._bench(case, kind, body, step, prompt)
        prompt = self._render(body) if prompt is None else prompt
        sampled = [await self._sample(case, key, step + n, kind, prompt) for n in range(choices)]
        if isinstance(sampled[0], int):
            error = {"message": "scripted failure", "type": "server_error", "code": sampled[0]}
            return sampled[0], {"error": error}
        replied = [reply for reply in sampled if isinstance(reply, replies.Sampled)]
        if body.get("stream") and kind == "chat":
            return 200, replies.streamed(replied[0], body, self.model)
        return 200, replies.whole(replied, body, self.model)

    async def _sample(self, case: str, key: str, number: int, kind: str, prompt: list[int]) -> replies.Sampled | int:
        """Return a reply, or the status of an error."""
        script = scripted.SCRIPTS.get(case, scripted.SCRIPTS["plain"])
        step = script[number] if number < len(script) else scripted.Step(("Over the end.",))
        ids = step.ids(self.model)
        logprobs = scripted.logprobs(key, number, len(ids))
        if self.log:
            known = {"case": case, "id": key, "step": number, "kind": kind, "prompt": prompt, "ids": ids}
            more = {"version": step.version, "status": step.status, "finish": step.finish, "stop": step.stop}
            self.log.write(json.dumps({**known, "logprobs": logprobs, **more}) + "\n")
        await asyncio.sleep(step.delay)
        if step.status != 200:
            return step.status
        name = f"cmpl-{key}-{number}"
        return replies.Sampled(name, kind, prompt, ids, logprobs, step.finish, step.version, step.stop)

    def _bench(self, case: str, kind: str, body: dict[str, Any], number: int, prompt: list[int] | None) -> bytes:
        """Return a reply of the rollout whose cost is measured. Rendering is not what is measured: once for a turn."""
        options = tuple(str(body.get(name)) for name in ("return_tokens_as_token_ids", "return_token_ids", "logprobs"))
        slot = (case, kind, number, *options)
        if slot not in self.cache:
            ids = scripted.bench(number, self.model, calls=case != "bench" or number < scripted.TURNS - 1)
            logprobs = scripted.logprobs("bench", number, len(ids))
            shown = self._render(json.loads(MARK.sub(f"CASE={case} ID=x.", json.dumps(body)))) if kind == "chat" else []
            reply = replies.Sampled(f"cmpl-{number}", kind, shown, ids, logprobs, "stop", "1", "")
            self.cache[slot] = json.dumps(replies.whole([reply], body, self.model)).encode()
        answer = self.cache[slot]
        if prompt is not None and b'"prompt_token_ids": []' in answer:
            answer = answer.replace(b'"prompt_token_ids": []', b'"prompt_token_ids": ' + json.dumps(prompt).encode())
        return answer

    def _prompt(self, kind: str, body: dict[str, Any]) -> list[int]:
        prompt = body.get({"generate": "token_ids", "sglang": "input_ids"}.get(kind, "prompt"))
        if prompt is None:
            prompt = body.get("prompt") or body.get("text")
        if isinstance(prompt, dict):
            prompt = prompt["prompt_token_ids"]
        if isinstance(prompt, str):
            return self.model.encode(prompt)
        return list(prompt[0] if prompt and isinstance(prompt[0], list) else prompt)

    def _render(self, body: dict[str, Any]) -> list[int]:
        """Return the prompt of a chat; with required_prefix_token_ids as the server of NeMo RL does it."""
        messages, tools = body["messages"], body.get("tools")
        full = self.model.render(messages, tools)
        prefix = body.get("required_prefix_token_ids")
        if not prefix:
            return full
        last = max(n for n, message in enumerate(messages) if message["role"] == "assistant")
        ends = self.model.render(messages[: last + 1], tools, prompt=False).count(self.model.end)
        at = [n for n, token in enumerate(full) if token == self.model.end][ends - 1]
        return (prefix[:-1] if prefix[-1] == self.model.end else list(prefix)) + full[at:]


def _kind(path: str) -> str | None:
    ends = {
        "chat/completions": "chat",
        "inference/v1/generate": "generate",
        "completions": "completion",
        "/generate": "sglang",
    }
    return next((kind for end, kind in ends.items() if path.endswith(end)), None)


async def serve(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while head := await _head(reader):
            path = head.split(" ", 2)[1].split("?")[0]
            raw = await _body(head.lower(), reader)
            try:
                status, answer = await engine.answer(path, raw)
            except (ValueError, KeyError, TypeError) as error:
                status, answer = 400, {"error": {"message": repr(error)}}
            if isinstance(answer, bytes | dict):
                whole = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                head_out = (
                    f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {len(whole)}\r\n\r\n"
                )
                writer.write(head_out.encode() + whole)
            else:
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for event in answer:
                    writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def _head(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
    except asyncio.IncompleteReadError:
        return ""


async def _body(head: str, reader: asyncio.StreamReader) -> bytes:
    if "transfer-encoding: chunked" not in head:
        length = re.search(r"content-length: *(\d+)", head)
        return await reader.readexactly(int(length.group(1))) if length else b""
    out = b""
    while size := int(await reader.readline(), 16):
        out += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return out


async def main(port: int, folder: Path, log: Path | None) -> None:
    """Serve until the process ends."""
    engine = Engine(Model.load(folder), folder, log)
    server = await asyncio.start_server(
        lambda r, w: serve(engine, r, w), "127.0.0.1", port, limit=MOST_BODY, backlog=2048
    )
    print("READY", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None))
