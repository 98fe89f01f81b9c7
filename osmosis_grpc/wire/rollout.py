"""rollout.proto: requests to start a rollout, its state, and its outcome."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from osmosis_grpc._gen.osmosis.rollout.v1 import outcome_pb2
from osmosis_grpc._gen.osmosis.rollout.v1 import rollout_pb2 as pb
from osmosis_grpc.errors import Boundary, InvalidArgument
from osmosis_grpc.types import jsontext
from osmosis_grpc.types.earlier_run import EarlierRun
from osmosis_grpc.types.failure_reasons import read_reason
from osmosis_grpc.types.outcome import Cause, Failure, OutcomeStatus, RolloutMetrics, RolloutOutcome, RolloutState
from osmosis_grpc.types.requests import (
    DEFAULT_MAX_TOKENS_TOTAL,
    DEFAULT_MAX_TURNS,
    Callback,
    CallbackTls,
    Group,
    InitRequest,
    RolloutRequest,
    TraceContext,
    check_header,
    check_id,
    check_run_id,
    spec_digest,
    unread_metadata,
)
from osmosis_grpc.types.rollout_info import Activity, RolloutInfo
from osmosis_grpc.types.samples import Sample
from osmosis_grpc.types.stack_frames import StackFrame
from osmosis_grpc.wire import times
from osmosis_grpc.wire.field_conversion import Codec, Converter, EnumNames
from osmosis_grpc.wire.message import message_to_wire, messages_from_wire, params_from_wire, params_to_wire
from osmosis_grpc.wire.protobuf_encoding import remembered
from osmosis_grpc.wire.tokens import check_components, check_reward, sample_from_wire, sample_to_wire

MAX_METADATA_BYTES = 1024 * 1024
"""The default limit of metadata_json."""

NOT_SERVED = ("grader_timeout", "fork")
"""Fields of RolloutSpec that this server refuses."""

MAX_CHANGES = 20
"""The most names of changed files and packages in a message."""

STATES = EnumNames(RolloutState, pb.RolloutState, "a state")
_STATUSES = EnumNames(OutcomeStatus, outcome_pb2.OutcomeStatus, "an outcome status")
_BOUNDARIES: EnumNames[Boundary] = EnumNames(get_args(Boundary), outcome_pb2.FailureBoundary, "a boundary")


def _read_boundary(number: int, path: str) -> Boundary:
    """Returns a boundary. A boundary of a later version is read as "server"."""
    return _BOUNDARIES.names.get(number, "server") if number else _BOUNDARIES.read(number, path)


_GROUP = Converter(Group, outcome_pb2.Group)
_HEADER = Codec(str, check_header)
_TRACE = Converter(TraceContext, pb.TraceContext, traceparent=_HEADER, tracestate=_HEADER)
# The next three messages are fields of the messages below. Their converters must be made first.
Converter(CallbackTls, pb.CallbackTls, server_name=_HEADER)
Converter(Cause, outcome_pb2.Cause)
Converter(StackFrame, outcome_pb2.StackFrame)
ACTIVITY = Converter(Activity, pb.Activity)
EARLIER_RUN = Converter(
    EarlierRun,
    outcome_pb2.EarlierRun,
    changes=Codec(lambda changes: changes[:MAX_CHANGES], lambda changes, path: tuple(changes[:MAX_CHANGES])),
)
FAILURE = Converter(
    Failure,
    outcome_pb2.Failure,
    boundary=Codec(_BOUNDARIES.numbers.__getitem__, _read_boundary),
    reason=Codec(str, read_reason),
)
METRICS = Converter(
    RolloutMetrics,
    outcome_pb2.Metrics,
    **{
        f"{name}_ms": Codec(lambda ms: times.duration(ms / 1000), lambda m, path: times.seconds(m) * 1000, name)
        for name in ("total_latency", "llm_latency", "tool_latency")
    },
)


def check_served(message: pb.InitRequest, max_metadata_bytes: int = MAX_METADATA_BYTES) -> None:
    """Raises InvalidArgument for a field that this server does not support, and for metadata above the limit."""
    for name in NOT_SERVED:
        if message.spec.HasField(name):  # type: ignore[arg-type]
            raise InvalidArgument(f"spec.{name}", "is not served by this server")
    if len(message.spec.metadata_json.encode()) > max_metadata_bytes:
        raise InvalidArgument("spec.metadata_json", f"is larger than {max_metadata_bytes} bytes")


def init_from_wire(message: pb.InitRequest) -> InitRequest:
    """Returns a checked request to start a rollout. Raises InvalidArgument naming the field."""
    check_id(message.rollout_id, "rollout_id")
    spec = message.spec
    if spec.idempotency_key:
        check_id(spec.idempotency_key, "spec.idempotency_key")
    request = RolloutRequest(
        rollout_id=message.rollout_id,
        attempt=message.attempt or 1,
        agent_loop=spec.agent_loop,
        messages=messages_from_wire(spec.messages, "spec.messages"),
        completion_params=params_from_wire(spec.sampling, "spec.sampling"),
        max_turns=spec.max_turns if spec.HasField("max_turns") else DEFAULT_MAX_TURNS,
        max_tokens_total=spec.max_tokens_total if spec.HasField("max_tokens_total") else DEFAULT_MAX_TOKENS_TOTAL,
        metadata=_metadata_from_wire(spec.metadata_json),
        label=spec.label if spec.HasField("label") else None,
        group=_checked_group(spec.group, "spec.group") if spec.HasField("group") else None,
        priority=spec.priority,
        agent_timeout=(
            times.checked_seconds(spec.agent_timeout, "spec.agent_timeout") if spec.HasField("agent_timeout") else None
        ),
        grader_timeout=(
            times.checked_seconds(spec.grader_timeout, "spec.grader_timeout")
            if spec.HasField("grader_timeout")
            else None
        ),
        tool_server_url=spec.tool_server_url or None,
        idempotency_key=spec.idempotency_key or None,
        evaluation=spec.evaluation,
    )
    callback = _CALLBACK.field_of(message, "callback")
    trace = _TRACE.field_of(message, "trace_context")
    return InitRequest(
        request=request, callback=callback, trace=trace, digest=spec_digest(request), size=message.ByteSize()
    )


def init_to_wire(init: InitRequest, *, secrets: bool = True, blobs: bool = False) -> pb.InitRequest:
    """Returns a request as a message. If `secrets` is False, it leaves out the callback's credential and state.

    `blobs` is that of message_to_wire().
    """
    request, trace = init.request, init.trace
    return pb.InitRequest(
        rollout_id=request.rollout_id,
        attempt=request.attempt,
        spec=_spec_to_wire(request, blobs=blobs),
        trace_context=_TRACE.to_wire(trace) if trace else None,
        callback=_callback_to_wire(init.callback, secrets=secrets) if init.callback else None,
    )


def _spec_to_wire(request: RolloutRequest, *, blobs: bool) -> pb.RolloutSpec:
    return pb.RolloutSpec(
        agent_loop=request.agent_loop,
        messages=[message_to_wire(m, blobs=blobs) for m in request.messages],
        sampling=params_to_wire(request.completion_params) if request.completion_params else None,
        max_turns=request.max_turns,
        max_tokens_total=request.max_tokens_total,
        metadata_json=_metadata_to_wire(request),
        label=request.label,
        group=_GROUP.to_wire(request.group) if request.group else None,
        priority=request.priority,
        agent_timeout=times.duration(request.agent_timeout) if request.agent_timeout is not None else None,
        grader_timeout=times.duration(request.grader_timeout) if request.grader_timeout is not None else None,
        tool_server_url=request.tool_server_url or "",
        idempotency_key=request.idempotency_key or "",
        evaluation=request.evaluation,
    )


def _metadata_from_wire(text: str) -> Any:
    """Returns checked metadata. The result keeps the text and parses it when it is read. Raises InvalidArgument."""
    return jsontext.Unparsed.checked(text, "spec.metadata_json") if text else {}


def _metadata_to_wire(request: RolloutRequest) -> str:
    metadata = unread_metadata(request)
    if isinstance(metadata, jsontext.Unparsed):
        return metadata.text
    return jsontext.render(metadata) if metadata else ""


def _checked_group(message: outcome_pb2.Group, path: str = "group") -> Group:
    check_id(message.id, f"{path}.id")
    if message.size and message.index >= message.size:
        raise InvalidArgument(f"{path}.index", f"{message.index} is not below the group's size, {message.size}")
    return _GROUP.from_wire(message)


def wants_delta(form: int, field: str, *, default: bool) -> bool:
    """Returns whether a trainer wants histories as deltas. Raises InvalidArgument for an unknown form."""
    forms = {
        int(pb.HISTORY_FORM_UNSPECIFIED): default,
        int(pb.HISTORY_FORM_FULL): False,
        int(pb.HISTORY_FORM_DELTA): True,
    }
    if form not in forms:
        raise InvalidArgument(field, f"{form} is not a form of histories")
    return forms[form]


def _target(target: str, path: str) -> str:
    if not target:
        raise InvalidArgument(path, "is empty")
    return target


_CALLBACK = Converter(
    Callback,
    pb.Callback,
    target=Codec(str, _target),
    credential=_HEADER,
    delta=Codec(
        lambda delta: pb.HISTORY_FORM_DELTA if delta else pb.HISTORY_FORM_UNSPECIFIED,
        lambda form, path: wants_delta(form, path, default=False),
        "history",
    ),
    run_id=Codec(str, check_run_id),
)


def _callback_to_wire(callback: Callback, *, secrets: bool) -> pb.Callback:
    return _CALLBACK.to_wire(callback if secrets else replace(callback, credential="", state=b""))


def callback_to_bytes(callback: Callback, *, secrets: bool) -> bytes:
    """Returns a serialized callback. If `secrets` is False, it leaves out the credential and the state."""
    return _callback_to_wire(callback, secrets=secrets).SerializeToString(deterministic=True)


def callback_from_bytes(data: bytes) -> Callback:
    """Returns the callback of a serialized message. Raises DecodeError or InvalidArgument for other bytes."""
    return _CALLBACK.from_wire(pb.Callback.FromString(data), "callback.")


def outcome_to_wire(
    outcome: RolloutOutcome, *, head: bool = False, refer: bool = False, blobs: bool = False
) -> outcome_pb2.RolloutOutcome:
    """Returns an outcome as a message. With `head` it leaves out messages and segments.

    `refer` is for a receiver that answered the chats. With it, the message names these chats instead of repeating
    their messages and tokens. `blobs` is that of message_to_wire().
    """
    samples = outcome.samples
    if head:
        samples = {name: replace(sample, messages=(), segments=(), begins=None) for name, sample in samples.items()}
    return outcome_pb2.RolloutOutcome(
        rollout_id=outcome.rollout_id,
        attempt=outcome.attempt,
        result_id=outcome.result_id,
        status=_STATUSES.numbers[outcome.status],
        finish_reason=outcome.finish_reason,
        failure=FAILURE.to_wire(outcome.failure) if outcome.failure else None,
        group=_GROUP.to_wire(outcome.group) if outcome.group else None,
        reward=outcome.reward,
        reward_components=outcome.reward_components,
        samples=[sample_to_wire(sample, name, refer=refer, blobs=blobs) for name, sample in samples.items()],
        metrics=METRICS.to_wire(outcome.metrics),
        extra_json=jsontext.render(outcome.extra_fields) if outcome.extra_fields else "",
        omitted=outcome.omitted,
        evaluation=outcome.evaluation,
        agent_version=outcome.agent_version,
        from_journal=EARLIER_RUN.to_wire(outcome.from_journal) if outcome.from_journal else None,
    )


def referring_bytes(outcome: RolloutOutcome, *, blobs: bool = False) -> bytes:
    """Returns the bytes of an outcome for a receiver that knows its chats. `blobs` is that of message_to_wire()."""
    if not blobs and any(type(m.get("content")) is list for s in outcome.samples.values() for m in s.messages):
        return outcome_to_wire(outcome, refer=True).SerializeToString()
    return _referring_bytes(outcome)


@remembered
def _referring_bytes(outcome: RolloutOutcome) -> bytes:
    return outcome_to_wire(outcome, refer=True, blobs=True).SerializeToString()


MAX_OUTCOME_BYTES = 16 * 1024 * 1024
"""The most bytes of an outcome in a message."""
_SEGMENT_TOKENS: Any = ("ids", "logprobs", "versions", "sampled_extras", "token_extras", "incomplete_extras")
"""The fields of a segment that depend on its tokens."""
_FIELD_BYTES = 8
"""At least the bytes of the tag and the length of a path."""


def fit(message: outcome_pb2.RolloutOutcome, limit: int = MAX_OUTCOME_BYTES) -> outcome_pb2.RolloutOutcome:
    """Cuts an outcome to `limit` bytes and returns it. Its field `omitted` names the fields that were left out.

    It leaves out the tokens of one segment after another, then all messages, then extra_json. A segment without its
    tokens refers to its chats.
    """
    left = message.ByteSize()
    for sample in message.samples:
        for index, segment in enumerate(sample.segments):
            if left > limit and segment.ids:
                left -= segment.ByteSize()
                for field in _SEGMENT_TOKENS:
                    segment.ClearField(field)
                message.omitted.append(f"samples[{sample.name}].segments[{index}]")
                left += segment.ByteSize() + len(message.omitted[-1]) + _FIELD_BYTES
    samples = [(f"samples[{sample.name}].", sample) for sample in message.samples]
    steps: list[list[tuple[str, Any, str]]] = [
        [(path, sample, "messages") for path, sample in samples],
        [("", message, "extra_json")],
    ]
    for step in steps:
        if message.ByteSize() <= limit:
            break
        for path, part, field in step:
            if getattr(part, field):
                part.ClearField(field)
                message.omitted.append(path + field)
    return message


def outcome_from_wire(message: outcome_pb2.RolloutOutcome, field: str) -> RolloutOutcome:
    """Returns a checked outcome. Raises InvalidArgument with a path that begins with `field`."""
    check_id(message.rollout_id, f"{field}.rollout_id")
    status = _STATUSES.read(message.status, f"{field}.status")
    failure = FAILURE.field_of(message, "failure", f"{field}.")
    reward = check_reward(message.reward, f"{field}.reward") if message.HasField("reward") else None
    samples: dict[str, Sample] = {}
    for index, part in enumerate(message.samples):
        if not part.name:
            raise InvalidArgument(f"{field}.samples[{index}].name", "is empty")
        if part.name in samples:
            raise InvalidArgument(f"{field}.samples", f"two samples have the name {part.name!r}")
        samples[part.name] = sample_from_wire(part, f"{field}.samples[{part.name}]")
    components = check_components(message.reward_components, f"{field}.reward_components")
    if status is not OutcomeStatus.COMPLETED:
        _check_no_rewards(reward, components, samples, status, field)
    return RolloutOutcome(
        rollout_id=message.rollout_id,
        attempt=message.attempt or 1,
        result_id=message.result_id,
        status=status,
        finish_reason=message.finish_reason,
        failure=failure,
        group=_checked_group(message.group) if message.HasField("group") else None,
        reward=reward,
        reward_components=components,
        samples=samples,
        metrics=METRICS.from_wire(message.metrics),
        extra_fields=jsontext.parse_object(message.extra_json, f"{field}.extra_json"),
        omitted=tuple(message.omitted),
        evaluation=message.evaluation,
        agent_version=message.agent_version,
        from_journal=EARLIER_RUN.field_of(message, "from_journal"),
    )


def _check_no_rewards(
    reward: float | None,
    components: Mapping[str, float],
    samples: Mapping[str, Sample],
    status: OutcomeStatus,
    field: str,
) -> None:
    """Raises InvalidArgument for a reward of a rollout that did not complete."""
    found: dict[str, object] = {"reward": reward, "reward_components": components or None}
    for name, sample in samples.items():
        found[f"samples[{name}].reward"] = sample.reward
        found[f"samples[{name}].reward_components"] = sample.reward_components or None
        found[f"samples[{name}].chat_rewards"] = sample.chat_rewards or None
    for path, value in found.items():
        if value is not None:
            raise InvalidArgument(f"{field}.{path}", f"a rollout that ended {status} carries no reward")


ROLLOUT = Converter(
    RolloutInfo,
    pb.Rollout,
    state=STATES.codec(RolloutState.ACCEPTED),
    group=Codec(_GROUP.to_wire, _checked_group),
    outcome=Codec(lambda outcome: fit(outcome_to_wire(outcome)), outcome_from_wire),
)
