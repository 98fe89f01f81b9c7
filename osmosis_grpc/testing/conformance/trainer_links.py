"""The suite as an agent server: its links to a trainer under test."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from google.rpc import status_pb2

from osmosis_grpc._gen.osmosis.rollout.v1 import attach_pb2, control_pb2, error_pb2, services_pb2
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.testing.conformance.calls import Calls
from osmosis_grpc.testing.conformance.links import Failed, Link, StreamLink
from osmosis_grpc.testing.conformance.protobuf_data import CaseError, from_data, status_message
from osmosis_grpc.testing.conformance.trace import Trace
from osmosis_grpc.testing.raw import RawStream
from osmosis_grpc.testing.raw.connections import ACCEPT, OPTIONS, OWN_CONNECTION
from osmosis_grpc.wire.methods import METHODS

CALLED = job("testing.conformance.called", OnFailure.RAISE)
SERVICE = "osmosis.rollout.v1.RolloutService"
START = 20.0
"""Seconds in which a trainer has started: it has opened its stream, or listens."""
SOON = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500))
"""Options of a channel to a trainer that is starting."""
FEATURES = ["abandon_chat", "outcome_by_reference", "annotate", "goodbye"]
LIMITS = {
    "max_message_bytes": 67108864,
    "max_metadata_bytes": 1048576,
    "max_json_depth": 256,
    "max_rollout_id_chars": 256,
    "agent_timeout": "1800s",
    "max_sent_bytes": 67108864,
    "max_reply_bytes": 33554432,
    "outcome_ttl": "3600s",
    "trainer_grace": "120s",
    "chat_silence": "50s",
    "chat_retry_min": "0.5s",
    "chat_retry_max": "5s",
    "outcome_retry_min": "0.5s",
    "outcome_retry_max": "30s",
    "heartbeat_interval": "15s",
    "heartbeat_timeout": "45s",
    "min_ping_interval": "10s",
}
REASONS = {"ABORTED": {"code": "ABORTED", "reason": "ATTACHMENT_REPLACED", "message": "another stream has this id"}}
"""The statuses with a reason of their own with which the suite ends a stream."""
_METHODS = {"chat": "Chat", "complete": "Complete", "abandon_chat": "AbandonChat"}


def server_hello(journal_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the suite's ServerHello as data, with the fields of a case."""
    default = {
        "process_id": "conformance",
        "journal_id": journal_id,
        "version": "conformance suite",
        "protocol_min": 1,
        "protocol_max": 1,
        "max_open_rollouts": 100,
        "agent_loops": ["conformance"],
        "features": FEATURES,
        "limits": LIMITS,
    }
    own = dict(given)
    if "limits" in own:
        own["limits"] = LIMITS | own["limits"]
    return {name: value for name, value in (default | own).items() if value is not None}


class PlayedServer:
    """Serves RolloutService on a free port of loopback: Attach, Init, GetServerInfo and Cancel."""

    def __init__(self) -> None:
        self.address = ""
        self.callbacks: CallbackLink | None = None
        """Gets the Inits that come as calls."""
        self._streams: asyncio.Queue[RawStream] = asyncio.Queue()
        self._ends: dict[RawStream, asyncio.Future[str]] = {}
        options = (*OPTIONS, ("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 1000))
        self._server = grpc.aio.server(options=options)

    async def __aenter__(self) -> "PlayedServer":
        calls = {"Init": self._init, "GetServerInfo": self._info, "Cancel": self._cancel}
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(call, METHODS[name].request.FromString, _serialized)
            for name, call in calls.items()
        }
        handlers["Attach"] = grpc.stream_stream_rpc_method_handler(
            self._attach, services_pb2.AttachRequest.FromString, None
        )
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.stop(0)

    async def next_stream(self) -> RawStream:
        """Return the next live stream."""
        while (stream := await self._streams.get()).over is not None:
            pass
        return stream

    def finish(self, stream: RawStream, status: str) -> None:
        """End a stream with a status."""
        end = self._ends.get(stream)
        if end is not None and not end.done():
            end.set_result(status)

    async def _attach(self, _requests: Any, context: Any) -> None:
        stream = RawStream(context, services_pb2.AttachResponse)
        end = self._ends[stream] = asyncio.get_running_loop().create_future()
        await self._streams.put(stream)
        try:
            await asyncio.wait({end, stream.reader}, return_when=asyncio.FIRST_COMPLETED)
            if end.done() and end.result() != "OK":
                status = status_message(REASONS.get(end.result(), end.result()))
                context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
                context.set_code(grpc.StatusCode[end.result()])
                context.set_details(status.message)
        finally:
            stream.reader.cancel()
            del self._ends[stream]

    async def _init(self, request: Any, context: Any) -> Any:
        if self.callbacks is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this case expects no Init as a call")
        return await self.callbacks.init(request, context)  # type: ignore[union-attr]

    async def _info(self, _request: Any, _context: Any) -> Any:
        hello = server_hello("journal of the suite", {})
        loops = [{"name": name} for name in hello.pop("agent_loops")]
        del hello["max_open_rollouts"]
        capacity = {"max_concurrent": 100, "max_queued": 100}
        return from_data(control_pb2.GetServerInfoResponse, hello | {"agent_loops": loops, "capacity": capacity})

    async def _cancel(self, request: Any, _context: Any) -> Any:
        row = control_pb2.CancelResult(
            rollout_id=request.rollout_id, disposition=control_pb2.CANCEL_DISPOSITION_UNKNOWN
        )
        return control_pb2.CancelResponse(results=[row])


class AttachLink(StreamLink):
    """Attach: the trainer under test dials the suite."""

    def __init__(self, server: PlayedServer, trace: Trace, journal_id: str) -> None:
        super().__init__(attach_pb2.ServerFrame, trace, "attach")
        self.journal_id = journal_id
        self._server = server

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        """Wait for the trainer's stream and its hello, and answer it."""
        try:
            async with asyncio.timeout(START):
                self.started(await self._server.next_stream())
        except TimeoutError:
            raise Failed(f"the trainer opened no stream within {START:g} s") from None
        self.trace.add("<-", "attach opened")
        await self.until(lambda: self.inbox.frames or self.inbox.over, "the trainer's hello")
        if hello is not None:
            first = self.inbox.frames[0] if self.inbox.frames else None
            own = {"attachment_id": first.hello.attachment_id if first is not None else ""}
            await self.send([{"hello": server_hello(self.journal_id, own | dict(hello))}])

    async def half_close(self) -> None:
        self.trace.add("->", "attach ended with OK")
        self._server.finish(self.inbox, "OK")

    async def cut(self) -> None:
        await self.finish("UNAVAILABLE")

    async def finish(self, status: str) -> None:
        """End the stream with a status."""
        self.trace.add("->", f"attach ended with {status}")
        self._server.finish(self.inbox, status)


class AcceptLink(StreamLink):
    """Accept: the suite dials the trainer under test."""

    def __init__(self, address: str, trace: Trace, journal_id: str) -> None:
        super().__init__(attach_pb2.ServerFrame, trace, "accept")
        self.journal_id = journal_id
        self._channel = grpc.aio.insecure_channel(address, options=[OWN_CONNECTION, *OPTIONS, *SOON])
        self._call: Any = self._channel.stream_stream(ACCEPT, None, services_pb2.AcceptResponse.FromString)

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        self.trace.add("->", "accept opened")
        try:
            async with asyncio.timeout(START):
                await self._channel.channel_ready()
        except TimeoutError:
            raise Failed(f"the trainer did not listen within {START:g} s") from None
        self.started(RawStream(self._call(wait_for_ready=True), services_pb2.AcceptRequest))
        if hello is not None:
            await self.send([{"hello": server_hello(self.journal_id, hello)}])

    async def finish(self, _status: str) -> None:
        """Break the stream."""
        await self.cut()

    async def close(self) -> None:
        await self._channel.close()


class CallbackLink(Link):
    """Init comes as a call; Chat, Complete and AbandonChat are calls to the trainer's callback."""

    def __init__(self, server: PlayedServer, trace: Trace) -> None:
        super().__init__(attach_pb2.ServerFrame, trace, "callback")
        self.frames: list[Any] = []
        self.over: str | None = None
        self.details, self.status = "", status_pb2.Status()
        self._news = asyncio.Condition()
        self._open: dict[tuple[str, int], list[asyncio.Future[Any]]] = {}
        self._callbacks: dict[str, Any] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        server.callbacks = self
        self.use(self)

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        """There is nothing to open."""

    async def until(self, condition: Any, what: str = "", wait: float | None = None) -> None:
        if what:
            await super().until(condition, what, wait)
        else:
            async with self._news:
                await self._news.wait_for(condition)

    async def init(self, request: Any, context: Any) -> Any:
        """Serve an Init: wait until the case answers it."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open.setdefault((request.rollout_id, request.attempt or 1), []).append(answer)
        self._callbacks[request.rollout_id] = request.callback
        await self._came(attach_pb2.TrainerFrame(init=request))
        result = await answer
        if isinstance(result, error_pb2.Status):
            context.set_trailing_metadata((("grpc-status-details-bin", result.SerializeToString()),))
            await context.abort(next(each for each in grpc.StatusCode if each.value[0] == result.code), result.message)
        return result

    async def write(self, frames: Sequence[Any]) -> None:
        for frame in frames:
            kind = frame.WhichOneof("frame")
            if kind == "init_reply":
                reply = frame.init_reply
                for waiting in self._open.pop((reply.rollout_id, reply.attempt or 1), ()):
                    if not waiting.done():
                        waiting.set_result(getattr(reply, reply.WhichOneof("result")))
            elif kind in _METHODS:
                task = child(CALLED, self._call(kind, getattr(frame, kind)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                raise CaseError(f"a server cannot send {kind} to a callback; leave callback out of `over`")

    async def cut(self) -> None:
        """Cancel all open calls of the trainer."""
        self.trace.add("->", "all open calls cancelled")
        for task in self._tasks:
            task.cancel()

    def calls(self, rollout_id: str, credential: str | None = None) -> Calls:
        """Return a caller of the callback of a rollout, with its credential or another one."""
        if rollout_id not in self._callbacks and not self._callbacks:
            raise CaseError("no Init has come, so there is no callback to call")
        callback = self._callbacks.get(rollout_id) or next(iter(self._callbacks.values()))
        if callback.target not in self._channels:
            options = [OWN_CONNECTION, *OPTIONS]
            self._channels[callback.target] = grpc.aio.insecure_channel(callback.target, options=options)
        shown = callback.credential if credential is None else credential
        metadata = (("authorization", f"Bearer {shown}"),) if shown else ()
        return Calls(self._channels[callback.target], metadata, self.trace)

    async def close(self) -> None:
        await self.cut()
        for channel in self._channels.values():
            with contextlib.suppress(Exception):
                await channel.close()

    async def _call(self, kind: str, message: Any) -> None:
        outcome = getattr(message, "outcome", None)
        whole = outcome if outcome is not None else message
        callback = self._callbacks.get(whole.rollout_id)
        if callback is not None and callback.state:
            message.state = callback.state
        result = await self.calls(whole.rollout_id).result(_METHODS[kind], message, 60)
        if kind == "chat":
            names = {name: getattr(whole, name) for name in ("rollout_id", "attempt", "sample", "chat_number")}
            await self._came(attach_pb2.TrainerFrame(chat_reply=attach_pb2.ChatReply(**names, **result)))
        elif kind == "complete":
            names = {name: getattr(whole, name) for name in ("rollout_id", "attempt", "result_id")}
            made = {"receipt": result["response"].receipt} if "response" in result else result
            await self._came(attach_pb2.TrainerFrame(complete_reply=attach_pb2.CompleteReply(**names, **made)))

    async def _came(self, frame: Any) -> None:
        async with self._news:
            self.frames.append(frame)
            self._news.notify_all()


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())
