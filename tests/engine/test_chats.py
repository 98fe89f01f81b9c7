"""Chats: numbered, placed in their conversation, asked again while the trainer may come back."""

import asyncio
import copy

import numpy as np
import pytest

from osmosis_grpc.agent.tool_calls import execute_tool_calls
from osmosis_grpc.policies.scripted import EchoPolicy, ScriptedPolicy, answer
from osmosis_grpc.protocol import errors
from osmosis_grpc.protocol.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted, Unavailable
from osmosis_grpc.protocol.types import Callback, ChatPurpose, ChatResponse, OutcomeStatus, Receipt, TokenBlock, events

TOOL = {"type": "function", "function": {"name": "add"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


class Failing:
    """Raises what it is given, one for each try, then echoes."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.tries = 0

    async def __call__(self, request):
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)
        return await EchoPolicy()(request)


class Always:
    """Raises the same every time."""

    def __init__(self, make):
        self.make = make

    async def __call__(self, request):
        raise self.make()


def places(h, sample="main"):
    """(chat_number, parent_chat, prefix_len) of the chats of a sample, in order."""
    chats = {c.chat_number: (c.chat_number, c.parent_chat, c.prefix_len) for c in h.trainer.chats if c.sample == sample}
    return [chats[number] for number in sorted(chats)]


async def one_chat(ctx):
    reply = await ctx.chat([user("hello")])
    return ctx.complete([user("hello"), reply.message])


# Numbers and places


async def test_a_linear_loop_continues_its_newest_chat(hosting):
    async def run(ctx):
        messages = [user("start")]
        for turn in range(4):
            messages.append((await ctx.chat(messages)).message)
            messages.append(user(f"go on {turn}"))
        return ctx.complete(messages)

    async with hosting(run) as h:
        record = await h.start()
        outcome = await h.settled(record)
        assert places(h) == [(1, 0, 0), (2, 1, 2), (3, 2, 4), (4, 3, 6)]
        assert [len(chat.messages) for chat in h.trainer.chats] == [1, 3, 5, 7]
        assert [list(chat.messages) for chat in h.trainer.chats] == [outcome.messages[:n] for n in (1, 3, 5, 7)]
        assert {(c.rollout_id, c.attempt, c.sample) for c in h.trainer.chats} == {("r1", 1, "main")}
        requested = h.kinds(record, events.ChatRequested)
        assert [len(kind.messages) for kind in requested] == [1, 1, 1, 1]
        assert [kind.parent_chat for kind in requested] == [0, 1, 2, 3]


async def test_the_tokens_known_of_a_continued_chat_are_told(hosting):
    async def run(ctx):
        messages = [user("start")]
        for _ in range(3):
            messages += [(await ctx.chat(messages)).message, user("more")]
        return ctx.complete(messages)

    async with hosting(run) as h:
        answered = [kind.response for kind in h.kinds(await started(h), events.ChatAnswered)]
        known = [None if chat.known_ids is None else chat.known_ids.tolist() for chat in h.trainer.chats]
        assert known == [None, *([*r.prompt_ids.tolist(), *r.tokens.ids.tolist()] for r in answered[:2])]


async def started(h, **fields):
    """A rollout run to its end; its record."""
    record = await h.start(**fields)
    await h.settled(record)
    return record


async def test_a_loop_that_rewinds_continues_an_older_chat(hosting):
    async def run(ctx):
        messages = [user("start")]
        messages.append((await ctx.chat(messages)).message)
        first = list(messages)
        messages += [user("one way")]
        messages.append((await ctx.chat(messages)).message)
        await ctx.chat([*first, user("another way")])
        await ctx.chat([*messages, user("the one way again")])
        await ctx.chat([user("start"), user("before the first reply")])
        await ctx.chat([user("something else")])
        return ctx.complete(messages)

    async with hosting(run) as h:
        await h.run()
        assert places(h) == [(1, 0, 0), (2, 1, 2), (3, 1, 2), (4, 2, 4), (5, 0, 0), (6, 0, 0)]
        assert list(h.trainer.chats[2].messages)[-1] == user("another way")


async def test_the_same_question_again_is_another_chat(hosting):
    async def run(ctx):
        replies = [(await ctx.chat([user("a")])).message for _ in range(2)]
        await ctx.chat([user("a"), replies[0], user("b")])
        await ctx.chat([user("a"), replies[1], user("b")])
        return ctx.complete([])

    async with hosting(run) as h:
        h.trainer.policy = ScriptedPolicy(["first", "second", "third", "fourth"])
        await h.run()
        assert places(h) == [(1, 0, 0), (2, 0, 0), (3, 1, 2), (4, 2, 2)]


async def test_an_edited_history_continues_nothing_it_does_not_hold(hosting):
    async def run(ctx):
        messages = [user("a")]
        messages.append((await ctx.chat(messages)).message)
        messages.append(user("b"))
        messages.append((await ctx.chat(messages)).message)
        await ctx.chat([user("A"), *messages[1:], user("c")])
        await ctx.chat([*messages[:2], user("B"), messages[3], user("c")])
        await ctx.chat([messages[0], {**messages[1], "note": 1}, *messages[2:], user("c")])
        return ctx.complete([])

    async with hosting(run) as h:
        await h.run()
        assert places(h) == [(1, 0, 0), (2, 1, 2), (3, 0, 0), (4, 1, 2), (5, 0, 0)]


@pytest.mark.parametrize(("first", "second"), [(1, True), (0, False), (True, 1.0)])
async def test_equal_numbers_of_different_types_are_distinguished(hosting, first, second):
    async def run(ctx):
        reply = await ctx.chat([{**user("a"), "n": first}])
        await ctx.chat([{**user("a"), "n": second}, reply.message, user("b")])
        return ctx.complete([])

    async with hosting(run) as h:
        await h.run()
        assert places(h) == [(1, 0, 0), (2, 0, 0)]
        assert type(h.trainer.chats[1].messages[0]["n"]) is type(second)


async def test_concurrent_chats_are_numbered_as_they_were_called(hosting):
    async def run(ctx):
        replies = await asyncio.gather(*(ctx.chat([user(f"q{n}")]) for n in range(5)))
        return ctx.complete([reply.message for reply in replies])

    gates = [asyncio.Event() for _ in range(5)]

    async def backwards(request):
        await gates[request.chat_number - 1].wait()
        return await EchoPolicy()(request)

    async with hosting(run) as h:
        h.trainer.policy = backwards
        record = await h.start()
        await h.until(lambda: len(h.trainer.chats) == 5)
        for number in (5, 4, 3, 2, 1):
            gates[number - 1].set()
            await h.until(lambda number=number: len(h.kinds(record, events.ChatAnswered)) == 6 - number)
        outcome = await h.settled(record)
        assert [(c.chat_number, c.messages[0]["content"]) for c in h.trainer.chats] == [
            (n + 1, f"q{n}") for n in range(5)
        ]
        assert [m["content"] for m in outcome.messages] == [f"q{n}" for n in range(5)]
        assert [kind.chat_number for kind in h.kinds(record, events.ChatAnswered)] == [5, 4, 3, 2, 1]
        h.check_whole(record)


async def test_each_sample_counts_from_one(hosting):
    async def run(ctx):
        await ctx.chat([user("a")])
        assert ctx.add_sample("other") == "other"
        await ctx.chat([user("a")], sample="other")
        await ctx.chat([user("b")])
        await ctx.chat([user("b")], sample="other")
        await ctx.chat([user("c")], sample="unannounced")
        return ctx.complete([])

    async with hosting(run) as h:
        record = await started(h)
        chats = [(c.sample, c.chat_number) for c in h.trainer.chats]
        assert chats == [("main", 1), ("other", 1), ("main", 2), ("other", 2), ("unannounced", 1)]
        assert [kind.sample for kind in h.kinds(record, events.SampleAdded)] == ["main", "other", "unannounced"]


async def test_what_a_request_says(hosting):
    async def run(ctx):
        await ctx.chat([user("a")], temperature=0.5, stop=["x"], seed=7)
        await ctx.chat([user("b")], tools=[TOOL], purpose=ChatPurpose.JUDGE)
        return ctx.complete([])

    async with hosting(run) as h:
        callback = Callback(target="somewhere:1", state=b"mine")
        record = await started(h, callback=callback, agent_timeout=30.0)
        first, second = h.trainer.chats
        assert dict(first.params) == {"temperature": 0.5, "stop": ["x"], "seed": 7}
        assert (first.tools, first.purpose) == (record.tools, ChatPurpose.POLICY)
        assert (dict(second.params), second.tools, second.purpose) == ({}, [TOOL], ChatPurpose.JUDGE)
        assert first.state == second.state == b"mine"
        assert 0 < second.timeout <= first.timeout <= 30.0
        received = [(dict(k.params), k.tools, k.purpose) for k in h.kinds(record, events.ChatRequested)]
        assert received == [(dict(first.params), None, first.purpose), (dict(second.params), [TOOL], second.purpose)]


async def test_a_try_waits_no_longer_than_its_limit(hosting):
    async with hosting(one_chat, chat_silence=7.0) as h:
        await h.run()
        await h.run("r2", agent_timeout=60.0)
        assert [chat.timeout for chat in h.trainer.chats] == [7.0, 7.0]


# A trainer that is away


@pytest.mark.parametrize(
    "away",
    [
        Unavailable("away"),
        ResourceExhausted("full", retry_after=0.01),
        DeadlineExceeded("slow"),
        Unavailable("paused", retry_after=0.0),
    ],
    ids=["Unavailable", "ResourceExhausted", "DeadlineExceeded", "at once"],
)
async def test_it_is_asked_again_under_the_same_number(hosting, away):
    async with hosting(one_chat) as h:
        h.trainer.policy = Failing(away, away, away)
        record = await h.start()
        outcome = await h.settled(record)
        assert outcome.status is OutcomeStatus.COMPLETED
        assert [chat.chat_number for chat in h.trainer.chats] == [1, 1, 1, 1]
        assert h.trainer.asked == [[user("hello")]] * 4
        failed = h.kinds(record, events.ChatFailed)
        assert [(k.sample, k.chat_number, k.code, k.will_retry) for k in failed] == [("main", 1, away.code, True)] * 3
        assert failed[0].message == str(away)
        assert len(h.kinds(record, events.ChatRequested)) == len(h.kinds(record, events.ChatAnswered)) == 1
        assert outcome.metrics.num_llm_calls == 1
        h.check_whole(record)


async def test_an_outage_is_one_line_in_the_log_however_many_chats_it_stops(hosting, caplog):
    async def run(ctx):
        async with asyncio.TaskGroup() as group:
            for n in range(8):
                group.create_task(ctx.chat([user(f"q{n}")], sample=f"s{n}"))
        return ctx.complete([user("all")])

    async with hosting(run) as h:
        h.trainer.policy = Failing(*[Unavailable("away")] * 20)
        assert (await h.run()).status is OutcomeStatus.COMPLETED
    assert len([record for record in caplog.records if record.name == "osmosis_grpc.engine.chat_calls"]) == 1


async def test_a_chat_that_was_cut_is_asked_again(hosting):
    async with hosting(one_chat) as h:
        h.trainer.policy = Failing(asyncio.CancelledError())
        assert (await h.run()).status is OutcomeStatus.COMPLETED
        assert [chat.chat_number for chat in h.trainer.chats] == [1, 1]


@pytest.mark.parametrize("error", [Unavailable, ResourceExhausted, DeadlineExceeded])
async def test_until_the_grace_period_is_over(hosting, error):
    async with hosting(one_chat, trainer_grace=0.1) as h:
        h.trainer.policy = Always(lambda: error("away"))
        record = await h.start()
        outcome = await h.settled(record)
        assert (outcome.status, outcome.finish_reason) == (OutcomeStatus.FAILED, "error")
        assert (outcome.failure.boundary, outcome.failure.retryable) == ("trainer", True)
        assert outcome.failure.message == "away"
        retries = [kind.will_retry for kind in h.kinds(record, events.ChatFailed)]
        assert len(retries) == len(h.trainer.chats) > 2
        assert retries == [True] * (len(retries) - 1) + [False]
        h.check_whole(record)


async def test_a_pause_beyond_the_grace_period_is_not_waited_for(hosting):
    async with hosting(one_chat) as h:
        h.trainer.policy = Always(lambda: Unavailable("paused", retry_after=100.0))
        record = await h.start()
        outcome = await h.settled(record)
        assert (outcome.failure.boundary, outcome.failure.retryable) == ("trainer", True)
        assert len(h.trainer.chats) == 1


async def test_the_grace_period_begins_anew_after_an_answer(hosting):
    async def run(ctx):
        for _ in range(3):
            await ctx.chat([user("a")])
        return ctx.complete([])

    async def away_for_a_while(request):
        if [chat.chat_number for chat in h.trainer.chats].count(request.chat_number) < 3:
            h.clock.ahead += 20.0
            raise Unavailable("away")
        return await EchoPolicy()(request)

    async with hosting(run, trainer_grace=60.0) as h:
        h.trainer.policy = away_for_a_while
        assert (await h.run()).status is OutcomeStatus.COMPLETED
        assert [chat.chat_number for chat in h.trainer.chats] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


async def test_the_grace_period_begins_anew_when_a_call_had_reached_the_trainer(hosting):
    async def cut_after_a_while(request):
        if len(h.trainer.chats) < 4:
            h.clock.ahead += 50.0
            raise Unavailable("the connection broke", reached=True)
        return await EchoPolicy()(request)

    async with hosting(one_chat, trainer_grace=60.0) as h:
        h.trainer.policy = cut_after_a_while
        assert (await h.run()).status is OutcomeStatus.COMPLETED
        assert [chat.chat_number for chat in h.trainer.chats] == [1] * 4


async def test_a_trainer_that_is_silent_is_there(hosting):
    async def silent(request):
        if len(h.trainer.chats) < 8:
            await asyncio.sleep(request.timeout)  # no answer in time
            raise DeadlineExceeded("no answer yet")
        return await EchoPolicy()(request)

    async with hosting(one_chat, chat_silence=0.02, trainer_grace=0.05) as h:
        h.trainer.policy = silent
        assert (await h.run()).status is OutcomeStatus.COMPLETED
        assert [chat.chat_number for chat in h.trainer.chats] == [1] * 8


FATAL = [
    InvalidArgument("messages", "are too long"),
    errors.NotFound("no such rollout"),
    errors.AlreadyExists("another body"),
    errors.FailedPrecondition("unknown chat"),
    errors.OutOfRange("gone"),
    errors.PermissionDenied("no"),
    errors.Unauthenticated("who?"),
    errors.Unimplemented("what?"),
    errors.Internal("broken"),
    errors.UnknownError("?"),
    errors.DataLoss("lost"),
    errors.Cancelled("given up"),
]


@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
async def test_other_errors_are_raised_at_once(hosting, error):
    async with hosting(one_chat) as h:
        h.trainer.policy = Failing(error)
        record = await h.start()
        outcome = await h.settled(record)
        assert outcome.status is OutcomeStatus.FAILED
        assert (outcome.failure.boundary, outcome.failure.retryable) == ("trainer", False)
        assert outcome.failure.message == str(error)
        assert outcome.failure.causes[0].type == type(error).__name__
        assert len(h.trainer.chats) == 1
        failed = h.kinds(record, events.ChatFailed)
        assert [(k.chat_number, k.code, k.message, k.will_retry) for k in failed] == [
            (1, error.code, str(error), False)
        ]
        h.check_whole(record)


async def test_an_agent_may_catch_it_and_go_on(hosting):
    async def run(ctx):
        with pytest.raises(InvalidArgument):
            await ctx.chat([user("too long")])
        reply = await ctx.chat([user("short")])
        return ctx.complete([user("short"), reply.message], reward=1.0)

    async with hosting(run) as h:
        h.trainer.policy = Failing(InvalidArgument("messages", "are too long"))
        outcome = await h.run()
        assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0)
        assert places(h) == [(1, 0, 0), (2, 0, 0)]
        assert outcome.metrics.num_llm_calls == 1


async def test_a_trainer_that_is_away_is_to_blame_out_of_a_task_group_too(hosting):
    async def run(ctx):
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(ctx.chat([user(f"q{n}")]))

    async with hosting(run, trainer_grace=0.02) as h:
        h.trainer.policy = Always(lambda: Unavailable("away"))
        failure = (await h.run()).failure
        assert (failure.boundary, failure.retryable) == ("trainer", True)


async def test_a_chat_answered_aborted_means_that_a_newer_attempt_stands(hosting):
    async with hosting(one_chat) as h:
        h.trainer.policy = Always(lambda: errors.Aborted("attempt 2 stands", attempt=2))
        record = await h.start()
        outcome = await h.settled(record)
        assert (outcome.status, outcome.finish_reason) == (OutcomeStatus.CANCELLED, "superseded")
        await asyncio.sleep(0.02)  # time for what must not come
        assert h.trainer.outcomes == []


async def test_a_reply_that_does_not_fit_is_the_trainers_fault(hosting):
    async def misfit(request):
        reply = await EchoPolicy()(request)
        return ChatResponse(message=reply.message, tokens=reply.tokens, prompt_ids=reply.prompt_ids, prompt_prefix=5)

    async with hosting(one_chat) as h:
        h.trainer.policy = misfit
        record = await h.start()
        failure = (await h.settled(record)).failure
        assert (failure.boundary, failure.retryable) == ("trainer", False)
        assert "prompt_prefix" in failure.message
        assert [kind.will_retry for kind in h.kinds(record, events.ChatFailed)] == [False]
        assert h.kinds(record, events.ChatAnswered) == []


# Copies


async def test_what_an_agent_does_to_its_messages_later_changes_nothing(hosting):
    async def run(ctx):
        messages, params = [user("original")], {"stop": ["x"]}
        asked = asyncio.ensure_future(ctx.chat(messages, **params))
        await asyncio.sleep(0)
        messages[0]["content"] = "changed in flight"
        params["stop"].append("changed in flight")
        messages.append(user("added in flight"))
        sent.set()
        reply = await asked
        reply.message["content"] = "changed afterwards"
        ctx.request.messages[0]["content"] = "changed afterwards"
        ctx.tools[0]["type"] = "changed afterwards"
        await ctx.chat([user("original"), assistant("original"), user("next")])
        return ctx.complete([user("original")])

    async def policy(request):
        await sent.wait()
        return await EchoPolicy()(request)

    sent = asyncio.Event()
    async with hosting(run, get_tools=lambda request: [copy.deepcopy(TOOL)]) as h:
        h.trainer.policy = policy
        given = [user("given")]
        record = await h.start(messages=given, digest=b"1")
        outcome = await h.settled(record)
        assert outcome.status is OutcomeStatus.COMPLETED
        assert h.trainer.asked == [[user("original")], [user("original"), assistant("original"), user("next")]]
        assert [list(chat.messages) for chat in h.trainer.chats] == h.trainer.asked
        assert places(h) == [(1, 0, 0), (2, 1, 2)]
        assert dict(h.trainer.chats[0].params) == {"stop": ["x"]}
        first = h.kinds(record, events.ChatRequested)[0]
        assert (list(first.messages), dict(first.params)) == ([user("original")], {"stop": ["x"]})
        assert h.kinds(record, events.ChatAnswered)[0].response.message == assistant("original")
        accepted = h.kinds(record, events.Accepted)[0]
        assert (accepted.init.request.messages, accepted.tools) == ([user("given")], [TOOL])
        assert given == [user("given")]


async def test_what_an_agent_does_to_its_final_messages_later_changes_nothing(hosting):
    async def run(ctx):
        messages, extra = [user("original")], {"list": [1]}
        result = ctx.complete(messages, extra_fields=extra)
        kept.extend([messages, extra])
        return result

    kept = []
    async with hosting(run) as h:
        outcome = await h.run()
        kept[0][0]["content"] = "changed"
        kept[0].append(user("added"))
        kept[1]["list"].append(2)
        assert outcome.messages == [user("original")]
        assert outcome.extra_fields == {"list": [1]}


async def test_a_history_of_tuples_is_found_again(hosting):
    async def run(ctx):
        question = {"role": "user", "content": ({"type": "text", "text": "a"},)}
        reply = await ctx.chat((question,))
        await ctx.chat((question, reply.message, user("b")))
        return ctx.complete(())

    async with hosting(run) as h:
        await h.run()
        assert places(h) == [(1, 0, 0), (2, 1, 2)]
        assert h.trainer.asked[0] == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


# What cannot be asked

DEEP = "bottom"
for _ in range(300):
    DEEP = [DEEP]

BAD = {
    "messages a text": ("hello", {}),
    "messages a dict": (user("a"), {}),
    "messages None": (None, {}),
    "a message a text": (["hello"], {}),
    "a message None": ([user("a"), None], {}),
    "no role": ([{"content": "a"}], {}),
    "an unknown role": ([{"role": "robot"}], {}),
    "a role that is a list": ([{"role": ["user"]}], {}),
    "NaN": ([user(float("nan"))], {}),
    "numpy NaN": ([user(np.float64("nan"))], {}),
    "infinity": ([{**user("a"), "score": float("-inf")}], {}),
    "an object": ([user(object())], {}),
    "too deep": ([user(DEEP)], {}),
    "a negative temperature": ([user("a")], {"temperature": -1}),
    "temperature a text": ([user("a")], {"temperature": "hot"}),
    "temperature NaN": ([user("a")], {"temperature": float("nan")}),
    "temperature True": ([user("a")], {"temperature": True}),
    "top_p above 1": ([user("a")], {"top_p": 1.5}),
    "max_tokens 0": ([user("a")], {"max_tokens": 0}),
    "max_tokens a float": ([user("a")], {"max_tokens": 10.5}),
    "a parameter an object": ([user("a")], {"logit_bias": object()}),
    "a parameter NaN": ([user("a")], {"min_p": float("nan")}),
    "tools a text": ([user("a")], {"tools": "add"}),
    "a tool a text": ([user("a")], {"tools": ["add"]}),
    "a tool an object": ([user("a")], {"tools": [{"x": object()}]}),
    "an empty sample": ([user("a")], {"sample": ""}),
    "a sample of two segments": ([user("a")], {"sample": "a/b"}),
    "a sample with a surrogate": ([user("a")], {"sample": "\ud800"}),
}


@pytest.mark.parametrize(("messages", "params"), BAD.values(), ids=BAD)
async def test_what_cannot_be_asked_is_a_value_error_in_the_agent(hosting, messages, params):
    async def run(ctx):
        await ctx.chat([user("a")])
        try:
            await ctx.chat(messages, **params)
        except Exception as error:
            raised.append(error)
        await ctx.chat([user("b")])
        return await ctx.chat(messages, **params)

    raised = []
    async with hosting(run) as h:
        record = await h.start()
        outcome = await h.settled(record)
        assert [type(error) for error in raised] == [ValueError]
        assert isinstance(raised[0].__cause__, InvalidArgument)
        assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "agent")
        assert outcome.failure.message == f"ValueError: {raised[0]}"
        assert places(h) == [(1, 0, 0), (2, 0, 0)]
        assert len(h.kinds(record, events.ChatRequested)) == 2
        assert [kind.sample for kind in h.kinds(record, events.SampleAdded)] == ["main"]
        h.check_whole(record)


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        (user("name \udcff"), user("name \ufffd")),
        ({**user("a"), "\ud800": 1}, {**user("a"), "\ufffd": 1}),
        (user(b"caf\xe9"), user("caf\ufffd")),
        ({**user("a"), "scores": np.array([1, 2])}, {**user("a"), "scores": [1, 2]}),
        ({**user("a"), 1: 2}, {**user("a"), "1": 2}),
    ],
    ids=["a surrogate", "a surrogate in a key", "bytes", "an array", "a key that is a number"],
)
async def test_what_an_agent_says_is_converted_and_stays_one_conversation(hosting, message, sent):
    async def run(ctx):
        reply = await ctx.chat([message])
        return await ctx.chat([message, reply.message, user("b")])

    async with hosting(run) as h:
        record = await h.start()
        await h.settled(record)
        assert places(h) == [(1, 0, 0), (2, 1, 2)]
        asked = h.kinds(record, events.ChatRequested)
        assert list(asked[0].messages) == [sent]


async def test_a_value_error_names_the_place(hosting):
    async def run(ctx):
        await ctx.chat([user("a"), {**user("b"), "score": float("nan")}])

    async with hosting(run) as h:
        assert "messages[1].score" in (await h.run()).failure.message


# What a chat gives


async def test_a_result_holds_what_the_sampler_told(hosting):
    results = []

    async def run(ctx):
        results.append(await ctx.chat([user("a")]))
        return ctx.complete([])

    async def policy(request):
        message = {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "hm"}
        return ChatResponse(
            message=message,
            finish_reason="tool_calls",
            usage={"prompt_tokens": 3, "completion_tokens": 2},
            tokens=TokenBlock.of([1, 2], [-0.5, float("nan")]),
            prompt_ids=np.array([7, 8, 9], dtype="<u4"),
            extra={"engine": "x"},
        )

    async with hosting(run) as h:
        h.trainer.policy = policy
        record = await started(h)
        received = h.kinds(record, events.ChatAnswered)[0].response.message
    result = results[0]
    assert result.message == {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "hm"}
    assert result.message is not received
    assert result.message["tool_calls"][0] is not received["tool_calls"][0]
    assert result.token_ids == [1, 2]
    assert (result.token_ids.array.dtype, result.token_ids.array.tolist()) == (np.dtype("<u4"), [1, 2])
    assert result.logprobs.array.dtype == np.dtype("<f4")
    assert result.logprobs[0] == -0.5
    assert np.isnan(result.logprobs[1])
    assert result.usage == {"prompt_tokens": 3, "completion_tokens": 2}
    assert (result.finish_reason, dict(result.extra)) == ("tool_calls", {"engine": "x"})
    assert (result.content, result.has_tool_calls, result.tool_calls) == (None, True, [CALL])


async def test_a_result_invents_nothing(hosting):
    results = []

    async def run(ctx):
        results.append(await ctx.chat([user("a")]))
        return ctx.complete([])

    async def policy(request):
        return ChatResponse(message=assistant("b"), finish_reason="")

    async with hosting(run) as h:
        h.trainer.policy = policy
        outcome = await h.run()
    result = results[0]
    assert result.token_ids == result.logprobs == []
    assert result.finish_reason is None
    assert result.usage == {}
    assert (result.content, result.has_tool_calls, result.tool_calls, dict(result.extra)) == ("b", False, [], {})
    assert not outcome.samples["main"].trainable
    assert outcome.samples["main"].segments == ()
    assert "chat 1" in outcome.samples["main"].not_trainable_reason
    assert (outcome.metrics.prompt_tokens, outcome.metrics.response_tokens) == (0, 0)


# Samples


async def test_one_sample_has_the_rollouts_reward_and_messages(hosting):
    async def run(ctx):
        reply = await ctx.chat([user("a")])
        return ctx.complete([user("a"), reply.message, user("end")], reward=0.5)

    async with hosting(run) as h:
        outcome = await h.run()
        assert list(outcome.samples) == ["main"]
        assert outcome.samples["main"].reward == outcome.reward == 0.5
        assert outcome.samples["main"].messages == outcome.messages
        assert outcome.samples["main"].trainable


async def test_several_samples_have_conversations_of_their_own(hosting):
    async def run(ctx):
        await ctx.chat([user("for main")])
        await ctx.chat([user("for other")], sample=ctx.add_sample("other"))
        ctx.add_sample("unused")
        return ctx.complete([user("both")], reward=0.5)

    async with hosting(run) as h:
        record = await started(h)
        outcome = record.delivery.outcome
        assert outcome.reward == 0.5
        assert {name: sample.messages for name, sample in outcome.samples.items()} == {
            "main": [user("both")],  # what the agent returned
            "other": [user("for other"), assistant("for other")],
        }
        assert [sample.reward for sample in outcome.samples.values()] == [None, None]
        closed = h.kinds(record, events.SegmentClosed)
        assert [(kind.sample, kind.index, kind.chats) for kind in closed] == [("main", 0, (1,)), ("other", 0, (1,))]


async def test_samples_without_a_name_are_numbered(hosting):
    async def run(ctx):
        await ctx.chat([user("a")])
        names.extend([ctx.add_sample(), ctx.add_sample(), ctx.add_sample("mine"), ctx.add_sample()])
        return ctx.complete([])

    names = []
    async with hosting(run) as h:
        await h.run()
    assert names == ["sample-2", "sample-3", "mine", "sample-5"]


async def test_a_made_up_name_is_never_one_that_is_taken(hosting):
    async def run(ctx):
        await ctx.chat([user("a")])
        names.extend([ctx.add_sample("sample-3"), ctx.add_sample(), ctx.add_sample()])
        return ctx.complete([])

    names = []
    async with hosting(run) as h:
        assert (await h.run()).status is OutcomeStatus.COMPLETED
    assert len(set(names)) == 3


async def test_a_sample_is_added_once(hosting):
    async def run(ctx):
        await ctx.chat([user("a")])
        with pytest.raises(ValueError, match="main"):
            ctx.add_sample("main")
        with pytest.raises(ValueError, match="write - or _"):
            ctx.add_sample("a/b")
        return ctx.complete([])

    async with hosting(run) as h:
        record = await started(h)
        assert record.delivery.outcome.status is OutcomeStatus.COMPLETED
        assert [kind.sample for kind in h.kinds(record, events.SampleAdded)] == ["main"]


async def test_what_was_sampled_is_what_is_trained_on(hosting):
    async def run(ctx):
        messages = [user("a")]
        for _ in range(3):
            messages += [(await ctx.chat(messages)).message, user("more")]
        return ctx.complete(messages)

    async with hosting(run) as h:
        record = await started(h)
        (segment,) = record.delivery.outcome.samples["main"].segments
        replies = [kind.response.tokens for kind in h.kinds(record, events.ChatAnswered)]
        assert segment.ids[segment.mask() == 1].tolist() == np.concatenate([r.ids for r in replies]).tolist()
        assert segment.logprobs.tolist() == np.concatenate([r.logprobs for r in replies]).tolist()
        assert segment.chats == (1, 2, 3)


async def test_a_judges_replies_are_not_trained_on(hosting):
    async def run(ctx):
        reply = await ctx.chat([user("a")])
        await ctx.chat([user("is it good?")], sample="judge", purpose=ChatPurpose.JUDGE)
        return ctx.complete([user("a"), reply.message], reward=1.0)

    async with hosting(run) as h:
        outcome = await h.run()
        trained = [chats for s in outcome.samples.values() for segment in s.segments for chats in segment.chats]
        assert trained == [1]
        assert outcome.metrics.num_llm_calls == 2


async def test_metrics_count(hosting):
    async def run(ctx):
        for question in ("a", "b"):
            await ctx.chat([user(question)])
        for latency in (250.0, 500.0, 0.0):
            ctx.record_tool_call(latency)
        return ctx.complete([])

    usages = [{"prompt_tokens": 30, "completion_tokens": 1}, {"prompt_tokens": 10, "completion_tokens": 4}]

    async def policy(request):
        return ChatResponse(message=assistant("x"), usage=usages[request.chat_number - 1])

    async with hosting(run) as h:
        h.trainer.policy = policy
        metrics = (await h.run()).metrics
    assert (metrics.num_llm_calls, metrics.num_tool_calls) == (2, 3)
    assert (metrics.prompt_tokens, metrics.response_tokens, metrics.max_context_tokens) == (40, 5, 31)
    assert metrics.tool_latency_ms == 750.0
    assert metrics.total_latency_ms > 0
    assert metrics.llm_latency_ms > 0


async def test_the_times_of_a_rollout_add_up(hosting):
    async def run(ctx):
        reply = await ctx.chat([user("a")])
        await execute_tool_calls([CALL], slow)
        return ctx.complete([user("a"), reply.message])

    async def slow(tool_call):
        await asyncio.sleep(0.01)  # a tool takes a moment
        return "done"

    async with hosting(run) as h:
        h.trainer.policy = ScriptedPolicy(["reply"], latency=0.01)
        metrics = (await h.run()).metrics
    assert metrics.model_time > 0
    assert metrics.tool_time > 0
    assert metrics.llm_latency_ms == pytest.approx(metrics.model_time * 1000, rel=0.1)
    times = metrics.queue_time + metrics.model_time + metrics.tool_time + metrics.overhead_time
    assert times * 1000 == pytest.approx(metrics.total_latency_ms)


async def test_without_usage_the_tokens_are_counted(hosting):
    async def policy(request):
        full = answer(request, "reply", tokens=6)
        return ChatResponse(message=full.message, tokens=full.tokens, prompt_ids=full.prompt_ids)

    async with hosting(one_chat) as h:
        h.trainer.policy = policy
        metrics = (await h.run()).metrics
    assert (metrics.prompt_tokens, metrics.response_tokens, metrics.max_context_tokens) == (4, 6, 10)


# Another trainer


async def test_an_open_chat_is_asked_again_at_the_new_place(hosting):
    async def silent(request):
        await asyncio.Event().wait()

    async with hosting(one_chat) as h:
        old, new = h.Trainer(silent, "old"), h.Trainer(key="new")
        record = await h.start(trainer=old)
        await h.until(lambda: old.chats)
        assert await h.init(trainer=new) == (record, False)
        outcome = await h.settled(record)
        assert outcome.status is OutcomeStatus.COMPLETED
        assert [chat.chat_number for chat in (*old.chats, *new.chats)] == [1, 1]
        assert new.asked == old.asked
        assert (old.results("r1"), new.results("r1")) == ([], [outcome.result_id])
        assert h.kinds(record, events.ChatFailed) == []
        assert [kind.receipt for kind in h.kinds(record, events.Delivered)] == [Receipt.RECORDED]


async def test_several_open_chats_move_together(hosting):
    async def run(ctx):
        replies = await asyncio.gather(*(ctx.chat([user(f"q{n}")]) for n in range(4)))
        return ctx.complete([reply.message for reply in replies])

    async def silent(request):
        if request.chat_number % 2:
            await asyncio.Event().wait()
        raise Unavailable("away", retry_after=60.0)

    async with hosting(run, trainer_grace=100.0) as h:
        old, new = h.Trainer(silent, "old"), h.Trainer(key="new")
        record = await h.start(trainer=old)
        await h.until(lambda: len(old.chats) == 4)
        await h.init(trainer=new)
        outcome = await h.settled(record)
        assert [m["content"] for m in outcome.messages] == ["q0", "q1", "q2", "q3"]
        assert sorted(chat.chat_number for chat in new.chats) == [1, 2, 3, 4]


async def test_the_new_place_is_given_its_time(hosting):
    async def silent(request):
        await asyncio.Event().wait()

    async with hosting(one_chat, trainer_grace=100.0) as h:
        old, new = h.Trainer(silent, "old"), h.Trainer(key="new")
        new.policy = Always(lambda: Unavailable("paused", retry_after=60.0))
        await h.start(trainer=old)
        await h.until(lambda: old.chats)
        await h.init(trainer=new)
        await h.until(lambda: new.chats)
        await asyncio.sleep(0.1)  # time for what must not come
        assert len(new.chats) == 1


async def test_the_next_chat_goes_to_the_new_place(hosting):
    async def run(ctx):
        reply = await ctx.chat([user("a")])
        await moved.wait()
        await ctx.chat([user("a"), reply.message, user("b")])
        return ctx.complete([])

    moved = asyncio.Event()
    async with hosting(run) as h:
        old, new = h.Trainer(key="old"), h.Trainer(key="new")
        record = await h.start(trainer=old, callback=Callback(target="old:1", state=b"old"))
        await h.until(lambda: h.kinds(record, events.ChatAnswered))
        await h.init(trainer=new, callback=Callback(target="new:1", state=b"new"))
        moved.set()
        await h.settled(record)
        assert [(c.chat_number, c.state) for c in old.chats] == [(1, b"old")]
        assert [(c.chat_number, c.parent_chat, c.state) for c in new.chats] == [(2, 1, b"new")]


@pytest.mark.parametrize("how", ["the same place", "another body", "another owner"])
async def test_nothing_else_moves_a_rollout(hosting, how):
    async def waits(request):
        await release.wait()
        return await EchoPolicy()(request)

    release = asyncio.Event()
    async with hosting(one_chat) as h:
        old = h.Trainer(waits, "old")
        new = h.Trainer(key="old" if how == "the same place" else "new")
        record = await h.start(trainer=old)
        await h.until(lambda: old.chats)
        if how == "the same place":
            await h.init(trainer=new)
        else:
            fields = {"digest": b"another"} if how == "another body" else {"owner": "another"}
            with pytest.raises(errors.AlreadyExists):
                await h.init(trainer=new, **fields)
        release.set()
        outcome = await h.settled(record)
        assert (len(old.chats), old.results("r1")) == (1, [outcome.result_id])
        assert (new.chats, new.outcomes) == ([], [])


async def test_a_judges_chats_make_no_sample(hosting):
    async def run(ctx):
        await ctx.chat([user("a")])
        await ctx.chat([user("is it good?")], sample="judge", purpose=ChatPurpose.JUDGE)
        return ctx.complete([user("a")], reward=0.5)

    async with hosting(run) as h:
        outcome = await h.run()
    assert list(outcome.samples) == ["main"]
    assert outcome.samples["main"].reward == outcome.reward == 0.5
