"""The fastest server that we reach with HTTP and JSON.

It has one shared aiohttp session, a raw handler and no validation, and sends the full history with each chat.
"""

import asyncio
import gc
import json
import signal
import socket
import time
from typing import Any

import aiohttp
from aiohttp import web

from benchmarks.script import result

_JSON = {"Content-Type": "application/json"}


class Server:
    """The agent server."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession

    async def serve(self, listening: socket.socket) -> None:
        """Serve until SIGTERM."""
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        # Each chat in flight has its own connection. With a limit, chats would wait in a queue.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
        timeout = aiohttp.ClientTimeout(total=300.0, sock_connect=10.0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
        ) as s:
            self._session = s
            runner = web.ServerRunner(web.Server(self._handle, access_log=None))
            await runner.setup()
            await web.SockSite(runner, listening, backlog=4096).start()
            await stop.wait()
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        if request.method != "POST" or request.path != "/v1/rollout/init":
            return web.Response(status=404)
        init = json.loads(await request.read())
        rollout_id = init["rollout_id"]
        if rollout_id not in self._tasks:
            self._tasks[rollout_id] = asyncio.create_task(self._run(init))
        body = json.dumps({"rollout_id": rollout_id, "tools": []}).encode()
        return web.Response(body=body, status=202, headers=_JSON)

    async def _run(self, init: dict[str, Any]) -> None:
        """Run one rollout and report its result."""
        began, waited = time.monotonic(), 0.0
        chat_url, completed_url = (
            init["server_url"] + path for path in ("/v1/chat/completions", "/v1/rollout/completed")
        )
        messages = init["messages"]
        recorded: list[tuple[list[int], list[float]]] = []
        body = {"model": "default", "messages": messages, "rollout_id": init["rollout_id"], "logprobs": True}
        body |= init["completion_params"]
        for turn in range(init["max_turns"]):
            if turn:
                messages.append(result())
            asked = time.monotonic()
            reply = json.loads(await self._post(chat_url, body))
            waited += time.monotonic() - asked
            if "token_ids" in reply:
                recorded.append((reply["token_ids"], reply["logprobs"]))
            messages.append(reply["choices"][0]["message"])
        metrics = {
            "total_latency_ms": (time.monotonic() - began) * 1000,
            "llm_latency_ms": waited * 1000,
            "num_llm_calls": init["max_turns"],
            "response_tokens": sum(len(ids) for ids, _ in recorded),
        }
        await self._post(
            completed_url,
            {
                "rollout_id": init["rollout_id"],
                "status": "COMPLETED",
                "final_messages": messages,
                "finish_reason": "stop",
                "reward": 1.0,
                "metrics": metrics,
            },
        )

    async def _post(self, url: str, body: dict[str, Any]) -> bytes:
        """Return the answer to a call. A failed connection is retried."""
        data = json.dumps(body).encode()
        for pause in (1.0, 2.0, 4.0, None):
            try:
                async with self._session.post(url, data=data, headers=_JSON) as response:
                    response.raise_for_status()
                    return await response.read()
            except aiohttp.ClientError:
                if pause is None:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError


async def serve(listening: socket.socket) -> None:
    """Serve until SIGTERM."""
    await Server().serve(listening)
