"""Chaos for everything that listens or streams in this process: calls handled twice, lost, or answered too late.

What is patched is grpc.aio.server and FrameStream, so that real servers, clients and sockets do the rest.
"""

import asyncio
import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from osmosis_grpc.network.frame_stream import FrameStream

Fault = str
FAULTS = ("request", "response", "in_flight")
"""Lost before the handler, after it, or answered UNAVAILABLE while it still runs."""


class _Interceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of unary calls; `wrap` makes of one, and its RPC's name, another."""

    def __init__(self, wrap: Callable[[str, Any], Any]) -> None:
        self._wrap = wrap

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        if handler is None or not handler.stream_unary or details.method.startswith("/grpc."):
            return handler
        handle = self._wrap(details.method.rpartition("/")[2], handler.stream_unary)

        async def read_before(requests: Any, context: Any) -> Any:
            return await handle(requests, _Received(context, await context.read()))

        return handler._replace(stream_unary=read_before)


def intercept(monkeypatch: pytest.MonkeyPatch, wrap: Callable[[str, Any], Any]) -> None:
    """Every server made from now on has its handlers wrapped."""
    made = functools.partial(grpc.aio.server, interceptors=[_Interceptor(wrap)])
    monkeypatch.setattr(grpc.aio, "server", made)


def twice(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Handlers of RPCs and of frames are called twice, the second time's answer counts. How often, by name."""
    seen: Counter[str] = Counter()

    def wrap(name: str, handler: Any) -> Any:
        async def handle(request: Any, context: Any) -> Any:
            seen[name] += 1
            with contextlib.suppress(grpc.aio.AbortError):
                await handler(request, _Nobody(context))
            return await handler(request, context)

        return handle

    intercept(monkeypatch, wrap)
    run = FrameStream.run

    async def doubled(self: FrameStream, handlers: dict[str, Any]) -> Any:
        def wrapped(kind: str) -> Callable[[Any], None]:
            def handle(frame: Any) -> None:
                seen[kind] += 1
                handlers[kind](frame)
                handlers[kind](frame)

            return handle

        return await run(self, {kind: wrapped(kind) for kind in handlers})

    monkeypatch.setattr(FrameStream, "run", doubled)
    return seen


class Losing:
    """Loses calls of some RPCs, with a probability each; counts what was done, by RPC and fault."""

    def __init__(self, probability: float, seed: int) -> None:
        self.done: Counter[tuple[str, Fault]] = Counter()
        self._probability = probability
        self._random = random.Random(seed)
        self._late: set[asyncio.Task[Any]] = set()

    def wrap(self, name: str, handler: Any) -> Any:
        async def handle(request: Any, context: Any) -> Any:
            fault = self._random.choice(FAULTS) if self._random.random() < self._probability else ""
            if not fault:
                return await handler(request, context)
            self.done[name, fault] += 1
            if fault == "response":
                await handler(request, context)
            elif fault == "in_flight":
                task = asyncio.create_task(_quietly(handler(request, _Nobody(context))))
                self._late.add(task)
                task.add_done_callback(self._late.discard)
            return await context.abort(grpc.StatusCode.UNAVAILABLE, f"{fault} lost")

        return handle


class _Received:
    """The context of a call whose request was read: each handler gets the same one."""

    def __init__(self, context: Any, message: bytes) -> None:
        self._context = context
        self._message = message

    async def read(self) -> bytes:
        return self._message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class _Nobody:
    """The context of a call whose asker has gone."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def abort(self, *what: Any) -> None:
        raise grpc.aio.AbortError(*what)

    async def abort_with_status(self, status: Any) -> None:
        raise grpc.aio.AbortError(status)

    def set_trailing_metadata(self, metadata: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


async def _quietly(call: Any) -> None:
    with contextlib.suppress(Exception):
        await call


def losing_frames(monkeypatch: pytest.MonkeyPatch, kinds: set[str], probability: float, seed: int) -> Counter[str]:
    """Frames of some kinds are lost on their way in, though the stream lives. How many, by kind."""
    dice, lost, run = random.Random(seed), Counter[str](), FrameStream.run

    async def losing(self: FrameStream, handlers: dict[str, Any]) -> Any:
        def wrapped(kind: str) -> Callable[[Any], None]:
            def handle(frame: Any) -> None:
                if dice.random() < probability:
                    lost[kind] += 1
                else:
                    handlers[kind](frame)

            return handle

        return await run(self, handlers | {kind: wrapped(kind) for kind in kinds & set(handlers)})

    monkeypatch.setattr(FrameStream, "run", losing)
    return lost
