"""The suite in the role of a trainer: its links to an agent server under test."""

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import grpc

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, chat_pb2, error_pb2, outcome_pb2, services_pb2
from osmosis_grpc.testing.conformance.calls import Calls, Trace
from osmosis_grpc.testing.conformance.links import CallLink, DialledLink, Failed, ServedLink
from osmosis_grpc.testing.conformance.listener import Listener, refuse
from osmosis_grpc.testing.conformance.protobuf_data import CaseError, from_data
from osmosis_grpc.testing.raw import RawStream
from osmosis_grpc.testing.raw.connections import ATTACH

FEATURES = ["abandon_chat", "outcome_by_reference", "annotate", "goodbye", "fork", "blobs"]
"""The features in the suite's hello, unless a case lists others."""
_METHODS = {"init": "Init", "cancel": "Cancel", "annotate": "Annotate"}


def new_id() -> str:
    """Return an attachment id."""
    return f"conformance-{secrets.token_hex(12)}"


def trainer_hello(attachment_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the suite's TrainerHello as data. The fields that a case gives replace the usual ones."""
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


class AttachLink(DialledLink):
    """Attach: the suite dials the agent server under test."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Sequence[tuple[str, str]], trace: Trace) -> None:
        call: Any = channel.stream_stream(ATTACH, None, services_pb2.AttachResponse.FromString)
        self.attachment_id = new_id()
        super().__init__(
            partial(call, metadata=metadata),
            channel,
            services_pb2.AttachRequest,
            lambda hello: trainer_hello(self.attachment_id, hello),
            trace,
            "attach",
        )


class AcceptLink(ServedLink):
    """Accept: the agent server under test dials the suite.

    A server dials again only after a pause. To save this time, a case with the usual hello continues with the stream of
    the case before, and leaves its stream to the next case.
    """

    def __init__(self, listener: "TrainerListener", trace: Trace, prefix: str) -> None:
        super().__init__(listener, attach_pb2.TrainerFrame, trace, "accept")
        self.attachment_id = new_id()
        self._prefix = prefix
        self._usual = False

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        self._usual = hello == {}
        kept = self.listener.kept
        self.listener.kept = None
        if kept is not None and kept.over is None and self._usual:
            self.started(kept)
            self._taken, self._shown = set(range(1, len(kept.frames))), len(kept.frames)
            self.trace.add("<-", "accept: the stream of the case before")
            return
        if kept is not None:
            self.listener.finish(kept, "UNAVAILABLE")
        if self.listener.silent:
            raise Failed("the server has dialled no stream; an earlier case waited for it")
        try:
            async with asyncio.timeout(2 * self.wait):
                self.started(await self.listener.next_stream())
        except TimeoutError:
            self.listener.silent = not self.listener.came
            raise Failed(f"the server dialled no stream within {2 * self.wait:g} s") from None
        await self.until(lambda: self.inbox.frames or self.inbox.over, "the hello of the server that dialled")
        self.trace.add("<-", "accept opened")
        if hello is not None:
            await self.send([{"hello": trainer_hello(self.attachment_id, hello)}])

    async def close(self) -> None:
        """Cancel the rollouts of the case. Leave the stream to the next case, or break it."""
        with contextlib.suppress(AttributeError):
            if self.inbox.over is None and self._usual:
                await self.send([{"cancel": {"id": "close", "request": {"rollout_id_prefix": self._prefix}}}])
                self.listener.kept = self.inbox
            else:
                self.listener.finish(self.inbox, "UNAVAILABLE")


class CallbackLink(CallLink):
    """Init, Cancel and Annotate are calls of the suite; Chat, Complete and AbandonChat are calls to its listener."""

    def __init__(self, calls: Calls, listener: "TrainerListener", trace: Trace, prefix: str) -> None:
        super().__init__(attach_pb2.TrainerFrame, trace)
        self._made = calls
        self._listener = listener
        self._prefix = prefix
        self._callback: dict[str, Any] = {}

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        given = dict(hello or {})
        self._callback = {"target": self._listener.address, "features": FEATURES, "credential": "of-the-suite"}
        self._callback |= {name: given[name] for name in ("features", "history") if name in given}
        self._callback |= given.get("callback", {})
        self._listener.routes[self._prefix] = self

    async def write(self, frames: Sequence[Any]) -> None:
        for frame in frames:
            kind = frame.WhichOneof("frame")
            if kind in ("chat_reply", "complete_reply"):
                reply = getattr(frame, kind)
                self.answer(_key(reply), getattr(reply, reply.WhichOneof("result")))
            elif kind in _METHODS:
                self.call(self._ask(kind, frame))
            else:
                raise CaseError(f"a callback trainer cannot send {kind}; leave callback out of `over`")

    async def cut(self) -> None:
        """Answer all open calls with UNAVAILABLE."""
        self.trace.add("->", "all open calls answered with UNAVAILABLE")
        for key in list(self.waiting):
            self.answer(key, error_pb2.Status(code=14, message="cut by the suite"))

    async def close(self) -> None:
        self._listener.routes.pop(self._prefix, None)
        await self.cut()
        self.cancel_calls()

    async def take_call(self, kind: str, request: Any) -> Any:
        """Serve a call of the agent server, and return the answer that the case gives."""
        frame = attach_pb2.ServerFrame(**{kind: request})
        if kind == "abandon_chat":
            await self.came(frame)
            return chat_pb2.AbandonChatResponse()
        return await self.served(_key(request), frame)

    async def _ask(self, kind: str, frame: Any) -> None:
        request = frame.init if kind == "init" else getattr(frame, kind).request
        if kind == "init" and not request.HasField("callback"):
            request.callback.CopyFrom(from_data(type(request.callback), self._callback))
        result = await self._made.result(_METHODS[kind], request)
        if kind == "init":
            names = {"rollout_id": request.rollout_id, "attempt": request.attempt or 1}
        else:
            names = {"id": getattr(frame, kind).id}
        reply = getattr(attach_pb2.ServerFrame(), f"{kind}_reply")
        await self.came(attach_pb2.ServerFrame(**{f"{kind}_reply": type(reply)(**names, **result)}))


def _key(message: Any) -> tuple[Any, ...]:
    whole = message.outcome if hasattr(message, "outcome") else message
    if hasattr(whole, "chat_number"):
        return whole.rollout_id, whole.attempt, whole.sample, whole.chat_number
    return whole.rollout_id, whole.attempt, whole.result_id


class TrainerListener(Listener):
    """Serves TrainerService for all cases. The prefix of a rollout id tells which case gets a callback.

    Streams of Accept go to one case after the other. `host` is the address for callbacks, and `accept` is HOST:PORT for
    streams.
    """

    def __init__(self, host: str, accept: str | None) -> None:
        super().__init__("Accept", f"{host}:0", *([accept] if accept else []))
        self.routes: dict[str, CallbackLink] = {}
        self.kept: RawStream | None = None
        """A stream of Accept that the next case may continue with."""

    def calls(self) -> Mapping[str, Any]:
        kinds = {"Chat": "chat", "Complete": "complete", "AbandonChat": "abandon_chat"}
        return {method: partial(self._served, kind) for method, kind in kinds.items()}

    async def _served(self, kind: str, request: Any, context: Any) -> Any:
        rollout = request.outcome.rollout_id if kind == "complete" else request.rollout_id
        link = next((link for prefix, link in self.routes.items() if rollout.startswith(prefix)), None)
        if link is None:
            if kind == "complete":  # the case of this outcome is over
                return outcome_pb2.CompleteResponse(receipt=outcome_pb2.RECEIPT_RECORDED)
            await context.abort(grpc.StatusCode.NOT_FOUND, f"the suite does not know {rollout}")
        assert link is not None  # abort() raises
        answer = await link.take_call(kind, request)
        if isinstance(answer, error_pb2.Status):
            await refuse(context, answer)
        return outcome_pb2.CompleteResponse(receipt=answer) if kind == "complete" else answer
