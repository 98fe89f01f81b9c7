"""outcome.proto: the outcome of a rollout, with its samples, its rewards and its failure."""

from dataclasses import replace
from typing import get_args

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import outcome_pb2 as pb
from osmosis_grpc.protocol.errors import Boundary, InvalidArgument
from osmosis_grpc.protocol.types.earlier_run import EarlierRun
from osmosis_grpc.protocol.types.failure_reasons import read_reason
from osmosis_grpc.protocol.types.outcome import Cause, Failure, OutcomeStatus, RolloutMetrics, RolloutOutcome
from osmosis_grpc.protocol.types.requests import Group, check_id
from osmosis_grpc.protocol.types.samples import Sample
from osmosis_grpc.protocol.types.stack_frames import StackFrame
from osmosis_grpc.protocol.wire import times
from osmosis_grpc.protocol.wire.field_conversion import JSON_OBJECT, Codec, Converter, EnumNames
from osmosis_grpc.protocol.wire.protobuf_encoding import remembered
from osmosis_grpc.protocol.wire.tokens import COMPONENTS, REWARD, sample_from_wire, sample_to_wire

MAX_CHANGES = 20
"""The most names of changed files and packages in a message."""

_STATUSES = EnumNames(OutcomeStatus, pb.OutcomeStatus, "an outcome status")
_BOUNDARIES: EnumNames[Boundary] = EnumNames(get_args(Boundary), pb.FailureBoundary, "a boundary")


def _read_boundary(number: int, path: str) -> Boundary:
    """Return a boundary. A boundary of a later version is read as "server"."""
    return _BOUNDARIES.names.get(number, "server") if number else _BOUNDARIES.read(number, path)


GROUP = Converter(Group, pb.Group)
# These two messages are fields of Failure. Their converters must be made first.
Converter(Cause, pb.Cause)
Converter(StackFrame, pb.StackFrame)
EARLIER_RUN = Converter(
    EarlierRun,
    pb.EarlierRun,
    changes=Codec(lambda changes: changes[:MAX_CHANGES], lambda changes, path: tuple(changes[:MAX_CHANGES])),
)
FAILURE = Converter(
    Failure, pb.Failure, boundary=Codec(_BOUNDARIES.numbers.__getitem__, _read_boundary), reason=Codec(str, read_reason)
)
METRICS = Converter(
    RolloutMetrics,
    pb.Metrics,
    **{
        f"{name}_ms": Codec(
            lambda ms: times.duration(ms / 1000), lambda m, path: times.valid_seconds(m, path) * 1000, name
        )
        for name in ("total_latency", "llm_latency", "tool_latency")
    },
)


def checked_group(message: pb.Group, path: str = "group") -> Group:
    """Return a group. Raises InvalidArgument for a wrong id and for an index that is not below the size."""
    check_id(message.id, f"{path}.id")
    if message.size and message.index >= message.size:
        raise InvalidArgument(f"{path}.index", f"{message.index} is not below the group's size, {message.size}")
    return GROUP.from_wire(message)


def outcome_to_wire(
    outcome: RolloutOutcome, *, head: bool = False, refer: bool = False, blobs: bool = False
) -> pb.RolloutOutcome:
    """Return an outcome as a message. With `head` it leaves out messages and segments.

    `refer` is for a receiver that answered the chats. With it, the message names these chats instead of repeating
    their messages and tokens. `blobs` is that of message_to_wire().
    """
    samples = outcome.samples
    if head:
        samples = {name: replace(sample, messages=(), segments=(), begins=None) for name, sample in samples.items()}
    converted = [sample_to_wire(sample, name, refer=refer, blobs=blobs) for name, sample in samples.items()]
    return _OUTCOME.to_wire(outcome, samples=converted)


def referring_bytes(outcome: RolloutOutcome, *, blobs: bool = False) -> bytes:
    """Return the bytes of an outcome for a receiver that knows its chats. `blobs` is that of message_to_wire()."""
    if not blobs and any(type(m.get("content")) is list for s in outcome.samples.values() for m in s.messages):
        return outcome_to_wire(outcome, refer=True).SerializeToString()
    return _referring_bytes(outcome)


@remembered
def _referring_bytes(outcome: RolloutOutcome) -> bytes:
    return outcome_to_wire(outcome, refer=True, blobs=True).SerializeToString()


def outcome_from_wire(message: pb.RolloutOutcome, field: str) -> RolloutOutcome:
    """Return a checked outcome. Raises InvalidArgument with a path that begins with `field`."""
    samples: dict[str, Sample] = {}
    for index, part in enumerate(message.samples):
        if not part.name:
            raise InvalidArgument(f"{field}.samples[{index}].name", "is empty")
        if part.name in samples:
            raise InvalidArgument(f"{field}.samples", f"two samples have the name {part.name!r}")
        samples[part.name] = sample_from_wire(part, f"{field}.samples[{part.name}]")
    outcome = _OUTCOME.from_wire(message, f"{field}.", samples=samples)
    if outcome.status is not OutcomeStatus.COMPLETED:
        _check_no_rewards(outcome, field)
    return outcome


def _check_no_rewards(outcome: RolloutOutcome, field: str) -> None:
    rewards: dict[str, object] = {"reward": outcome.reward, "reward_components": outcome.reward_components or None}
    for name, sample in outcome.samples.items():
        rewards[f"samples[{name}].reward"] = sample.reward
        rewards[f"samples[{name}].reward_components"] = sample.reward_components or None
        rewards[f"samples[{name}].chat_rewards"] = sample.chat_rewards or None
    for path, value in rewards.items():
        if value is not None:
            raise InvalidArgument(f"{field}.{path}", f"a rollout that ended {outcome.status} carries no reward")


def checked_id(value: str, field: str) -> str:
    """Return an id. Raises InvalidArgument."""
    check_id(value, field)
    return value


ATTEMPT = Codec(int, lambda attempt, path: attempt or 1)
_OUTCOME = Converter(
    RolloutOutcome,
    pb.RolloutOutcome,
    ("samples", "confirmation"),
    rollout_id=Codec(str, checked_id),
    attempt=ATTEMPT,
    status=Codec(_STATUSES.numbers.__getitem__, _STATUSES.read),
    reward=REWARD,
    reward_components=COMPONENTS,
    group=Codec(GROUP.to_wire, checked_group),
    extra_fields=JSON_OBJECT._replace(name="extra_json"),
)
