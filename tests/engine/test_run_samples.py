"""A sample has a policy, a parent, and its author's wish whether to train on it."""

import pytest

from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.protocol.types import ChatRef, OutcomeStatus, events
from osmosis_grpc.rollout import AgentWorkflow, get_rollout_context


def user(text):
    return {"role": "user", "content": text}


def of(function):
    """Make a workflow of a function of the rollout's context."""

    class Made(AgentWorkflow):
        async def run(self, ctx):
            await function(get_rollout_context())

    return Made


async def test_a_sample_names_its_policy_its_parent_and_a_wish(hosting):
    async def agent(ctx):
        ctx.add_sample("main", policy="planner")
        plan = await ctx.chat([user("plan")])
        ctx.add_sample("solve", policy="org/solver-7b", parent=("main", plan.chat_number), train=True)
        await ctx.chat([user("solve")], sample="solve")
        ctx.add_sample("judge", parent=ChatRef("solve"), train=False)
        await ctx.chat([user("judge")], sample="judge")
        await ctx.chat([user("unannounced")], sample="later")
        return ctx.complete([])

    async with hosting(agent) as h:
        record = await h.start()
        outcome = await h.settled(record)
        added = h.kinds(record, events.SampleAdded)
        asked = h.kinds(record, events.ChatRequested)
        sent = h.trainer.chats
    wanted = {
        "main": ("planner", None, None),
        "solve": ("org/solver-7b", ChatRef("main", 1), True),
        "judge": ("", ChatRef("solve", 0), False),
        "later": ("", None, None),
    }
    assert {name: (s.policy, s.parent, s.train) for name, s in outcome.samples.items()} == wanted
    assert {kind.sample: (kind.policy, kind.parent, kind.train) for kind in added} == wanted
    policies = [(name, policy) for name, (policy, _, _) in wanted.items()]
    assert [(chat.sample, chat.policy) for chat in asked] == policies
    assert [(chat.sample, chat.policy) for chat in sent] == policies


@pytest.mark.row("SDK 54")
async def test_a_sample_keeps_its_removed_messages_when_a_reply_is_asked_again(hosting):
    async def agent(ctx):
        async def ask(*texts):
            return (await ctx.chat(list(texts))).message

        system, long = {"role": "system", "content": "Be brief."}, user("a long question")
        first = await ask(system, long)
        second = await ask(system, long, first, user("and then?"))
        short = [system, second, user("in short?")]  # the agent removes the beginning
        await ask(*short)
        await ask(*short, user("shorter!"))  # and asks again in the place of the third reply

    async with hosting(WorkflowRunnable(of(agent))) as h:
        outcome = await h.run()
    texts = [message["content"] for message in outcome.samples["main"].messages]
    assert texts[1:5] == ["a long question", "a long question", "and then?", "and then?"]
    assert texts[5:] == ["in short?", "shorter!", "shorter!"]


WRONG = [
    ({"policy": "a\nb"}, "policy: has a character that cannot be printed"),
    ({"policy": "x" * 257}, "policy: has 257 characters, more than 256"),
    ({"policy": None}, "policy: is a NoneType, not a str"),
    ({"parent": ("other", 0)}, "parent: the rollout has no sample named 'other'; its samples: 'main'"),
    ({"parent": ("side", 0)}, "parent: the rollout has no sample named 'side'"),
    ({"parent": ("main", 2)}, "parent: chat 2 of sample 'main' does not exist"),
    ({"parent": ("main", "1")}, "parent: '1' is not the number of a chat"),
    ({"parent": ChatRef("main", -1)}, "parent: -1 is not the number of a chat"),
    ({"parent": "main"}, "parent: 'main' is not"),
    ({"parent": ("main",)}, "parent: .* is not"),
    ({"train": "yes"}, "train: is a str, not a bool"),
    ({"train": 0}, "train: is a int, not a bool"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[str(arguments)[:40] for arguments, _ in WRONG])
async def test_a_wrong_sample_is_a_value_error_and_begins_nothing(hosting, arguments, message):
    async def agent(ctx):
        await ctx.chat([user("a")])
        with pytest.raises(ValueError, match=message):
            ctx.add_sample("side", **arguments)
        ctx.add_sample("side")
        return ctx.complete([])

    async with hosting(agent) as h:
        record = await h.start()
        outcome = await h.settled(record)
        assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
        assert h.kinds(record, events.SampleAdded) == [events.SampleAdded("main"), events.SampleAdded("side")]


async def test_the_policy_of_main_is_chosen_before_its_first_chat(hosting):
    async def agent(ctx):
        await ctx.chat([user("a")])
        with pytest.raises(ValueError, match="already has a sample named 'main'"):
            ctx.add_sample("main", policy="late")
        return ctx.complete([])

    async with hosting(agent) as h:
        outcome = await h.run()
    assert outcome.samples["main"].policy == ""


async def test_a_sample_without_a_reply_keeps_what_it_was_given(hosting):
    """The agent reports final messages for a sample in which nothing was sampled."""

    async def agent(ctx):
        ctx.add_sample("main", policy="planner", train=False)
        return ctx.complete([user("a")])

    async with hosting(agent) as h:
        outcome = await h.run()
    sample = outcome.samples["main"]
    assert (sample.policy, sample.train, sample.trainable) == ("planner", False, False)
    assert list(sample.messages) == [user("a")]


@pytest.mark.parametrize("leading", [[], [{"role": "system", "content": "s"}]], ids=["alone", "after a system message"])
@pytest.mark.row("SDK 54")
async def test_messages_that_an_agent_removes_from_its_history_stay_in_the_sample(hosting, leading):
    async def agent(ctx):
        whole = [user("1")]
        for number in range(2, 7):
            window = whole[-3:] if number < 6 else whole[-5:]
            reply = await ctx.chat([*leading, *window])
            whole += [reply.message, user(str(number))]
        return ctx.complete(extra_fields={"whole": [*leading, *whole[:-1]]})

    async with hosting(agent) as h:
        outcome = await h.settled(await h.start())
    assert outcome.samples["main"].messages == outcome.extra_fields["whole"]
    assert len(outcome.samples["main"].messages) == len(leading) + 10


@pytest.mark.row("SDK 54")
async def test_a_history_that_begins_anew_is_the_sample(hosting):
    async def agent(ctx):
        await ctx.chat([user("1")])
        await ctx.chat([user("other")])
        return ctx.complete()

    async with hosting(agent) as h:
        outcome = await h.settled(await h.start())
    assert [message["role"] for message in outcome.samples["main"].messages] == ["user", "assistant"]
    assert outcome.samples["main"].messages[0] == user("other")
