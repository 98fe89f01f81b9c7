"""TrainerService over grpc.aio: answers chats with a policy and receives completions."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc

from osmosis_grpc._gen.osmosis.rollout.v1 import services_pb2_grpc
from osmosis_grpc._gen.osmosis.rollout.v1 import trainer_pb2 as pb
from osmosis_grpc.errors import Internal, Unavailable, Unimplemented
from osmosis_grpc.link.interceptors import StatusInterceptor
from osmosis_grpc.link.listen import listen
from osmosis_grpc.link.options import MAX_REPLY_BYTES, server_options
from osmosis_grpc.link.targets import is_loopback
from osmosis_grpc.policies import Policy
from osmosis_grpc.trainer.chatbook import ChatBook
from osmosis_grpc.types import Callback, Completion, Outcome
from osmosis_grpc.wire.rollout import completion_from_wire
from osmosis_grpc.wire.trainer import chat_from_wire, outcome_to_wire, reply_to_wire

log = logging.getLogger(__name__)

Recorder = Callable[[Completion, bytes, str], Awaitable[None]]
"""Takes a completion, the state of its callback, and the credential it came with."""


class TrainerServer:
    """Hosts a policy. Used as `async with TrainerServer(policy) as trainer`.

    A completion counts as recorded when this object holds it; it keeps it until completion()
    or completions() hands it over. What is known of a rollout is forgotten `ttl` seconds after
    it was last heard of; make that twice the server's record TTL or more.

    With a `recorder` completions go there instead: it is awaited with a completion, its
    callback's state and its credential, and the completion counts as recorded when it returns.
    What it raises is told to the server, which sends the completion again, or, for
    InvalidArgument, Aborted and Unimplemented, gives it up. Raises OSError when the port is
    taken, ValueError when the host is public.
    """

    def __init__(
        self, policy: Policy, *, host: str = "127.0.0.1", port: int = 0, ttl: float = 7200.0,
        recorder: Recorder | None = None,
    ) -> None:  # fmt: skip
        if not is_loopback(host):
            raise ValueError(f"{host} is not loopback, and a public address needs a token or TLS")
        self.port = port
        self._host = host
        self._ttl = ttl
        self._recorder = recorder
        self._recording: dict[tuple[str, int, str], asyncio.Task[None]] = {}
        self._book = ChatBook(policy)
        self._recorded: dict[str, Completion] = {}
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._arrived = asyncio.Event()
        self._closed = False
        self._server: grpc.aio.Server
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT, the port as bound."""
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    def callback(self, *, credential: str = "", state: bytes = b"", delta: bool = False) -> Callback:
        """Where rollouts are to call back; hand it to RolloutClient.init.

        With `delta` chats refer to earlier ones instead of repeating them.
        """
        if not self.port:
            raise RuntimeError("the trainer does not listen yet: use `async with TrainerServer(...)`")
        return Callback(target=self.address, credential=credential, state=state, delta=delta)

    async def completion(self, rollout_id: str, timeout: float | None = None, *, attempt: int = 0) -> Completion:
        """Wait for a rollout's completion, of this attempt or a higher one, and take it.

        Waits for as long as nothing comes, or `timeout` seconds, then raises TimeoutError. That
        a server is gone is noticed by RolloutClient.wait, not here.
        """
        arrived, taken = asyncio.Event(), False
        waiting = self._waiting.setdefault(rollout_id, set())
        waiting.add(arrived)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    kept = self._recorded.get(rollout_id)
                    if kept is not None and kept.attempt >= attempt:
                        taken = True
                        return kept
                    if self._closed:
                        raise RuntimeError("the trainer is closed: nothing more comes")
                    arrived.clear()
                    await arrived.wait()
        finally:
            waiting.discard(arrived)
            if not waiting:
                self._waiting.pop(rollout_id, None)
                if taken:
                    self._recorded.pop(rollout_id, None)
                self._arrived.set()  # what nobody waits for any more is for completions()

    async def completions(self) -> AsyncIterator[Completion]:
        """Take completions that nobody waits for by name, as they come; without end."""
        while True:
            while free := [name for name in self._recorded if name not in self._waiting]:
                yield self._recorded.pop(free[0])
            self._arrived.clear()
            await self._arrived.wait()

    async def __aenter__(self) -> "TrainerServer":
        self._server = grpc.aio.server(interceptors=(StatusInterceptor(),), options=server_options())
        services_pb2_grpc.add_TrainerServiceServicer_to_server(_Servicer(self), self._server)
        self.port = int(listen(self._server, self.address).rpartition(":")[2])
        await self._server.start()
        self._sweeper = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(self, *exc: Any) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._server.stop(0.5)
        self._book.close()
        for task in list(self._recording.values()):
            task.cancel()
        self._closed = True
        for waiting in self._waiting.values():
            for arrived in waiting:
                arrived.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(60.0, self._ttl / 4))
            self._book.sweep(time.monotonic() - self._ttl)

    async def _complete(self, completion: Completion, state: bytes, credential: str) -> Outcome:
        now = time.monotonic()
        if self._recorder is not None and self._book.is_new(completion, now):
            await self._record_elsewhere(self._recorder, completion, state, credential)
        outcome, recorded = self._book.complete(completion, time.monotonic())
        if recorded is not None and self._recorder is None:
            self._record(recorded)
        return outcome

    async def _record_elsewhere(
        self, recorder: Recorder, completion: Completion, state: bytes, credential: str
    ) -> None:
        """Hand a result to the recorder once; who sends it again meanwhile joins."""
        key = (completion.rollout_id, completion.attempt, completion.result_id)
        task = self._recording.get(key)
        if task is None:
            task = asyncio.ensure_future(recorder(completion, state, credential))
            self._recording[key] = task
            task.add_done_callback(lambda done: (self._recording.pop(key, None), done.cancelled() or done.exception()))
        await asyncio.wait({task})
        if task.cancelled():
            raise Unavailable("the trainer is closing")
        task.result()

    def _record(self, completion: Completion) -> None:
        """Keep a completion until somebody takes it, and tell those who wait."""
        self._recorded[completion.rollout_id] = completion
        for arrived in (*self._waiting.get(completion.rollout_id, ()), self._arrived):
            arrived.set()


class _Servicer(services_pb2_grpc.TrainerServiceServicer):
    """The RPCs: from the wire, ask the book, to the wire."""

    def __init__(self, trainer: TrainerServer) -> None:
        self._trainer = trainer

    async def Chat(self, request: pb.ChatRequest, context: Any) -> pb.ChatResponse:
        chat = replace(chat_from_wire(request, context.time_remaining()), credential=_credential(context))
        asked = self._trainer._book.chat(chat, time.monotonic())
        if not asked.done.done():
            await asyncio.wait({asked.done})
        asked.done.result()
        reply = reply_to_wire(asked.reply(chat.continues))
        if reply.ByteSize() > MAX_REPLY_BYTES:
            raise Internal(f"the reply to chat {chat.number} has {reply.ByteSize()} bytes, more than {MAX_REPLY_BYTES}")
        return reply

    async def Accept(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        raise Unimplemented("this trainer takes callbacks; attach(..., listen_on=HOST:PORT) takes agent servers")

    async def Complete(self, request: pb.CompleteRequest, context: Any) -> pb.CompleteResponse:
        completion = completion_from_wire(request.completion, "completion")
        outcome = await self._trainer._complete(completion, request.state, _credential(context))
        return pb.CompleteResponse(outcome=outcome_to_wire(outcome))


def _credential(context: Any) -> str:
    """The bearer token that a call came with."""
    given = next((str(value) for key, value in context.invocation_metadata() or () if key == "authorization"), "")
    return given[7:] if given[:7].lower() == "bearer " else given
