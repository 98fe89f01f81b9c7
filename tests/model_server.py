"""A small OpenAI-compatible model server on a real socket."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-canary-4711"
USAGE = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}


def reply(content: str | None, *calls: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The body of a reply with a text, or with calls of tools."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for n, (name, arguments) in enumerate(calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": USAGE,
    } | more


@dataclass
class ModelServer:
    """The server's address, and the bodies that it was asked with."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def model_server(answer: Callable[[dict[str, Any]], Any], *, key: str = KEY) -> Iterator[ModelServer]:
    """Serve `answer`: a function from the request's body to the reply's body, or to a status, a body and headers.

    A request with another key is refused with 401.
    """
    made = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append(body)
            if self.headers.get("Authorization") != f"Bearer {key}":
                status, said, more = 401, {"error": {"message": "Incorrect API key provided"}}, {}
            else:
                found = answer(body)
                status, said, more = (*found, {})[:3] if isinstance(found, tuple) else (200, found, {})
            raw = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
