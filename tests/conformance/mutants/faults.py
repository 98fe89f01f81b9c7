"""Faults that are planted in this project's server and trainer for tests of the conformance suite.

A fault changes the frames that one side sends or gets, or replaces one function. Nothing in the package knows of them:
`server.py` and `trainer.py` of this folder switch one on with `--fault NAME`. To add a fault, add a row to a table.
"""

import importlib
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
from google.rpc import error_details_pb2

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import outcome_pb2, services_pb2
from osmosis_grpc.protocol.errors import Aborted
from osmosis_grpc.protocol.stream.stream_machine import StreamMachine

Edit = Callable[[Any], int | None]
"""Changes the content of a frame. It may return how many times the frame is sent or handled, in place of once."""
SENT = {"server": services_pb2.AttachResponse, "trainer": services_pb2.AttachRequest}
"""The messages that each side sends."""


class Fault(NamedTuple):
    """A planted fault. Its name says what the side does."""

    found_by: str
    """The case that finds it."""
    plant: Callable[[str], None]
    """Switches it on in this process, which is a `server` or a `trainer`."""
    mode: str = "attach"
    """The mode in which the case finds it."""


# How a fault is planted.


def sends(kind: str, edit: Edit) -> Callable[[str], None]:
    """Change each frame of a kind that this side sends."""

    def plant(side: str) -> None:
        messages = SENT[side]
        for name in ("send", "answer", "send_event"):
            original = getattr(StreamMachine, name)

            def changed(self: Any, data: bytes, original: Any = original) -> None:
                frame = messages.FromString(data).frames[0]
                times = edit(getattr(frame, kind)) if frame.WhichOneof("frame") == kind else None
                for _ in range(1 if times is None else times):
                    original(self, messages(frames=[frame]).SerializeToString())

            setattr(StreamMachine, name, changed)

    return plant


def gets(kind: str, edit: Edit) -> Callable[[str], None]:
    """Change each frame of a kind that this side gets. The kind of an unknown frame is ""."""

    def plant(_side: str) -> None:
        original = StreamMachine.next_frames

        def changed(self: Any, accepted: Any) -> list[Any]:
            while frames := original(self, accepted):
                kept = []
                for each, content in frames:
                    times = edit(content) if each == kind else None
                    kept += [(each, content)] * (1 if times is None else times)
                if kept:
                    return kept
            return []

        StreamMachine.next_frames = changed  # type: ignore[method-assign]

    return plant


def replaced(place: str, new: Callable[[Any], Any]) -> Callable[[str], None]:
    """Replace a function or a constant, MODULE:NAME in the package; `new` gets the original."""

    def plant(_side: str) -> None:
        module, path = place.split(":")
        owner: Any = importlib.import_module(f"osmosis_grpc.{module}")
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, new(getattr(owner, name)))

    return plant


# Edits.


def _dropped(_content: Any) -> int:
    return 0


def _twice(_content: Any) -> int:
    return 2


def _raises(_content: Any) -> None:
    raise RuntimeError("a planted fault: an unknown frame")


def _always_created(reply: Any) -> None:
    if reply.HasField("response"):
        reply.response.created = True


def _without_details(reply: Any) -> None:
    if reply.HasField("status"):
        del reply.status.details[:]


def _wrong_parent(chat: Any) -> None:
    if chat.HasField("delta") and chat.delta.parent_chat > 1:
        chat.delta.parent_chat -= 1


def _one_message_more(chat: Any) -> None:
    if chat.HasField("delta"):
        chat.delta.messages.insert(0, chat.delta.messages[0])


def _never_in_full(chat: Any) -> None:
    if chat.HasField("full") and chat.chat_number > 1:
        messages = list(chat.full.messages)[-1:]
        chat.delta.CopyFrom(type(chat.delta)(parent_chat=chat.chat_number - 1, messages=messages))


def _shifted_mask(complete: Any) -> None:
    for sample in complete.outcome.samples:
        for segment in sample.segments:
            if len(segment.mask_runs) > 1 and segment.mask_runs[0]:
                segment.mask_runs[0] -= 1
                segment.mask_runs[1] += 1


def _zero_reward(complete: Any) -> None:
    if not complete.outcome.HasField("reward"):
        complete.outcome.reward = 0.0


def _new_result_id(complete: Any) -> None:
    complete.outcome.result_id = f"{time.monotonic_ns()}"


def _number_plus_one(event: Any) -> None:
    if event.response.HasField("event"):
        event.response.event.event_number += 1


def _own_temperature(chat: Any) -> None:
    chat.sampling.temperature = chat.sampling.temperature or 1.0


def _with_tools(chat: Any) -> None:
    chat.tools.SetInParent()


def _always_recorded(reply: Any) -> None:
    if reply.HasField("receipt"):
        reply.receipt = outcome_pb2.RECEIPT_RECORDED


def _code(code: int, instead: int) -> Edit:
    def edit(reply: Any) -> None:
        if reply.HasField("status") and reply.status.code == code:
            reply.status.code = instead

    return edit


def _shorter_prefix(reply: Any) -> None:
    if reply.HasField("response") and reply.response.prompt_prefix:
        reply.response.prompt_prefix -= 1


def _other_attachment(hello: Any) -> None:
    hello.attachment_id = f"{hello.attachment_id}{time.monotonic_ns()}"[-200:]


def _without_versions(reply: Any) -> None:
    del reply.response.versions[:]


def _without_pause(reply: Any) -> None:
    for detail in reply.status.details:
        if detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            detail.Pack(error_details_pb2.RetryInfo())


def _without_reason(abandon: Any) -> None:
    abandon.reason = "ENDED"


def _lower_attempt_recorded(reply: Any) -> None:
    if reply.status.code == grpc.StatusCode.ABORTED.value[0]:
        reply.receipt = outcome_pb2.RECEIPT_RECORDED


# Replacements.

CHAT = "trainer.chats.attempt_cache:AttemptCache.chat"
KNOWS = "trainer.transports.callback.link:CalledServer._knows"
LISTENER = "trainer.transports.callback.listener:CallbackListener"
TAKE = "trainer.transports.attach.chat_window:OpenChats.take"


def _unsorted(_sorted: Any) -> Callable[[Any], str]:
    return json.dumps


def _length_only(_common: Any) -> Callable[[Any, Any], int]:
    return lambda one, other: min(len(one), len(other))


def _endless(_limit: int) -> int:
    return 10**9


def _never(_original: Any) -> Any:
    return lambda self, number: False


def _deaf(original: Any) -> Any:
    return lambda self, interval, timeout, now: original(self, interval, 3600.0, now)


def _sampled_again(original: Any) -> Any:
    def chat(self: Any, request: Any, sampler: Any) -> Any:
        for sample in self.samples.values():
            sample.asked.clear()
        return original(self, request, sampler)

    return chat


def _first_reply_for_all(original: Any) -> Any:
    def chat(self: Any, request: Any, sampler: Any) -> Any:
        asked = self.samples[request.sample].asked if request.sample in self.samples else {}
        return asked[request.chat_number] if request.chat_number in asked else original(self, request, sampler)

    return chat


def _any_window(original: Any) -> Any:
    return lambda self, stream, granted: original(self, stream, 10**6)


def _never_forgotten(_original: Any) -> Any:
    async def knows(_self: Any, _key: Any) -> bool:
        return True

    return knows


def _aborted_is_recorded(original: Any) -> Any:
    async def complete(self: Any, request: Any, context: Any) -> Any:
        try:
            return await original(self, request, context)
        except Aborted:
            return outcome_pb2.CompleteResponse(receipt=outcome_pb2.RECEIPT_RECORDED)

    return complete


SERVER = {
    "created-twice": Fault("another-attachment-takes-over", sends("init_reply", _always_created)),
    "no-details": Fault("mistakes-in-one-request", sends("init_reply", _without_details)),
    "wrong-parent": Fault("delta-names-its-parent", sends("chat", _wrong_parent)),
    "delta-repeats-a-message": Fault("delta-names-its-parent", sends("chat", _one_message_more)),
    "never-in-full": Fault("unknown-chat-comes-again-in-full", sends("chat", _never_in_full)),
    "shifted-mask": Fault("segment-grows", sends("complete", _shifted_mask)),
    "unset-reward-is-zero": Fault("chat-rewards", sends("complete", _zero_reward)),
    "new-result-id": Fault("outcome-is-reported-until-a-receipt", sends("complete", _new_result_id)),
    "event-numbers": Fault("subscription-to-events", sends("event", _number_plus_one)),
    "adds-a-temperature": Fault("sampling-is-complete", sends("chat", _own_temperature)),
    "repeats-the-tools": Fault("tools-over-an-attachment", sends("chat", _with_tools)),
    "no-abandon": Fault("cancel-ends-the-rollout", sends("abandon_chat", _dropped)),
    "no-unknown-rollouts": Fault("open-rollouts-are-listed-and-taken-over", sends("unknown_rollouts", _dropped)),
    "chats-twice": Fault("chat-window", sends("chat", _twice)),
    "ignores-windows": Fault("chat-window", gets("window", _dropped)),
    "ignores-goodbye": Fault("goodbye", gets("goodbye", _dropped)),
    "dies-of-unknown-frames": Fault("unknown-frame", gets("", _raises)),
    "json-as-text": Fault("json-is-compared-by-value", replaced("protocol.types.jsontext:_encode_sorted", _unsorted)),
    "drift-is-ignored": Fault("segment-drifts", replaced("protocol.types.segment_builder:_common", _length_only)),
    "too-many-frames": Fault("too-many-frames", replaced("protocol.stream.stream_machine:MAX_FRAMES", _endless)),
    "takes-a-late-stream": Fault(
        "late-stream-replaces-nothing", replaced("server.attachment:Attachment.has_newer_stream_than", _never)
    ),
}
"""Faults of the server, by name."""
TRAINER = {
    "applies-outcomes-twice": Fault("outcome-is-applied-once", sends("complete_reply", _always_recorded)),
    "unknown-rollout-is-invalid": Fault("unknown-rollout", sends("chat_reply", _code(5, 3))),
    "unknown-chat-without-detail": Fault("unknown-chat", sends("chat_reply", _without_details)),
    "ended-rollout-is-unknown": Fault("chat-after-the-outcome", sends("chat_reply", _code(9, 5))),
    "prefix-off-by-one": Fault("rollout-of-three-chats", sends("chat_reply", _shorter_prefix)),
    "new-attachment-each-time": Fault("break-and-resume", sends("hello", _other_attachment)),
    "no-open-rollouts": Fault("break-and-resume", sends("open_rollouts", _dropped)),
    "leaves-without-goodbye": Fault("goodbye", sends("goodbye", _dropped)),
    "no-heartbeats": Fault("heartbeats-of-the-trainer", sends("heartbeat", _dropped)),
    "waits-for-a-silent-server": Fault(
        "silent-server-is-dead", replaced("protocol.stream.stream_machine:StreamMachine.pace", _deaf)
    ),
    "ignores-abandon": Fault("abandoned-chat-stops-the-sampler", gets("abandon_chat", _dropped)),
    "ignores-windows": Fault("window-of-zero-pauses", gets("window", _dropped)),
    "samples-twice": Fault("chat-is-sampled-once", replaced(CHAT, _sampled_again)),
    "answers-different-chats": Fault("different-chat-is-refused", replaced(CHAT, _first_reply_for_all)),
    "answers-twice": Fault("chat-twice-on-one-stream", sends("chat_reply", _twice)),
    "drops-the-version": Fault("versions-of-the-policy", sends("chat_reply", _without_versions)),
    "sends-an-init-again-too-early": Fault(
        "init-is-sent-again-when-the-server-is-busy", gets("init_reply", _without_pause)
    ),
    "ignores-draining": Fault("draining-server-gets-no-init", gets("draining", _dropped)),
    "waits-for-a-superseded-attempt": Fault("superseded-attempt-is-over", gets("abandon_chat", _without_reason)),
    "records-a-lower-attempt": Fault("lower-attempt", sends("complete_reply", _lower_attempt_recorded)),
    "records-a-lower-attempt-over-callbacks": Fault(
        "lost-server", replaced(f"{LISTENER}.Complete", _aborted_is_recorded), "callback"
    ),
    "waits-for-a-lost-server": Fault("lost-server", replaced(KNOWS, _never_forgotten), "callback"),
    "ignores-its-own-window": Fault("window-of-the-trainer", replaced(TAKE, _any_window)),
}
"""Faults of the trainer, by name."""
