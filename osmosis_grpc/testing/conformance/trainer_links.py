"""The suite in the role of an agent server: its links to a trainer under test."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import grpc

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, control_pb2, error_pb2, services_pb2
from osmosis_grpc.testing.conformance.calls import Calls, Trace
from osmosis_grpc.testing.conformance.links import CallLink, DialledLink, OutOfTime, ServedLink
from osmosis_grpc.testing.conformance.listener import Listener, refuse
from osmosis_grpc.testing.conformance.protobuf_data import CaseError, from_data, status_message, to_data
from osmosis_grpc.testing.raw.connections import ACCEPT, OPTIONS, OWN_CONNECTION

START = 20.0
"""A trainer must open its stream or listen within this many seconds."""
SOON = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500))
"""Options of a channel to a trainer that may still be starting."""
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
_METHODS = {"chat": "Chat", "complete": "Complete", "abandon_chat": "AbandonChat"}


def server_hello(journal_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the suite's ServerHello as data. The fields that a case gives replace the usual ones."""
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


class PlayedServer(Listener):
    """Serves RolloutService on a free port: Attach, Init, GetServerInfo and Cancel."""

    def __init__(self, host: str) -> None:
        super().__init__("Attach", f"{host}:0")
        self.callbacks: CallbackLink | None = None
        """The link that gets the Inits that come as calls."""
        self._known: set[tuple[str, int]] = set()
        self._lives = 1

    def calls(self) -> Mapping[str, Any]:
        return {"Init": self._init, "GetServerInfo": self._info, "GetRollout": self._rollout, "Cancel": self._cancel}

    def forget(self) -> None:
        """Continue as a new process with a new, empty journal."""
        self._known.clear()
        self._lives += 1

    async def _init(self, request: Any, context: Any) -> Any:
        if self.callbacks is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this case expects no Init as a call")
        self._known.add((request.rollout_id, request.attempt or 1))
        return await self.callbacks.init(request, context)  # type: ignore[union-attr]

    async def _info(self, _request: Any, _context: Any) -> Any:
        hello = server_hello(f"journal {self._lives} of the suite", {"process_id": f"process {self._lives}"})
        loops = [{"name": name} for name in hello.pop("agent_loops")]
        del hello["max_open_rollouts"]
        capacity = {"max_concurrent": 100, "max_queued": 100}
        return from_data(control_pb2.GetServerInfoResponse, hello | {"agent_loops": loops, "capacity": capacity})

    async def _rollout(self, request: Any, context: Any) -> Any:
        if self.callbacks is not None:
            self.callbacks.trace.add("<-", "GetRollout", to_data(request))
        attempts = [attempt for rollout_id, attempt in self._known if rollout_id == request.rollout_id]
        if not attempts or request.attempt not in (0, *attempts):
            await refuse(context, status_message({"code": "NOT_FOUND", "reason": "ROLLOUT_UNKNOWN"}))
        found = {"rollout_id": request.rollout_id, "attempt": request.attempt or max(attempts)}
        return from_data(control_pb2.GetRolloutResponse, {"rollout": found | {"state": "ROLLOUT_STATE_RUNNING"}})

    async def _cancel(self, request: Any, _context: Any) -> Any:
        row = control_pb2.CancelResult(
            rollout_id=request.rollout_id, disposition=control_pb2.CANCEL_DISPOSITION_UNKNOWN
        )
        return control_pb2.CancelResponse(results=[row])


class AttachLink(ServedLink):
    """Attach: the trainer under test dials the suite."""

    def __init__(self, server: PlayedServer, trace: Trace, journal_id: str) -> None:
        super().__init__(server, attach_pb2.ServerFrame, trace, "attach")
        self.journal_id = journal_id

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        """Wait for the trainer's stream and its hello, and answer the hello."""
        try:
            async with asyncio.timeout(START):
                self.started(await self.listener.next_stream())
        except TimeoutError:
            raise OutOfTime(f"the trainer opened no stream within {START:g} s") from None
        self.trace.add("<-", "attach opened")
        await self.until(lambda: self.inbox.frames or self.inbox.over, "the trainer's hello")
        if hello is not None:
            first = self.inbox.frames[0] if self.inbox.frames else None
            own = {"attachment_id": first.hello.attachment_id if first is not None else ""}
            await self.send([{"hello": server_hello(self.journal_id, own | dict(hello))}])


class AcceptLink(DialledLink):
    """Accept: the suite dials the trainer under test."""

    def __init__(self, address: str, trace: Trace, journal_id: str) -> None:
        channel = grpc.aio.insecure_channel(address, options=[OWN_CONNECTION, *OPTIONS, *SOON])
        call: Any = channel.stream_stream(ACCEPT, None, services_pb2.AcceptResponse.FromString)
        super().__init__(
            partial(call, wait_for_ready=True),
            channel,
            services_pb2.AcceptRequest,
            partial(server_hello, journal_id),
            trace,
            "accept",
        )

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        try:
            async with asyncio.timeout(START):
                await self._channel.channel_ready()
        except TimeoutError:
            raise OutOfTime(f"the trainer did not listen within {START:g} s") from None
        await super().open(hello)


class CallbackLink(CallLink):
    """Init is a call to the suite; Chat, Complete and AbandonChat are calls to the trainer's callback."""

    def __init__(self, server: PlayedServer, trace: Trace) -> None:
        super().__init__(attach_pb2.ServerFrame, trace)
        self._callbacks: dict[str, Any] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        server.callbacks = self

    async def init(self, request: Any, context: Any) -> Any:
        """Serve an Init. Wait until the case answers it."""
        self._callbacks[request.rollout_id] = request.callback
        result = await self.served((request.rollout_id, request.attempt or 1), attach_pb2.TrainerFrame(init=request))
        if isinstance(result, error_pb2.Status):
            await refuse(context, result)
        return result

    async def write(self, frames: Sequence[Any]) -> None:
        for frame in frames:
            kind = frame.WhichOneof("frame")
            if kind == "init_reply":
                reply = frame.init_reply
                self.answer((reply.rollout_id, reply.attempt or 1), getattr(reply, reply.WhichOneof("result")))
            elif kind in _METHODS:
                self.call(self._ask(kind, getattr(frame, kind)))
            else:
                raise CaseError(f"a server cannot send {kind} to a callback; leave callback out of `over`")

    async def cut(self) -> None:
        """Cancel all open calls of the suite."""
        self.trace.add("->", "all open calls cancelled")
        self.cancel_calls()

    def calls(self, rollout_id: str, credential: str | None = None) -> Calls:
        """Return an object that calls the callback of a rollout, with the rollout's credential or another one."""
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

    async def _ask(self, kind: str, message: Any) -> None:
        outcome = getattr(message, "outcome", None)
        whole = outcome if outcome is not None else message
        callback = self._callbacks.get(whole.rollout_id)
        if callback is not None and callback.state:
            message.state = callback.state
        result = await self.calls(whole.rollout_id).result(_METHODS[kind], message, 60)
        if kind == "chat":
            names = {name: getattr(whole, name) for name in ("rollout_id", "attempt", "sample", "chat_number")}
            await self.came(attach_pb2.TrainerFrame(chat_reply=attach_pb2.ChatReply(**names, **result)))
        elif kind == "complete":
            names = {name: getattr(whole, name) for name in ("rollout_id", "attempt", "result_id")}
            made = {"receipt": result["response"].receipt} if "response" in result else result
            await self.came(attach_pb2.TrainerFrame(complete_reply=attach_pb2.CompleteReply(**names, **made)))
