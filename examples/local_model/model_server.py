"""Serves SmolLM2-135M-Instruct on this machine's processor as an OpenAI-compatible model server.

    python model_server.py --port 8100

It answers POST /v1/chat/completions, with logprobs, token ids (for `return_token_ids`) and usage, and GET /v1/models.
It makes one reply at a time. At most --queue requests wait, and further ones get 429. With LOCAL_MODEL_KEY in the
environment, requests need this key.
"""

import argparse
import contextlib
import hmac
import json
import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from chat_format import Refused, asked, completion
from smollm2 import Sampled, Sampling, SmolLM2

KEY_VARIABLE = "LOCAL_MODEL_KEY"
MOST_BYTES = 1 << 20
"""The most bytes of a request."""


class Model(Protocol):
    """What the server needs of a model."""

    name: str
    context: int

    def render(self, messages: list[dict[str, str]]) -> list[int]: ...
    def text(self, ids: list[int]) -> str: ...
    def sample(self, prompt: list[int], sampling: Sampling, gone: Callable[[], bool]) -> Sampled: ...


class LocalModelServer(ThreadingHTTPServer):
    """Listens on a port of this machine; port 0 is a free one. A thread serves each connection."""

    daemon_threads = True

    def __init__(self, model: Model, port: int, *, queue: int = 8, key: str | None = None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.model = model
        self._key = key
        self._places = threading.BoundedSemaphore(queue + 1)
        self._busy = threading.Lock()

    def is_allowed(self, authorization: str | None) -> bool:
        """Return whether a request has the key, if there is one."""
        return self._key is None or hmac.compare_digest((authorization or "").encode(), f"Bearer {self._key}".encode())

    def reply(self, body: Any, gone: Callable[[], bool]) -> dict[str, Any]:
        """Return the body of a reply. Raises Refused."""
        model = self.model
        messages, sampling = asked(body, model.name)
        prompt = model.render(messages)
        if len(prompt) + sampling.max_tokens > model.context:
            problem = f"{len(prompt)} tokens of the messages and {sampling.max_tokens} of the reply"
            raise Refused(400, f"the maximum context length is {model.context} tokens, not {problem}")
        if not self._places.acquire(blocking=False):
            raise Refused(429, "the queue is full; ask again later")
        try:
            with self._busy:
                sampled = model.sample(prompt, sampling, gone)
        finally:
            self._places.release()
        return completion(body, prompt, sampled, model.text)


class Handler(BaseHTTPRequestHandler):
    """Serves one connection."""

    protocol_version = "HTTP/1.1"
    server: LocalModelServer
    timeout = 60

    def do_GET(self) -> None:
        self._serve(
            "/v1/models", lambda: {"object": "list", "data": [{"id": self.server.model.name, "object": "model"}]}
        )

    def do_POST(self) -> None:
        self._serve("/v1/chat/completions", lambda: self.server.reply(self._body(), self._is_gone))

    def _serve(self, path: str, answer: Callable[[], dict[str, Any]]) -> None:
        try:
            if not self.server.is_allowed(self.headers.get("Authorization")):
                raise Refused(401, "incorrect API key")
            if self.path != path:
                raise Refused(404, "there is no such path")
            self._send(200, answer())
        except Refused as error:
            self.close_connection = True  # perhaps the request has not been read
            self._send(error.status, {"error": {"message": str(error), "type": "invalid_request_error"}})

    def _body(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            raise Refused(413, f"a request has a Content-Length of at most {MOST_BYTES}")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not JSON") from None

    def _is_gone(self) -> bool:
        """Return whether the client has closed the connection."""
        try:
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _send(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        if status == 429:
            self.send_header("Retry-After", "5")
        self.end_headers()
        self.wfile.write(raw)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serves SmolLM2-135M-Instruct as an OpenAI-compatible model server.")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--queue", type=int, default=8, help="the most requests that wait")
    options = parser.parse_args()
    print(f"loading {SmolLM2.name}, which takes about a minute", file=sys.stderr, flush=True)
    with LocalModelServer(SmolLM2(), options.port, queue=options.queue, key=os.environ.get(KEY_VARIABLE)) as server:
        print(f"serving {server.model.name} at http://127.0.0.1:{server.server_port}/v1", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
