"""The suite as a trainer: its links to an agent server under test."""

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from google.rpc import status_pb2

from osmosis_grpc._gen.osmosis.rollout.v1 import attach_pb2, chat_pb2, error_pb2, outcome_pb2, services_pb2
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.testing.conformance.links import Link, StreamLink
from osmosis_grpc.testing.conformance.protobuf_data import CaseError, from_data
from osmosis_grpc.testing.conformance.trace import Trace
from osmosis_grpc.testing.raw import RawStream
from osmosis_grpc.testing.raw.connections import ATTACH, OPTIONS

CALL = job("testing.conformance.call", OnFailure.RAISE)
SERVICE = "osmosis.rollout.v1.TrainerService"
FEATURES = ["abandon_chat", "outcome_by_reference", "annotate", "goodbye", "fork", "blobs"]
"""The features that the suite lists unless a case lists others."""
_RESULT = {"Init": "init_reply", "Cancel": "cancel_reply", "Annotate": "annotate_reply"}


def new_id() -> str:
    """Return an attachment id."""
    return f"conformance-{secrets.token_hex(12)}"


def trainer_hello(attachment_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the suite's TrainerHello as data, with the fields of a case."""
    default = {
        "attachment_id": attachment_id,
        "process_id": "conformance",
        "version": "conformance suite",
        "protocol_min": 1,
        "protocol_max": 1,
        "max_open_chats": 100,
        "features": FEATURES,
    }
    return {name: value for name, value in (default | dict(given)).items() if value is not None}


class AttachLink(StreamLink):
    """Attach, dialled by the suite."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Sequence[tuple[str, str]], trace: Trace) -> None:
        super().__init__(attach_pb2.TrainerFrame, trace, "attach")
        self.attachment_id = new_id()
        self._metadata = metadata
        self._channel = channel
        self._call: Any = channel.stream_stream(ATTACH, None, services_pb2.AttachResponse.FromString)

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        self.trace.add("->", "attach opened")
        self.started(RawStream(self._call(metadata=self._metadata), services_pb2.AttachRequest))
        if hello is not None:
            await self.send([{"hello": trainer_hello(self.attachment_id, hello)}])

    async def close(self) -> None:
        with contextlib.suppress(AttributeError):
            if self.inbox.over is None:
                await self.inbox.cut()
        await self._channel.close()


class AcceptLink(StreamLink):
    """Accept: the agent server under test dials the suite.

    A server dials again only after a pause. So a case whose hello is the usual one goes on with the stream of the case
    before, and leaves its own stream to the next one.
    """

    def __init__(self, listener: "Listener", trace: Trace, prefix: str) -> None:
        super().__init__(attach_pb2.TrainerFrame, trace, "accept")
        self.attachment_id = new_id()
        self._listener = listener
        self._prefix = prefix
        self._usual = False

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        self._usual = hello == {}
        kept = self._listener.kept
        self._listener.kept = None
        if kept is not None and kept.over is None and self._usual:
            self.started(kept)
            self._taken, self._shown = set(range(1, len(kept.frames))), len(kept.frames)
            self.trace.add("<-", "accept: the stream of the case before")
            return
        if kept is not None:
            self._listener.finish(kept, "UNAVAILABLE")
        self.started(await self._listener.next_stream(self.wait))
        await self.until(lambda: self.inbox.frames or self.inbox.over, "the hello of the server that dialled")
        self.trace.add("<-", "accept opened")
        if hello is not None:
            await self.send([{"hello": trainer_hello(self.attachment_id, hello)}])

    async def half_close(self) -> None:
        self.trace.add("->", "accept ended with OK")
        self._listener.finish(self.inbox)

    async def cut(self) -> None:
        self.trace.add("->", "accept cut")
        self._listener.finish(self.inbox, "UNAVAILABLE")

    async def close(self) -> None:
        """Cancel the rollouts of the case. Leave the stream to the next case, or break it."""
        with contextlib.suppress(AttributeError):
            if self.inbox.over is None and self._usual:
                await self.send([{"cancel": {"id": "close", "request": {"rollout_id_prefix": self._prefix}}}])
                self._listener.kept = self.inbox
            else:
                self._listener.finish(self.inbox, "UNAVAILABLE")


class CallbackLink(Link):
    """Init, Cancel and Annotate as calls; Chat, Complete and AbandonChat come as calls to the listener."""

    def __init__(self, calls: Any, listener: "Listener", trace: Trace, prefix: str) -> None:
        super().__init__(attach_pb2.TrainerFrame, trace, "callback")
        self.frames: list[Any] = []
        self.over: str | None = None
        self.details, self.status = "", status_pb2.Status()
        self._calls = calls
        self._listener = listener
        self._prefix = prefix
        self._news = asyncio.Condition()
        self._open: dict[tuple[Any, ...], list[asyncio.Future[Any]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._callback: dict[str, Any] = {}
        self.use(self)

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        given = dict(hello or {})
        self._callback = {"target": self._listener.address, "features": FEATURES, "credential": "of-the-suite"}
        self._callback |= {name: given[name] for name in ("features", "history") if name in given}
        self._callback |= given.get("callback", {})
        self._listener.routes[self._prefix] = self

    async def until(self, condition: Any, what: str = "", wait: float | None = None) -> None:
        if what:
            await super().until(condition, what, wait)
        else:
            async with self._news:
                await self._news.wait_for(condition)

    async def write(self, frames: Sequence[Any]) -> None:
        for frame in frames:
            kind = frame.WhichOneof("frame")
            if kind in ("chat_reply", "complete_reply"):
                self._answer(frame, kind)
            elif kind in ("init", "cancel", "annotate"):
                task = child(CALL, self._ask(kind, frame))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                raise CaseError(f"a callback trainer cannot send {kind}; leave callback out of `over`")

    async def cut(self) -> None:
        """Answer all open calls with UNAVAILABLE."""
        self.trace.add("->", "all open calls answered with UNAVAILABLE")
        for waiting in self._open.values():
            for each in waiting:
                if not each.done():
                    each.set_result(error_pb2.Status(code=14, message="cut by the suite"))
        self._open.clear()

    async def close(self) -> None:
        self._listener.routes.pop(self._prefix, None)
        await self.cut()
        for task in self._tasks:
            task.cancel()

    async def served(self, kind: str, request: Any) -> Any:
        """Serve a call of the agent server: wait until the case answers it."""
        if kind == "abandon_chat":
            await self._came(attach_pb2.ServerFrame(abandon_chat=request))
            return chat_pb2.AbandonChatResponse()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open.setdefault(_key(request), []).append(answer)
        await self._came(attach_pb2.ServerFrame(**{kind: request}))
        return await answer

    def _answer(self, frame: Any, kind: str) -> None:
        reply = getattr(frame, kind)
        for waiting in self._open.pop(_key(reply), ()):
            if not waiting.done():
                waiting.set_result(getattr(reply, reply.WhichOneof("result")))

    async def _ask(self, kind: str, frame: Any) -> None:
        request = frame.init if kind == "init" else getattr(frame, kind).request
        if kind == "init" and not request.HasField("callback"):
            request.callback.CopyFrom(from_data(type(request.callback), self._callback))
        result = await self._calls.result({"init": "Init", "cancel": "Cancel", "annotate": "Annotate"}[kind], request)
        names = (
            {"rollout_id": request.rollout_id, "attempt": request.attempt or 1}
            if kind == "init"
            else {"id": getattr(frame, kind).id}
        )
        reply_kind = f"{kind}_reply"
        reply = getattr(attach_pb2.ServerFrame(), reply_kind)
        await self._came(attach_pb2.ServerFrame(**{reply_kind: type(reply)(**names, **result)}))

    async def _came(self, frame: Any) -> None:
        async with self._news:
            self.frames.append(frame)
            self._news.notify_all()


def _key(message: Any) -> tuple[Any, ...]:
    whole = message.outcome if hasattr(message, "outcome") else message
    if hasattr(whole, "chat_number"):
        return whole.rollout_id, whole.attempt, whole.sample, whole.chat_number
    return whole.rollout_id, whole.attempt, whole.result_id


class Listener:
    """Serves TrainerService for all cases: callbacks by the prefix of the rollout id, and streams of Accept in turn."""

    def __init__(self, host: str, accept: str | None) -> None:
        self.address = ""
        """HOST:PORT for callbacks."""
        self.routes: dict[str, CallbackLink] = {}
        self.kept: RawStream | None = None
        """A stream of Accept that the next case may go on with."""
        self._host = host
        self._accept = accept
        self._server = grpc.aio.server(options=(*OPTIONS, ("grpc.http2.min_ping_interval_without_data_ms", 1000)))
        self._streams: asyncio.Queue[RawStream] = asyncio.Queue()
        self._ends: dict[RawStream, asyncio.Future[str]] = {}

    async def __aenter__(self) -> "Listener":
        calls: dict[str, Any] = {
            "Chat": ("chat", "ChatRequest"),
            "Complete": ("complete", "CompleteRequest"),
            "AbandonChat": ("abandon_chat", "AbandonChatRequest"),
        }
        from osmosis_grpc.wire.methods import METHODS

        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(self._serve(kind), METHODS[name].request.FromString, _serialized)
            for name, (kind, _) in calls.items()
        }
        handlers["Accept"] = grpc.stream_stream_rpc_method_handler(
            self._serve_accept, services_pb2.AcceptRequest.FromString, None
        )
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        self.address = f"{self._host}:{self._server.add_insecure_port(f'{self._host}:0')}"
        if self._accept:
            self._server.add_insecure_port(self._accept)
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for stream in list(self._ends):
            self.finish(stream, "UNAVAILABLE")
        await self._server.stop(1.0)

    async def next_stream(self, wait: float) -> RawStream:
        """Return the next live stream of a server that dialled. Raises TimeoutError."""
        async with asyncio.timeout(wait * 2):
            while (stream := await self._streams.get()).over is not None:
                pass
            return stream

    def finish(self, stream: RawStream, status: str = "OK") -> None:
        """End a stream from this side."""
        end = self._ends.get(stream)
        if end is not None and not end.done():
            end.set_result(status)

    async def _serve_accept(self, _requests: Any, context: Any) -> None:
        stream = RawStream(context, services_pb2.AcceptResponse)
        end = self._ends[stream] = asyncio.get_running_loop().create_future()
        await self._streams.put(stream)
        try:
            await asyncio.wait({end, stream.reader}, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                context.set_code(grpc.StatusCode[end.result()])
        finally:
            stream.reader.cancel()
            del self._ends[stream]

    def _serve(self, kind: str) -> Any:
        async def serve(request: Any, context: Any) -> Any:
            rollout = request.outcome.rollout_id if kind == "complete" else request.rollout_id
            link = next((link for prefix, link in self.routes.items() if rollout.startswith(prefix)), None)
            if link is None:
                if kind == "complete":  # of a case that is over
                    return outcome_pb2.CompleteResponse(receipt=outcome_pb2.RECEIPT_RECORDED)
                await context.abort(grpc.StatusCode.NOT_FOUND, f"the suite does not know {rollout}")
            assert link is not None  # abort() raises
            answer = await link.served(kind, request)
            if isinstance(answer, error_pb2.Status):
                details = ("grpc-status-details-bin", answer.SerializeToString())
                context.set_trailing_metadata((details,))
                await context.abort(_grpc_code(answer.code), answer.message)
            return outcome_pb2.CompleteResponse(receipt=answer) if kind == "complete" else answer

        return serve


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _grpc_code(code: int) -> grpc.StatusCode:
    return next(each for each in grpc.StatusCode if each.value[0] == code)
