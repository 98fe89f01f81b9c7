"""A legacy agent server hosted by our engine: what the Init is, when it is posted, and what is made of its answer."""

import asyncio

import pytest

from osmosis_grpc.errors import FailedPrecondition, Internal, ResourceExhausted, Unavailable
from osmosis_grpc.types import RolloutState
from tests.gateway.legacy_agent import QUESTION, REPLY, TOOL, never, plays, says
from tests.gateway.legacy_house import builder, closings, usual  # noqa: F401  # fixtures
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def hurry(monkeypatch):
    """An old server has less time for its answer."""
    monkeypatch.setattr("osmosis_gateway.agent_loop.ANSWER_WITHIN", 0.2)


# What it is


async def test_a_rollout(build):
    house = await build(script=plays)
    started = await house.init(
        label="6",
        metadata={"a": 1},
        completion_params={"temperature": 0.5},
        max_turns=3,
        max_tokens_total=99,
        tool_server_url="http://tools:1",
        idempotency_key="k1",
    )
    assert list(started.tools) == [TOOL]
    completion = await house.end()
    assert (completion.status, completion.reward, completion.finish_reason) == ("COMPLETED", 1.0, "stop")
    assert list(completion.messages) == [*QUESTION, REPLY]
    assert completion.samples["main"].trainable
    [init] = house.old.inits
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
    [chat] = house.policy.asked
    assert dict(chat.params) == {"temperature": 1.0, "top_p": 1.0, "max_tokens": 512}
    assert list(chat.tools) == [TOOL]
    assert house.old.keys == [None]


async def test_a_given_name_key_and_public_url(build):
    more = {"name": "mine", "api_key": "secret", "public_url": "http://elsewhere:1/base"}
    house = await build(hosted=more)
    await house.init(agent_loop="mine", label="6", metadata={"ground_truth": "7"})
    init = house.old.of("r1")
    assert house.old.keys == ["Bearer secret"]
    assert init["server_url"] == "http://elsewhere:1/base"
    assert init["metadata"] == {"ground_truth": "7"}, "a label does not replace it"
    await house.client.cancel("r1")
    await house.wait()


async def test_long_ids(house):
    long, fits = "ü" * 256, "x" * 254
    await house.init(long)
    assert (await house.old.chat(long))[0] == 200
    await house.finish(long)
    await house.init(fits, attempt=2)
    await house.old.complete(f"{fits}~2")
    assert (await house.end(fits, attempt=2)).attempt == 2
    posts = house.old.posts
    with pytest.raises(FailedPrecondition, match="256"):
        await house.init("x" * 255, attempt=2)
    assert house.old.posts == posts


async def test_an_id_that_looks_like_another_attempt(house):
    """The key says whose a call is, not the id."""
    await house.init("r1", attempt=2)
    await house.init("r1~2")
    mine, other = house.old.inits
    assert mine["rollout_id"] == other["rollout_id"] == "r1~2"
    for init in (mine, other):
        assert (await house.old.chat_of(init))[0] == 200
    assert [(chat.rollout_id, chat.attempt) for chat in house.policy.asked] == [("r1", 2), ("r1~2", 1)]
    assert await house.old.complete_of(other, reward=0.5) == await house.old.complete_of(mine, reward=1.0) == 200
    assert (await house.end("r1~2")).reward == 0.5
    assert (await house.end("r1", attempt=2)).reward == 1.0


# When it is posted


async def test_a_full_server_posts_nothing(build):
    house = await build(max_concurrent=1, max_queued=1)
    go = asyncio.Event()
    house.old.init_answers.append(house.old.answers(go.wait, tools=()))
    first = asyncio.create_task(house.init("r1"))
    await until(lambda: house.old.posts == 1)
    await house.init("r2")
    with pytest.raises(ResourceExhausted) as raised:  # the one on its way holds a place
        await house.init("r3")
    assert raised.value.retry_after
    go.set()
    assert list((await first).tools) == []
    assert house.old.posts == 2
    await house.finish("r2", "r1")
    await house.init("r3")
    await house.finish("r3")


async def test_the_same_init_is_posted_once(house):
    rows = await asyncio.gather(*(house.init() for _ in range(5)))
    assert sum(row.started for row in rows) == 1
    assert all(list(row.tools) == [TOOL] for row in rows)
    await house.finish("r1")
    assert not (await house.init()).started
    assert house.old.posts == 1


async def test_calls_are_held_while_the_rollout_waits(build):
    house = await build(max_concurrent=1)
    for rollout_id in ("r1", "r2", "r3"):
        await house.init(rollout_id)
    chats = [asyncio.create_task(house.old.chat("r2", more)) for more in (QUESTION, [*QUESTION, REPLY, *QUESTION])]
    assert await house.old.complete("r3", final_messages=QUESTION, reward=0.0) == 200
    await asyncio.sleep(0.2)
    assert (house.policy.asked, [chat.done() for chat in chats]) == ([], [False, False])
    assert (await house.client.get("r3")).state is RolloutState.QUEUED
    await house.finish("r1")
    assert [(await chat)[0] for chat in chats] == [200, 200]
    assert (await house.finish("r2")).metrics.num_llm_calls == 2
    completion = await house.end("r3")
    assert (completion.status, completion.reward) == ("COMPLETED", 0.0)


async def test_calls_before_the_init_is_answered(house):
    """The old agent may even be through before its server has answered."""

    async def works():
        house.old.tasks.add(asyncio.create_task(house.old.chat("r1")))
        assert await house.old.complete("r1", final_messages=QUESTION) == 200
        await asyncio.sleep(0.05)

    house.old.init_answers.append(house.old.answers(works))
    assert list((await house.init()).tools) == [TOOL]
    assert (await house.end()).status == "COMPLETED"


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
    house = await build(max_concurrent=1, max_queued=0, hosted={"api_key": "secret-key"})
    answer = says(status, b"not so: Bearer secret-key", Location=f"{house.old.url}/health", Retry_After="30")
    house.old.init_answers = [answer]
    with pytest.raises(error) as raised:
        await house.init()
    assert type(raised.value) is error
    assert raised.value.retry_after == (None if error is Internal else 30.0)
    assert str(status) in str(raised.value)
    assert "legacy agent server" in str(raised.value)
    assert "secret-key" not in str(raised.value)
    assert house.old.posts == 1
    await house.fine_afterwards()


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
async def test_an_init_answered_with_garbage(house, body):
    house.old.init_answers.append(says(202, body))
    with pytest.raises(Internal):
        await house.init()
    await house.fine_afterwards()


@pytest.mark.parametrize("body", [{"rollout_id": "r1"}, {"rollout_id": "r1", "tools": None}])
async def test_an_answer_without_tools(house, body):
    house.old.init_answers.append(says(202, body))
    assert list((await house.init()).tools) == []
    await house.client.cancel("r1")
    await house.wait()


async def test_an_old_server_that_cannot_be_reached(house):
    async def cut(request):
        request.transport.abort()

    house.old.init_answers = [cut]
    with pytest.raises(Unavailable, match="cannot be reached") as raised:
        await house.init()
    assert raised.value.retry_after
    assert house.old.posts == 1
    await house.fine_afterwards()
    await house.old.runner.cleanup()
    with pytest.raises(Unavailable, match="cannot be reached"):
        await house.init()
    assert house.idle()


@pytest.mark.usefixtures("hurry")
async def test_an_old_server_that_does_not_answer(house):
    house.old.init_answers.append(house.old.answers(never))
    with pytest.raises(Unavailable, match=r"did not answer within 0\.2 s") as raised:
        await house.init()
    assert raised.value.retry_after
    await house.gone("r1")
    await house.fine_afterwards()


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("early", [False, True], ids=["later", "before"])
async def test_an_init_whose_answer_was_lost(house, early):
    """The same Init again begins another agent: the first one is sent away, before and after that."""
    house.old.init_answers.append(house.old.answers(never))
    with pytest.raises(Unavailable):
        await house.init()
    if early:
        await house.gone("r1")
    assert (await house.init()).started
    lost, new = house.old.inits
    assert lost["rollout_id"] == new["rollout_id"] == "r1"
    assert (await house.old.chat_of(lost))[0] == 410
    assert await house.old.complete_of(lost, "ERROR") == 200
    assert (await house.old.chat_of(new))[0] == 200
    assert await house.old.complete_of(new, reward=1.0) == 200
    completion = await house.end()
    assert (completion.status, completion.reward, completion.metrics.num_llm_calls) == ("COMPLETED", 1.0, 1)


async def test_our_process_was_started_again(build):
    """The old server knows the id already; our new process has an agent of its own all the same."""
    before = await build()
    await before.init()
    after = await build(hosted={"name": "old"})
    after.loop._base = type(after.loop._base).of(before.old.url, "url")
    assert (await after.init()).started
    first, second = before.old.inits
    assert (await before.old.chat_of(second))[0] == 200
    elsewhere = first | {"server_url": second["server_url"]}
    assert (await before.old.chat_of(elsewhere))[0] == 401, "the key of the process before"
    assert await before.old.complete_of(second) == 200
    assert (await after.end()).status == "COMPLETED"
    await before.client.cancel("r1")
    await before.wait()
