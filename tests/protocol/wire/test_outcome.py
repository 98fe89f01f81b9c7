"""A rollout's end and where it stands, there and back; what is refused; what is left out when it is too large."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2, outcome_pb2, tokens_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import rollout_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import (
    Activity,
    Cause,
    ChatRef,
    ChatReward,
    Failure,
    Group,
    OutcomeStatus,
    RaggedTensor,
    RolloutInfo,
    RolloutMetrics,
    RolloutOutcome,
    RolloutState,
    Sample,
    Segment,
    StackFrame,
    Tensor,
)
from osmosis_grpc.protocol.wire.outcome import outcome_from_wire, outcome_to_wire
from osmosis_grpc.protocol.wire.outcome_size import cut_to_limit
from osmosis_grpc.protocol.wire.rollout import ROLLOUT, STATES

SEGMENT = Segment(
    ids=np.arange(500, dtype="<u4"),
    logprobs=np.full(200, -0.5, dtype="<f4"),
    mask_runs=(300, 200),
    chats=(1,),
    sampled_extras={"sampling_mask": RaggedTensor.of([[1]] * 200, "uint32")},
    token_extras={"routed_experts": Tensor.of(np.ones((500, 2, 1), np.uint8))},
    incomplete_extras=("entropy",),
)
ALONE = Sample(messages=[{"role": "user", "content": "x" * 100}], segments=(SEGMENT,), reward=0.0, trainable=True)
METRICS = RolloutMetrics(**{field.name: index + 1 for index, field in enumerate(fields(RolloutMetrics))})
DONE = RolloutOutcome(
    rollout_id="r",
    attempt=2,
    result_id="abc",
    status=OutcomeStatus.COMPLETED,
    finish_reason="stop",
    reward=0.0,
    samples={"main": ALONE},
    metrics=METRICS,
    extra_fields={"score": {"a": None}},
)
JUDGED = replace(
    DONE,
    reward=None,
    samples={"main": ALONE, "sample-2": replace(ALONE, trainable=False, not_trainable_reason="no ids", segments=())},
)
GRADED = replace(
    DONE,
    reward=None,
    reward_components={"agreement": 0.5},
    samples={
        "plan": replace(ALONE, reward=1.0, policy="planner", train=True),
        "solve": replace(
            ALONE,
            reward=-1.0,
            reward_components={"format": 0.0, "correct": -1.0},
            chat_rewards=(
                ChatReward(chat_number=1, reward=0.0),
                ChatReward(chat_number=4, reward_components={"short": 1.0}),
            ),
            policy="solver",
            parent=ChatRef("plan", 1),
        ),
        "judge": Sample(messages=[], not_trainable_reason="no ids", parent=ChatRef("plan"), train=False),
    },
)
BROKEN = RolloutOutcome(
    rollout_id="r",
    status=OutcomeStatus.FAILED,
    finish_reason="error",
    metrics=METRICS,
    failure=Failure(
        "tool",
        "it broke",
        True,
        (Cause("ToolExecutionError", "it broke"), Cause("OSError", "")),
        "agent.py",
        7,
        (StackFrame("agent.py", 3, "Agent.run", "await self.tool()"), StackFrame("agent.py", 7, "Agent.tool")),
    ),
)
FIXTURES = {
    "done": DONE,
    "two samples": JUDGED,
    "three graded samples": GRADED,
    "failed": BROKEN,
    "late": replace(BROKEN, status=OutcomeStatus.DEADLINE_EXCEEDED, failure=Failure("agent", "late")),
    "cancelled": replace(BROKEN, status=OutcomeStatus.CANCELLED, failure=None),
    "evaluation": replace(DONE, evaluation=True),
    "nothing said": RolloutOutcome(rollout_id="r", status=OutcomeStatus.COMPLETED),
    "something left out": replace(JUDGED, omitted=("samples[main].segments[0]", "extra_json")),
}


def over_the_wire(message):
    return type(message).FromString(message.SerializeToString())


def named(message: outcome_pb2.RolloutOutcome) -> str:
    """The field that a refusal names."""
    with pytest.raises(InvalidArgument) as refusal:
        outcome_from_wire(over_the_wire(message), "outcome")
    return refusal.value.violations[0][0]


@pytest.mark.parametrize("outcome", FIXTURES.values(), ids=FIXTURES.keys())
def test_a_completion_survives(outcome):
    assert outcome_from_wire(over_the_wire(outcome_to_wire(outcome)), "outcome") == outcome


@pytest.mark.parametrize("reward", [None, 0.0, -0.0, 1.0, -1e300, 5e-324])
def test_an_unset_reward_is_not_zero(reward):
    outcome = replace(DONE, reward=reward, samples={"main": replace(ALONE, reward=reward)})
    back = outcome_from_wire(over_the_wire(outcome_to_wire(outcome)), "outcome")
    assert repr(back.reward) == repr(back.samples["main"].reward) == repr(reward)


def test_each_metric_keeps_its_own_value():
    metrics = RolloutMetrics(
        total_latency_ms=1234.5678, queue_time=0.000001, overhead_time=3600.25, num_llm_calls=2**31
    )
    back = outcome_from_wire(outcome_to_wire(replace(DONE, metrics=metrics)), "outcome").metrics
    for field in fields(RolloutMetrics):
        assert getattr(back, field.name) == pytest.approx(getattr(metrics, field.name)), field.name


def test_a_conversation_is_in_its_sample_only():
    assert "messages" not in outcome_pb2.RolloutOutcome.DESCRIPTOR.fields_by_name
    assert DONE.messages == outcome_from_wire(outcome_to_wire(DONE), "outcome").messages == ALONE.messages


def test_an_outcome_by_reference_has_the_rewards_policies_and_parents_too():
    back = outcome_from_wire(over_the_wire(outcome_to_wire(GRADED, refer=True)), "outcome")
    assert (back.reward, back.reward_components) == (GRADED.reward, GRADED.reward_components)
    for name, sample in GRADED.samples.items():
        referring = replace(sample, messages=(), segments=())
        assert replace(back.samples[name], messages=(), segments=()) == referring


@pytest.mark.parametrize("train", [None, True, False])
def test_an_unset_wish_is_not_false(train):
    outcome = replace(DONE, samples={"main": replace(ALONE, train=train)})
    assert outcome_from_wire(over_the_wire(outcome_to_wire(outcome)), "outcome").samples["main"].train is train


def test_samples_keep_the_order_of_their_creation():
    order = replace(DONE, samples={"z": ALONE, "a": ALONE, "main": ALONE})
    assert list(outcome_from_wire(over_the_wire(outcome_to_wire(order)), "outcome").samples) == ["z", "a", "main"]


def test_two_samples_of_one_name_are_refused():
    twice = [tokens_pb2.Sample(name="a"), tokens_pb2.Sample(name="a")]
    assert named(completion_message(samples=twice)) == "outcome.samples"


def test_a_head_has_no_messages_and_no_tokens():
    for outcome in (DONE, JUDGED, GRADED):
        back = outcome_from_wire(outcome_to_wire(outcome, head=True), "outcome")
        bare = {name: replace(sample, messages=[], segments=()) for name, sample in outcome.samples.items()}
        assert back == replace(outcome, samples=bare)


def completion_message(**changes) -> outcome_pb2.RolloutOutcome:
    return outcome_pb2.RolloutOutcome(**{"rollout_id": "r", "status": outcome_pb2.OUTCOME_STATUS_COMPLETED, **changes})


FAILED, CANCELLED = outcome_pb2.OUTCOME_STATUS_FAILED, outcome_pb2.OUTCOME_STATUS_CANCELLED
COMPLETED = outcome_pb2.OUTCOME_STATUS_COMPLETED
BAD = [
    ("outcome.rollout_id", {"rollout_id": ""}),
    ("outcome.rollout_id", {"rollout_id": "a/b"}),
    ("outcome.status", {"status": outcome_pb2.OUTCOME_STATUS_UNSPECIFIED}),
    ("outcome.status", {"status": 99}),
    ("outcome.reward", {"reward": math.nan}),
    ("outcome.reward", {"reward": math.inf}),
    ("outcome.reward", {"reward": 0.0, "status": FAILED}),
    ("outcome.reward", {"reward": 1.0, "status": CANCELLED}),
    ("outcome.reward", {"reward": 1.0, "status": outcome_pb2.OUTCOME_STATUS_DEADLINE_EXCEEDED}),
    ("outcome.failure.boundary", {"status": FAILED, "failure": outcome_pb2.Failure(message="x")}),
    ("outcome.extra_json", {"extra_json": "[]"}),
    ("outcome.extra_json", {"extra_json": '{"a":NaN}'}),
    ("outcome.samples[a].reward", {"samples": [tokens_pb2.Sample(name="a", reward=math.nan)]}),
    ("outcome.samples[a].reward", {"samples": [tokens_pb2.Sample(name="a", reward=0.0)], "status": FAILED}),
    ("outcome.reward_components[x]", {"reward_components": {"x": math.inf}}),
    ("outcome.reward_components", {"reward_components": {"x": 1.0}, "status": CANCELLED}),
    *(
        (f"outcome.samples[a].{field}", {"samples": [tokens_pb2.Sample(name="a", **sample)], "status": status})
        for field, status, sample in [
            ("reward_components[x]", COMPLETED, {"reward_components": {"x": math.nan}}),
            ("reward_components", FAILED, {"reward_components": {"x": 0.0}}),
            ("chat_rewards[0].reward", COMPLETED, {"chat_rewards": [{"chat_number": 1, "reward": math.nan}]}),
            (
                "chat_rewards[1].reward_components[y]",
                COMPLETED,
                {"chat_rewards": [{"chat_number": 1}, {"chat_number": 2, "reward_components": {"y": -math.inf}}]},
            ),
            ("chat_rewards", COMPLETED, {"chat_rewards": [{"chat_number": 1}, {"chat_number": 1}]}),
            ("chat_rewards", FAILED, {"chat_rewards": [{"chat_number": 1}]}),
        ]
    ),
    (
        "outcome.samples[a].segments[0].mask_runs",
        {"samples": [tokens_pb2.Sample(name="a", segments=[tokens_pb2.Segment(ids=[1])])]},
    ),
    (
        "outcome.samples[a].messages[0].role",
        {"samples": [tokens_pb2.Sample(name="b"), tokens_pb2.Sample(name="a", messages=[message_pb2.Message()])]},
    ),
]


@pytest.mark.parametrize(("field", "changes"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_field_out_of_bounds_is_refused_by_name(field, changes):
    assert named(completion_message(**changes)) == field


# What `cut_to_limit` leaves out, in its order; messages go all at once.
STEPS = [
    [],
    ["samples[main].segments[0]"],
    ["samples[main].segments[0]", "samples[sample-2].segments[0]"],
    ["samples[main].segments[0]", "samples[sample-2].segments[0]", "samples[sample-2].segments[1]"],
    [
        "samples[main].segments[0]",
        "samples[sample-2].segments[0]",
        "samples[sample-2].segments[1]",
        "samples[main].messages",
        "samples[sample-2].messages",
    ],
    [
        "samples[main].segments[0]",
        "samples[sample-2].segments[0]",
        "samples[sample-2].segments[1]",
        "samples[main].messages",
        "samples[sample-2].messages",
        "extra_json",
    ],
]
LARGE = replace(
    JUDGED,
    extra_fields={"log": "z" * 3000},
    samples={"main": replace(ALONE, segments=(SEGMENT,)), "sample-2": replace(ALONE, segments=(SEGMENT, SEGMENT))},
)


def test_fit_leaves_out_segments_then_messages_then_extra():
    whole = outcome_to_wire(LARGE)
    seen = []
    for limit in range(whole.ByteSize() + 10, 300, -50):
        fitted = cut_to_limit(over_the_wire(whole), limit)
        assert fitted.ByteSize() <= limit
        omitted = list(fitted.omitted)
        if not seen or omitted != seen[-1]:
            seen.append(omitted)
        for sample in fitted.samples:
            for index, segment in enumerate(sample.segments):
                left_out = f"samples[{sample.name}].segments[{index}]" in omitted
                arrays = (segment.ids, segment.logprobs, segment.token_extras, segment.sampled_extras)
                assert [bool(array) for array in arrays] == [not left_out] * 4
                assert (list(segment.mask_runs), list(segment.chats)) == ([300, 200], [1])
            assert bool(sample.messages) == (f"samples[{sample.name}].messages" not in omitted)
        assert bool(fitted.extra_json) == ("extra_json" not in omitted)
        back = outcome_from_wire(over_the_wire(fitted), "outcome")
        assert back.omitted == tuple(omitted)
        assert (back.status, back.result_id, back.metrics) == (LARGE.status, LARGE.result_id, LARGE.metrics)
    assert seen == STEPS


def test_fit_keeps_a_completion_within_the_limit():
    whole = outcome_to_wire(LARGE)
    assert cut_to_limit(over_the_wire(whole), whole.ByteSize()) == whole


def test_fit_names_only_fields_that_were_set():
    """What is named in `omitted` is read from the events before the outcome counts as recorded."""
    only_extra = outcome_to_wire(replace(BROKEN, extra_fields={"log": "z" * 3000}))
    assert list(cut_to_limit(only_extra, 1000).omitted) == ["extra_json"]
    nothing = outcome_to_wire(replace(BROKEN, failure=Failure("agent", "z" * 3000)))
    assert list(cut_to_limit(nothing, 1000).omitted) == []


INFO = RolloutInfo(
    rollout_id="r",
    attempt=2,
    agent_loop="calculator",
    state=RolloutState.COMPLETED,
    activity=Activity("delivering", 1_700_000_000.25),
    group=Group("g", 1, 2),
    accept_time=1_700_000_000.5,
    start_time=1_700_000_001.0,
    end_time=1_700_000_002.75,
    last_event_number=2**40,
    undelivered=True,
    outcome=DONE,
    reward=0.0,
    failure_reason="AGENT_EXCEPTION",
    failure_summary="no such city",
    chats=3,
    response_tokens=2**33,
    progress_time=1_700_000_002.5,
)


@pytest.mark.parametrize(
    "info", [INFO, replace(INFO, group=None, start_time=None, end_time=None, outcome=None, reward=None)]
)
def test_the_state_of_a_rollout_survives(info):
    assert ROLLOUT.from_wire(over_the_wire(ROLLOUT.to_wire(info))) == info


@pytest.mark.parametrize("state", RolloutState)
def test_every_state_survives(state):
    wire = ROLLOUT.to_wire(replace(INFO, state=state))
    assert ROLLOUT.from_wire(wire).state is state
    assert STATES.names.get(wire.state) is state


def test_every_number_of_the_protocol_is_known():
    states = {STATES.names.get(number) for number in pb.RolloutState.values()}
    assert states == {*RolloutState, None}
    for number in set(outcome_pb2.OutcomeStatus.values()) - {0}:
        assert outcome_from_wire(outcome_pb2.RolloutOutcome(rollout_id="r", status=number), "c").status in OutcomeStatus
    for number in set(outcome_pb2.FailureBoundary.values()) - {0}:
        message = outcome_pb2.RolloutOutcome(
            rollout_id="r", status=FAILED, failure=outcome_pb2.Failure(boundary=number, message="x")
        )
        back = outcome_from_wire(message, "c")
        assert outcome_to_wire(back).failure.boundary == number
