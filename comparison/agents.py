"""The process in which unmodified openai clients run the cases, and the class with which adapters ask it to.

Run it as `python -m comparison.agents SOCKET LOG`. A line of JSON on the socket starts an agent: {n, case, key,
base_url, api_key, ...}; a line of JSON answers: {n, ok, final, error}. The log gets what each agent sent and got.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, TextIO

from comparison import cases

LINE = 1 << 26
Job = dict[str, Any]


def record(log: TextIO | None, agent: cases.Agent | None, ended: bool) -> None:
    """Write what an agent sent and got, and whether it came to its end."""
    if log and agent and agent.case not in cases.MEASURED:
        log.write(json.dumps({"key": agent.key, "requests": agent.requests, "ended": ended}) + "\n")
        log.flush()


class Agents:
    """Asks the process of the agents for agents."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self.waiting: dict[int, asyncio.Future[Job]] = {}
        self.count = 0
        self.writer: asyncio.StreamWriter | None = None
        self.lock = asyncio.Lock()

    async def run(self, case: str, key: str, base_url: str, **more: Any) -> Job:
        """Run a case at a base URL; return {"ok", "final", "error"}. Cancelling this ends the agent."""
        async with self.lock:
            if self.writer is None:
                reader, self.writer = await asyncio.open_unix_connection(self.socket, limit=LINE)
                self.reading = asyncio.create_task(self._read(reader))
        self.count += 1
        number = self.count
        future = self.waiting[number] = asyncio.get_running_loop().create_future()
        job = {"n": number, "case": case, "key": key, "base_url": base_url, **more}
        self.writer.write(json.dumps(job).encode() + b"\n")
        try:
            return await future
        except asyncio.CancelledError:
            ended = self.waiting[number] = asyncio.get_running_loop().create_future()
            self.writer.write(json.dumps({"end": number}).encode() + b"\n")
            await asyncio.wait([ended], timeout=5)  # until then its log lacks what it sent
            raise

    async def run_for(self, seconds: float, **job: Any) -> Job:
        """Run a case as `run` does, for at most so many seconds."""
        try:
            return await asyncio.wait_for(self.run(**job), seconds)
        except asyncio.TimeoutError:  # noqa: UP041 - adapters may run on 3.10
            return {"ok": False, "error": "cancelled"}

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            answer = json.loads(line)
            future = self.waiting.pop(answer["n"], None)
            if future and not future.done():
                future.set_result(answer)


def openai_chat(client: Any, model: str, headers: dict[str, str] | None) -> cases.Chat:
    """Return the chat of an openai client."""

    async def chat(messages: list[Job], tools: Any = None, stream: bool = False, **options: Any) -> Job:
        request = {"model": model, "messages": messages, "extra_headers": headers, **options}
        request |= {"tools": tools} if tools else {}
        limit = options.get("timeout")
        if stream:
            return await asyncio.wait_for(_streamed(client, request), limit)
        answer = await client.chat.completions.create(**request)
        choice = answer.choices[0]
        return {"message": choice.message.model_dump(exclude_none=True), "finish_reason": choice.finish_reason}

    return chat


async def _streamed(client: Any, request: Job) -> Job:
    message: Job = {"role": "assistant", "content": ""}
    calls: dict[int, Job] = {}
    finish = None
    async with await client.chat.completions.create(stream=True, **request) as events:
        async for event in events:
            for choice in event.choices:
                delta = choice.delta
                message["content"] += delta.content or ""
                finish = choice.finish_reason or finish
                for call in delta.tool_calls or []:
                    known = calls.setdefault(call.index, {"id": "", "function": {"name": "", "arguments": ""}})
                    known["id"] = call.id or known["id"]
                    known["function"]["name"] += call.function.name or ""
                    known["function"]["arguments"] += call.function.arguments or ""
    if calls:
        message["tool_calls"] = [{"type": "function", **calls[n]} for n in sorted(calls)]
    return {"message": message, "finish_reason": finish}


class Host:
    """Runs agents for every connection."""

    def __init__(self, log: Path) -> None:
        import httpx
        from openai import AsyncOpenAI

        self.log = log.open("a")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
        self.http = httpx.AsyncClient(limits=limits, timeout=120)
        self.client = AsyncOpenAI

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Run the agents that one adapter asks for, and end them with its connection."""
        tasks: dict[int, asyncio.Task[None]] = {}
        try:
            while line := await reader.readline():
                job = json.loads(line)
                if "end" in job:
                    tasks.pop(job["end"]).cancel()
                else:
                    tasks[job["n"]] = asyncio.create_task(self._one(job, writer))
        finally:
            for task in tasks.values():
                task.cancel()
            writer.close()

    async def _one(self, job: Job, writer: asyncio.StreamWriter) -> None:
        key = job.get("api_key") or "none"
        client = self.client(base_url=job["base_url"], api_key=key, http_client=self.http, max_retries=0)
        agent, answer = None, {"ok": False, "error": "cancelled"}
        try:
            chat = openai_chat(client, job.get("model", "mock"), job.get("headers"))
            agent = await cases.run(job["case"], job["key"], chat)
            last = [message for message in agent.history if message["role"] == "assistant"][-1]
            answer = {"ok": True, "final": last.get("content") or ""}
        except BaseException as error:
            agent = getattr(error, "agent", None)
            answer["error"] = f"{type(error).__name__}: {error}"[:300]
            if not isinstance(error, Exception):
                raise
        finally:
            record(self.log, agent, bool(answer["ok"]))
            writer.write(json.dumps({**answer, "n": job["n"]}).encode() + b"\n")


async def main(socket: str, log: Path) -> None:
    """Serve until the process ends."""
    server = await asyncio.start_unix_server(Host(log).serve, socket, limit=LINE)
    print("READY", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
