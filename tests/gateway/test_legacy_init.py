"""A legacy agent server hosted by our engine: what the Init is, when it is posted, and what is made of its answer."""

import asyncio

import pytest

from osmosis_grpc.protocol.errors import FailedPrecondition, Internal, ResourceExhausted, Unavailable
from osmosis_grpc.protocol.types import RolloutState
from tests.gateway.legacy_agent import QUESTION, REPLY, TOOL, never, plays, says
from tests.gateway.legacy_deployment import builder, closings, usual  # noqa: F401  # fixtures
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def hurry(monkeypatch):
    """An old server has less time for its answer."""
    monkeypatch.setattr("osmosis_gateway.http_agent.ANSWER_WITHIN", 0.2)


# What it is


async def test_a_rollout(build):
    deployment = await build(script=plays)
    started = await deployment.init(
        label="6",
        metadata={"a": 1},
        completion_params={"temperature": 0.5},
        max_turns=3,
        max_tokens_total=99,
        tool_server_url="http://tools:1",
        idempotency_key="k1",
    )
    assert list(started.tools) == [TOOL]
    outcome = await deployment.end()
    assert (outcome.status, outcome.reward, outcome.finish_reason) == ("COMPLETED", 1.0, "stop")
    assert list(outcome.messages) == [*QUESTION, REPLY]
    assert outcome.samples["main"].trainable
    [init] = deployment.old.inits
    assert init.pop("api_key").startswith(init.pop("idempotency_key") + ".")
    assert init.pop("server_url").startswith("http://127.0.0.1:")
    assert init == {
        "rollout_id": "r1",
        "messages": QUESTION,
        "completion_params": {"temperature": 0.5},
        "max_turns": 3,
        "max_tokens_total": 99,
        "metadata": {"a": 1, "ground_truth": "6"},
        "tool_server_url": "http://tools:1",
    }
    [chat] = deployment.policy.asked
    assert dict(chat.params) == {"temperature": 1.0, "top_p": 1.0, "max_tokens": 512}
    assert list(chat.tools) == [TOOL]
    assert deployment.old.keys == [None]


async def test_pinned_parameters_replace_those_of_a_legacy_agent(build):
    deployment = await build(script=plays)
    await deployment.init(completion_params={"temperature": 0.5}, pin_completion_params=True)
    await deployment.end()
    [chat] = deployment.policy.asked
    assert dict(chat.params) == {"temperature": 0.5, "top_p": 1.0, "max_tokens": 512}


async def test_a_given_name_key_and_public_url(build):
    more = {"name": "mine", "api_key": "secret", "public_url": "http://elsewhere:1/base"}
    deployment = await build(hosted=more)
    await deployment.init(agent_loop="mine", label="6", metadata={"ground_truth": "7"})
    init = deployment.old.of("r1")
    assert deployment.old.keys == ["Bearer secret"]
    assert init["server_url"] == "http://elsewhere:1/base"
    assert init["metadata"] == {"ground_truth": "7"}, "a label does not replace it"
    await deployment.client.cancel("r1")
    await deployment.wait()


async def test_long_ids(deployment):
    long, fits = "ü" * 256, "x" * 254
    await deployment.init(long)
    assert (await deployment.old.chat(long))[0] == 200
    await deployment.finish(long)
    await deployment.init(fits, attempt=2)
    await deployment.old.complete(f"{fits}~2")
    assert (await deployment.end(fits, attempt=2)).attempt == 2
    posts = deployment.old.posts
    with pytest.raises(FailedPrecondition, match="256"):
        await deployment.init("x" * 255, attempt=2)
    assert deployment.old.posts == posts


async def test_an_id_that_looks_like_another_attempt(deployment):
    """The key says whose a call is, not the id."""
    await deployment.init("r1", attempt=2)
    await deployment.init("r1~2")
    mine, other = deployment.old.inits
    assert mine["rollout_id"] == other["rollout_id"] == "r1~2"
    for init in (mine, other):
        assert (await deployment.old.chat_of(init))[0] == 200
    assert [(chat.rollout_id, chat.attempt) for chat in deployment.policy.asked] == [("r1", 2), ("r1~2", 1)]
    assert (
        await deployment.old.complete_of(other, reward=0.5) == await deployment.old.complete_of(mine, reward=1.0) == 200
    )
    assert (await deployment.end("r1~2")).reward == 0.5
    assert (await deployment.end("r1", attempt=2)).reward == 1.0


# When it is posted


async def test_a_full_server_posts_nothing(build):
    deployment = await build(max_concurrent=1, max_queued=1)
    go = asyncio.Event()
    deployment.old.init_answers.append(deployment.old.answers(go.wait, tools=()))
    first = asyncio.create_task(deployment.init("r1"))
    await until(lambda: deployment.old.posts == 1)
    await deployment.init("r2")
    with pytest.raises(ResourceExhausted) as raised:  # the one on its way holds a place
        await deployment.init("r3")
    assert raised.value.retry_after
    go.set()
    assert list((await first).tools) == []
    assert deployment.old.posts == 2
    await deployment.finish("r2", "r1")
    await deployment.init("r3")
    await deployment.finish("r3")


async def test_the_same_init_is_posted_once(deployment):
    rows = await asyncio.gather(*(deployment.init() for _ in range(5)))
    assert sum(row.created for row in rows) == 1
    assert all(list(row.tools) == [TOOL] for row in rows)
    await deployment.finish("r1")
    assert not (await deployment.init()).created
    assert deployment.old.posts == 1


async def test_calls_are_held_while_the_rollout_waits(build):
    deployment = await build(max_concurrent=1)
    for rollout_id in ("r1", "r2", "r3"):
        await deployment.init(rollout_id)
    chats = [asyncio.create_task(deployment.old.chat("r2", more)) for more in (QUESTION, [*QUESTION, REPLY, *QUESTION])]
    assert await deployment.old.complete("r3", final_messages=QUESTION, reward=0.0) == 200
    await deployment.open_chats(2)
    assert (deployment.policy.asked, [chat.done() for chat in chats]) == ([], [False, False])
    assert (await deployment.client.get("r3")).state is RolloutState.QUEUED
    await deployment.finish("r1")
    assert [(await chat)[0] for chat in chats] == [200, 200]
    assert (await deployment.finish("r2")).metrics.num_llm_calls == 2
    outcome = await deployment.end("r3")
    assert (outcome.status, outcome.reward) == ("COMPLETED", 0.0)


async def test_calls_before_the_init_is_answered(deployment):
    """The old agent may even be through before its server has answered."""

    async def works():
        deployment.old.tasks.add(asyncio.create_task(deployment.old.chat("r1")))
        assert await deployment.old.complete("r1", final_messages=QUESTION) == 200
        await asyncio.sleep(0.05)  # a rollout that ended too early would have ended by then

    deployment.old.init_answers.append(deployment.old.answers(works))
    assert list((await deployment.init()).tools) == [TOOL]
    assert (await deployment.end()).status == "COMPLETED"


# What is made of its answer


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, Internal),
        (401, Internal),
        (404, Internal),
        (422, Internal),
        (429, ResourceExhausted),
        (408, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
        (302, Unavailable),
    ],
)
async def test_an_init_that_is_refused(build, status, error):
    """Asked once: whether and when again is for the trainer to say, whom Retry-After reaches."""
    deployment = await build(max_concurrent=1, max_queued=0, hosted={"api_key": "secret-key"})
    answer = says(status, b"not so: Bearer secret-key", Location=f"{deployment.old.url}/health", Retry_After="30")
    deployment.old.init_answers = [answer]
    with pytest.raises(error) as raised:
        await deployment.init()
    assert type(raised.value) is error
    assert raised.value.retry_after == (None if error is Internal else 30.0)
    assert str(status) in str(raised.value)
    assert "legacy agent server" in str(raised.value)
    assert "secret-key" not in str(raised.value)
    assert deployment.old.posts == 1
    await deployment.fine_afterwards()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"<html>",
        b"{",
        b"NaN",
        b"[" * 3000,
        b'{"tools": ["x"]}',
        b"[]",
        b"null",
        b'{"tools": {}}',
        b'{"tools": "x"}',
        b'{"tools": false}',
    ],
)
async def test_an_init_answered_with_garbage(deployment, body):
    deployment.old.init_answers.append(says(202, body))
    with pytest.raises(Internal):
        await deployment.init()
    await deployment.fine_afterwards()


@pytest.mark.parametrize("body", [{"rollout_id": "r1"}, {"rollout_id": "r1", "tools": None}])
async def test_an_answer_without_tools(deployment, body):
    deployment.old.init_answers.append(says(202, body))
    assert list((await deployment.init()).tools) == []
    await deployment.client.cancel("r1")
    await deployment.wait()


async def test_an_old_server_that_cannot_be_reached(deployment):
    async def cut(request):
        request.transport.abort()

    deployment.old.init_answers = [cut]
    with pytest.raises(Unavailable, match="cannot be reached") as raised:
        await deployment.init()
    assert raised.value.retry_after
    assert deployment.old.posts == 1
    await deployment.fine_afterwards()
    await deployment.old.runner.cleanup()
    with pytest.raises(Unavailable, match="cannot be reached"):
        await deployment.init()
    assert deployment.idle()


@pytest.mark.usefixtures("hurry")
async def test_an_old_server_that_does_not_answer(deployment):
    deployment.old.init_answers.append(deployment.old.answers(never))
    with pytest.raises(Unavailable, match=r"did not answer within 0\.2 s") as raised:
        await deployment.init()
    assert raised.value.retry_after
    await deployment.gone("r1")
    await deployment.fine_afterwards()


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("early", [False, True], ids=["later", "before"])
async def test_an_init_whose_answer_was_lost(deployment, early):
    """The same Init again begins another agent: the first one is sent away, before and after that."""
    deployment.old.init_answers.append(deployment.old.answers(never))
    with pytest.raises(Unavailable):
        await deployment.init()
    if early:
        await deployment.gone("r1")
    assert (await deployment.init()).created
    lost, new = deployment.old.inits
    assert lost["rollout_id"] == new["rollout_id"] == "r1"
    assert (await deployment.old.chat_of(lost))[0] == 410
    assert await deployment.old.complete_of(lost, "ERROR") == 200
    assert (await deployment.old.chat_of(new))[0] == 200
    assert await deployment.old.complete_of(new, reward=1.0) == 200
    outcome = await deployment.end()
    assert (outcome.status, outcome.reward, outcome.metrics.num_llm_calls) == ("COMPLETED", 1.0, 1)


async def test_our_process_was_started_again(build):
    """The old server knows the id already; our new process has an agent of its own all the same."""
    before = await build()
    await before.init()
    after = await build(hosted={"name": "old"}, old=before.old)
    assert (await after.init()).created
    first, second = before.old.inits
    assert (await before.old.chat_of(second))[0] == 200
    elsewhere = first | {"server_url": second["server_url"]}
    assert (await before.old.chat_of(elsewhere))[0] == 401, "the key of the process before"
    assert await before.old.complete_of(second) == 200
    assert (await after.end()).status == "COMPLETED"
    await before.client.cancel("r1")
    await before.wait()
