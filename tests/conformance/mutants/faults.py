"""Faults that are planted in this project's server and trainer for tests of the conformance suite.

A fault changes the frames that one side sends or gets, or replaces one function. Nothing in the package knows of them:
`server.py` and `trainer.py` of this folder switch one on with `--fault NAME`.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from osmosis_grpc._gen.osmosis.rollout.v1 import outcome_pb2, services_pb2
from osmosis_grpc.link.stream_machine import StreamMachine

Frame = Any
Change = Callable[[Frame], Iterator[Frame]]


@dataclass(frozen=True)
class Fault:
    """A planted fault. `found_by` is a case that finds it, as CASE@MODE."""

    does: str
    plant: Callable[[], None]
    found_by: str


def sent(messages: Any, change: Change) -> Callable[[], None]:
    """Change each frame that this side sends; a change yields the frames to send instead."""

    def plant() -> None:
        for name in ("send", "answer", "send_event"):
            original = getattr(StreamMachine, name)

            def changed(self: Any, frame: bytes, original: Any = original) -> None:
                for each in change(messages.FromString(frame).frames[0]):
                    original(self, messages(frames=[each]).SerializeToString())

            setattr(StreamMachine, name, changed)

    return plant


def got(change: Callable[[str, Any], Iterator[tuple[str, Any]]]) -> Callable[[], None]:
    """Change each frame that this side gets: a change yields (kind, content) pairs to handle instead."""

    def plant() -> None:
        original = StreamMachine.next_frames

        def changed(self: Any, accepted: Any) -> list[Any]:
            while frames := original(self, accepted):
                kept = [new for kind, content in frames for new in change(kind, content)]
                if kept:
                    return kept
            return []

        StreamMachine.next_frames = changed  # type: ignore[method-assign]

    return plant


def replaced(module: str, path: str, new: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace a function or a constant of a module; `new` gets the original."""

    def plant() -> None:
        import importlib

        owner: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, new(getattr(owner, name)))

    return plant


def server_sends(change: Change) -> Callable[[], None]:
    return sent(services_pb2.AttachResponse, change)


def trainer_sends(change: Change) -> Callable[[], None]:
    return sent(services_pb2.AttachRequest, change)


# Changes of frames.


def dropped(kind: str) -> Change:
    def change(frame: Frame) -> Iterator[Frame]:
        if frame.WhichOneof("frame") != kind:
            yield frame

    return change


def changed(kind: str, edit: Callable[[Any], None]) -> Change:
    def change(frame: Frame) -> Iterator[Frame]:
        if frame.WhichOneof("frame") == kind:
            edit(getattr(frame, kind))
        yield frame

    return change


def doubled(kind: str) -> Change:
    def change(frame: Frame) -> Iterator[Frame]:
        yield frame
        if frame.WhichOneof("frame") == kind:
            yield frame

    return change


def not_got(*kinds: str) -> Callable[[str, Any], Iterator[tuple[str, Any]]]:
    def change(kind: str, content: Any) -> Iterator[tuple[str, Any]]:
        if kind not in kinds:
            yield kind, content

    return change


# Edits.


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


def _always_recorded(reply: Any) -> None:
    if reply.HasField("receipt"):
        reply.receipt = outcome_pb2.RECEIPT_RECORDED


def _code(code: int, instead: int) -> Callable[[Any], None]:
    def edit(reply: Any) -> None:
        if reply.HasField("status") and reply.status.code == code:
            reply.status.code = instead

    return edit


def _longer_prefix(reply: Any) -> None:
    if reply.HasField("response") and reply.response.prompt_prefix:
        reply.response.prompt_prefix -= 1


def _other_attachment(hello: Any) -> None:
    hello.attachment_id = f"{hello.attachment_id}{time.monotonic_ns()}"[-200:]


def _forgetful_tools(chat: Any) -> None:
    chat.tools.SetInParent()


def _delta_never_in_full(frame: Frame) -> Iterator[Frame]:
    if frame.WhichOneof("frame") == "chat" and frame.chat.HasField("full") and frame.chat.chat_number > 1:
        messages = list(frame.chat.full.messages)[-1:]
        frame.chat.delta.CopyFrom(type(frame.chat.delta)(parent_chat=frame.chat.chat_number - 1, messages=messages))
    yield frame


def _shorter_length(_original: Any) -> Callable[[Any, Any], int]:
    return lambda one, other: min(len(one), len(other))


def _unknown_frames_end_the_stream(kind: str, content: Any) -> Iterator[tuple[str, Any]]:
    if not kind:
        raise RuntimeError("a planted fault: an unknown frame")
    yield kind, content


SERVER: Mapping[str, Fault] = {
    "created-twice": Fault(
        "says `created` in each answer to an equal Init",
        server_sends(changed("init_reply", _always_created)),
        "another-attachment-takes-over@attach",
    ),
    "no-details": Fault(
        "refuses an Init without naming the field",
        server_sends(changed("init_reply", _without_details)),
        "mistakes-in-one-request@attach",
    ),
    "wrong-parent": Fault(
        "names the wrong chat that a delta continues",
        server_sends(changed("chat", _wrong_parent)),
        "delta-names-its-parent@attach",
    ),
    "delta-repeats-a-message": Fault(
        "repeats a message in a delta",
        server_sends(changed("chat", _one_message_more)),
        "delta-names-its-parent@attach",
    ),
    "never-in-full": Fault(
        "does not send a chat again in full",
        server_sends(_delta_never_in_full),
        "unknown-chat-comes-again-in-full@attach",
    ),
    "shifted-mask": Fault(
        "counts a token of the prompt as sampled",
        server_sends(changed("complete", _shifted_mask)),
        "segment-grows@attach",
    ),
    "unset-reward-is-zero": Fault(
        "reports 0 where there is no reward", server_sends(changed("complete", _zero_reward)), "chat-rewards@attach"
    ),
    "new-result-id": Fault(
        "makes a new result id for each report",
        server_sends(changed("complete", _new_result_id)),
        "outcome-is-reported-until-a-receipt@attach",
    ),
    "event-numbers": Fault(
        "numbers events from 2", server_sends(changed("event", _number_plus_one)), "subscription-to-events@attach"
    ),
    "adds-a-temperature": Fault(
        "adds a temperature to chats that have none",
        server_sends(changed("chat", _own_temperature)),
        "sampling-is-complete@attach",
    ),
    "repeats-the-tools": Fault(
        "sends tools with each chat of an attachment",
        server_sends(changed("chat", _forgetful_tools)),
        "tools-over-an-attachment@attach",
    ),
    "no-abandon": Fault(
        "does not say that a reply is no longer wanted",
        server_sends(dropped("abandon_chat")),
        "cancel-ends-the-rollout@attach",
    ),
    "no-unknown-rollouts": Fault(
        "does not answer a list of open rollouts",
        server_sends(dropped("unknown_rollouts")),
        "open-rollouts-are-listed-and-taken-over@attach",
    ),
    "chats-twice": Fault("asks each chat twice", server_sends(doubled("chat")), "chat-window@attach"),
    "ignores-windows": Fault("ignores the trainer's windows", got(not_got("window")), "chat-window@attach"),
    "ignores-goodbye": Fault("ignores Goodbye", got(not_got("goodbye")), "goodbye@attach"),
    "dies-of-unknown-frames": Fault(
        "breaks at an unknown frame", got(_unknown_frames_end_the_stream), "unknown-frame@attach"
    ),
    "json-as-text": Fault(
        "compares JSON without sorting its keys",
        replaced(
            "osmosis_grpc.types.requests",
            "jsontext.canonical",
            lambda original: lambda value: __import__("json").dumps(value),
        ),
        "json-is-compared-by-value@attach",
    ),
    "drift-is-ignored": Fault(
        "extends a segment whose tokens differ",
        replaced(
            "osmosis_grpc.types.segment_assembly",
            "_common",
            lambda _original: lambda one, other: min(len(one), len(other)),
        ),
        "segment-drifts@attach",
    ),
    "too-many-frames": Fault(
        "takes messages of any number of frames",
        replaced("osmosis_grpc.link.stream_machine", "MAX_FRAMES", lambda _original: 10**9),
        "too-many-frames@attach",
    ),
}
"""Faults of the server, by name."""

TRAINER: Mapping[str, Fault] = {
    "applies-outcomes-twice": Fault(
        "answers each report of an outcome with RECORDED",
        trainer_sends(changed("complete_reply", _always_recorded)),
        "outcome-is-applied-once@attach",
    ),
    "unknown-rollout-is-invalid": Fault(
        "answers a chat of an unknown rollout with INVALID_ARGUMENT",
        trainer_sends(changed("chat_reply", _code(5, 3))),
        "unknown-rollout@attach",
    ),
    "unknown-chat-without-detail": Fault(
        "refuses a delta without UnknownChat",
        trainer_sends(changed("chat_reply", _without_details)),
        "unknown-chat@attach",
    ),
    "ended-rollout-is-unknown": Fault(
        "answers a chat after the outcome with NOT_FOUND",
        trainer_sends(changed("chat_reply", _code(9, 5))),
        "chat-after-the-outcome@attach",
    ),
    "prefix-off-by-one": Fault(
        "leaves out one token more than it says",
        trainer_sends(changed("chat_reply", _longer_prefix)),
        "rollout-of-three-chats@attach",
    ),
    "new-attachment-each-time": Fault(
        "makes a new attachment id for each stream",
        trainer_sends(changed("hello", _other_attachment)),
        "break-and-resume@attach",
    ),
    "no-open-rollouts": Fault(
        "does not list its open rollouts after a break",
        trainer_sends(dropped("open_rollouts")),
        "break-and-resume@attach",
    ),
    "leaves-without-goodbye": Fault("leaves without Goodbye", trainer_sends(dropped("goodbye")), "goodbye@attach"),
    "ignores-abandon": Fault(
        "samples on after AbandonChat", got(not_got("abandon_chat")), "abandoned-chat-stops-the-sampler@attach"
    ),
    "ignores-windows": Fault("ignores the server's windows", got(not_got("window")), "window-of-zero-pauses@attach"),
    "samples-twice": Fault(
        "samples a chat again when it comes again",
        replaced(
            "osmosis_grpc.trainer.chats.attempt_cache",
            "AttemptCache.chat",
            lambda original: (
                lambda self, request, sampler: (
                    [sample.asked.clear() for sample in self.samples.values()],
                    original(self, request, sampler),
                )[1]
            ),
        ),
        "chat-is-sampled-once@attach",
    ),
    "answers-different-chats": Fault(
        "gives a different chat the reply of the first one",
        replaced(
            "osmosis_grpc.trainer.chats.attempt_cache",
            "AttemptCache.chat",
            lambda original: (
                lambda self, request, sampler: (
                    self.samples[request.sample].asked[request.chat_number]
                    if request.sample in self.samples and request.chat_number in self.samples[request.sample].asked
                    else original(self, request, sampler)
                )
            ),
        ),
        "different-chat-is-refused@attach",
    ),
}
"""Faults of the trainer, by name."""
