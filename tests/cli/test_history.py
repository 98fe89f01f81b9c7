"""A rollout rebuilt from its events."""

import pytest

from osmosis_grpc.protocol.types import (
    ChatPurpose,
    ChatResponse,
    Failure,
    FailureReason,
    InitRequest,
    OutcomeStatus,
    RolloutMetrics,
    RolloutOutcome,
    RolloutRequest,
    Sample,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.records.reading.history import History, by_tool

USER = {"role": "user", "content": "hi"}


def history(*timed):
    """The history of pairs of a time and a kind."""
    made = History()
    for number, (time, kind) in enumerate(timed, 1):
        made.add(TrajectoryEvent("r", 1, number, time, kind))
    return made


def accepted():
    return events.Accepted(InitRequest(request=RolloutRequest(rollout_id="r", messages=[USER])))


def asked(number, parent=0, *messages, sample="main", **fields):
    return events.ChatRequested(
        sample=sample, chat_number=number, parent_chat=parent, messages=messages or [USER], **fields
    )


def answered(number, text="yes", sample="main", latency=1.0):
    response = ChatResponse(message={"role": "assistant", "content": text})
    return events.ChatAnswered(sample=sample, chat_number=number, response=response, latency=latency)


def called(number, name="look", call_id="c1"):
    call = {"id": call_id, "function": {"name": name, "arguments": "{}"}}
    return events.ToolCalled(call, "main", number)


def returned(number, name="look", call_id="c1", latency=1.0):
    return events.ToolReturned(tool_call_id=call_id, name=name, latency=latency, sample="main", chat_number=number)


def test_the_result_of_a_tool_is_shown_that_only_a_failed_chat_has():
    calling = ChatResponse(message={"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]})
    result = {"role": "tool", "tool_call_id": "c1", "content": "five"}
    failed = events.ChatFailed(sample="main", chat_number=2, message="it is refused")
    made = history(
        (1.0, accepted()),
        (2.0, asked(1)),
        (3.0, events.ChatAnswered(sample="main", chat_number=1, response=calling, latency=1.0)),
        (4.0, asked(2, 1, result)),
        (5.0, failed),
    )
    ended = Sample(messages=[USER, calling.message])
    outcome = RolloutOutcome(rollout_id="r", status=OutcomeStatus.FAILED, samples={"main": ended})
    assert made.samples(outcome)["main"].messages == [USER, calling.message, result]


def test_the_times_of_an_unfinished_rollout_add_up_and_overlaps_count_once():
    made = history(
        (100.0, accepted()),
        (101.0, events.Started(queue_time=1.0)),
        (101.0, asked(1)),
        (103.0, answered(1)),
        (103.0, called(1, "slow", "a")),
        (104.0, called(1, "quick", "b")),
        (105.0, returned(1, "quick", "b")),
        (106.0, asked(2)),
    )
    times = made.times(108.0, None)
    assert (times.total, times.queue, times.model, times.tools, times.agent) == (8.0, 1.0, 4.0, 3.0, 0.0)
    assert [(name, [tool.seconds(108.0) for tool in tools]) for name, tools in by_tool(made.tools, 108.0)] == [
        ("slow", [5.0]),
        ("quick", [1.0]),
    ]


def test_the_times_of_an_ended_rollout_are_its_metrics():
    metrics = RolloutMetrics(total_latency_ms=4000.0, queue_time=0.5, model_time=2.0, tool_time=1.0, overhead_time=0.5)
    outcome = RolloutOutcome(rollout_id="r", status=OutcomeStatus.COMPLETED, metrics=metrics)
    times = history((1.0, accepted())).times(9.0, outcome)
    assert (times.total, times.queue, times.model, times.tools, times.agent) == (4.0, 0.5, 2.0, 1.0, 0.5)


def test_the_times_of_a_rollout_with_a_restart_are_those_of_both_runs():
    made = history(
        (1.0, accepted()),
        (2.0, events.Started()),
        (3.0, asked(1)),
        (5.0, answered(1)),
        (5.0, called(1)),
        (9.0, events.Resumed(5)),
        (9.0, asked(1)),
        (9.0, answered(1)),
        (9.0, called(1)),
        (11.0, returned(1, latency=2.0)),
    )
    metrics = RolloutMetrics(total_latency_ms=3.0, queue_time=0.003)
    times = made.times(12.0, RolloutOutcome(rollout_id="r", status=OutcomeStatus.COMPLETED, metrics=metrics))
    assert (times.total, times.queue, times.model, times.tools) == (11.0, 1.0, 2.0, 2.0)
    assert (times.agent, times.restart) == (2.0, 4.0)


def test_a_rollout_that_a_start_of_the_server_ended_did_not_run_until_then():
    failure = Failure("server", "the server was started again", True, reason=FailureReason.RESTART)
    outcome = RolloutOutcome(rollout_id="r", status=OutcomeStatus.FAILED, failure=failure)
    made = history((1.0, accepted()), (1.0, events.Started()), (3.0, called(1)), (60.0, events.Ended(outcome)))
    times = made.times(60.0, outcome)
    assert (times.total, times.agent, times.restart) == (59.0, 2.0, 57.0)
    assert [tool.seconds(made.ran_until(60.0, outcome)) for tool in made.tools] == [0.0]


def test_a_cancel_has_its_reason():
    assert history((1.0, accepted()), (2.0, events.CancelAsked("it is stuck"))).cancel_reason == "it is stuck"


def test_after_a_restart_only_the_new_run_counts():
    made = history(
        (1.0, accepted()),
        (2.0, events.Started()),
        (3.0, asked(1)),
        (4.0, answered(1, "lost")),
        (5.0, called(1)),
        (9.0, events.Resumed(5)),
        (9.0, asked(1)),
        (9.0, answered(1, "kept")),
    )
    assert [reply["content"] for _, reply in made.answered()] == ["kept"]
    assert made.tools == []
    assert made.last == ("main", 1)


def test_chats_that_branch_have_their_own_histories():
    made = history(
        (1.0, accepted()),
        (2.0, asked(1)),
        (3.0, answered(1, "a")),
        (4.0, asked(2, 1, {"role": "user", "content": "left"})),
        (5.0, asked(3, 1, {"role": "user", "content": "right"})),
        (6.0, answered(3, "c")),
        (7.0, answered(2, "b")),
    )
    texts = {
        request.chat_number: [message["content"] for message in [*request.messages, reply]]
        for request, reply in made.answered()
    }
    assert texts == {1: ["hi", "a"], 2: ["hi", "a", "left", "b"], 3: ["hi", "a", "right", "c"]}
    assert {request.chat_number: request.prefix_len for request, _ in made.answered()} == {1: 0, 2: 2, 3: 2}


def test_before_the_end_a_sample_has_its_newest_chat_and_a_judge_is_always_shown():
    made = history((1.0, accepted()), (2.0, asked(1)), (3.0, answered(1)), (4.0, asked(1, sample="judge")))
    assert [message["content"] for message in made.samples(None)["main"].messages] == ["hi", "yes"]
    outcome = RolloutOutcome(rollout_id="r", status=OutcomeStatus.COMPLETED, samples={"main": Sample(messages=[USER])})
    samples = made.samples(outcome)
    assert list(samples) == ["main", "judge"]
    assert samples["main"].messages == [USER]
    assert samples["judge"].messages == [USER]
    assert history((1.0, accepted())).samples(None) == {}


def test_a_chat_that_failed_and_was_asked_again():
    failed = events.ChatFailed(sample="main", chat_number=1, code=14, message="away", will_retry=True)
    made = history((1.0, accepted()), (2.0, asked(1, purpose=ChatPurpose.JUDGE)), (3.0, failed))
    (chat,) = made.chats.values()
    assert (chat.ended, [failure.message for failure in chat.failures]) == (None, ["away"])
    made.add(TrajectoryEvent("r", 1, 4, 5.0, answered(1)))
    assert chat.ended == 5.0
    assert made.notes("main") == {1: "1.00 s"}


@pytest.mark.parametrize("kind", [returned(1), answered(4), events.ChatFailed(sample="main", chat_number=4)])
def test_ends_without_a_beginning_do_no_harm(kind):
    made = history((1.0, accepted()), (2.0, asked(1)), (3.0, kind))
    assert list(made.chats) == [("main", 1)]
