"""A legacy agent's chats: whose they are, what goes through, who joins whom, and what a trainer's failure becomes."""

import asyncio

import pytest

from osmosis_grpc.protocol.errors import FailedPrecondition, Internal, ResourceExhausted, Unauthenticated, Unavailable
from osmosis_grpc.protocol.types import RolloutState
from tests.gateway.legacy_agent import CHAT, COMPLETED, QUESTION, REPLY
from tests.gateway.legacy_deployment import builder, closings, usual  # noqa: F401  # fixtures
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


# Who may call


@pytest.mark.parametrize("path", [CHAT, COMPLETED])
async def test_keys_that_are_not_ours(deployment, path):
    await deployment.init()
    init = deployment.old.of("r1")
    right = init["api_key"]
    nonce, _, signature = right.partition(".")
    body = {"rollout_id": "r1", "messages": QUESTION, "status": "COMPLETED"}
    for wrong in ("", "wrong", nonce, f"{nonce}.", f".{signature}", right[:-1], f"{right}ü", f"x{right}"):
        status, reported, headers = await deployment.old.post(init, path, key=wrong, json=body)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert right not in str(reported)
    assert deployment.policy.asked == []
    assert (await deployment.client.get("r1")).state is RolloutState.RUNNING
    await deployment.finish("r1")


async def test_the_key_says_whose_a_call_is(deployment):
    """Not the body's rollout_id, which another rollout may have, too."""
    await deployment.init("r1")
    await deployment.init("r2")
    mine, other = deployment.old.of("r1"), deployment.old.of("r2")
    assert mine["api_key"] != other["api_key"]
    assert (await deployment.old.chat_of(mine | {"rollout_id": "r2"}))[0] == 200
    assert deployment.policy.asked[0].rollout_id == "r1"
    assert await deployment.old.complete_of(mine | {"rollout_id": "r3"}, reward=0.5) == 200
    assert (await deployment.end("r1")).reward == 0.5
    assert (await deployment.client.get("r2")).state is RolloutState.RUNNING
    await deployment.finish("r2")


# What goes through


async def test_messages_are_the_same_both_ways(deployment):
    odd = [
        {"role": "system", "content": None, "x": {"y": [None, 1.5, "ü"]}},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "u"}}]},
    ]
    deployment.policy.reply = {
        "role": "assistant",
        "content": None,
        "reasoning": "hm",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "multiply", "arguments": "{}"}, "i": None}],
    }
    await deployment.init(messages=odd)
    assert deployment.old.of("r1")["messages"] == odd
    status, body = await deployment.old.chat("r1", odd)
    assert status == 200
    [choice] = body["choices"]
    assert choice == {"index": 0, "message": deployment.policy.reply, "finish_reason": "tool_calls"}
    assert (body["id"], body["object"], body["model"]) == ("r1", "chat.completion", "default")
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
    assert list(deployment.policy.asked[0].messages) == odd
    final = [*odd, deployment.policy.reply, {"role": "tool", "tool_call_id": "1", "content": "", "name": None}]
    extra = {"a": [None, {"b": "ü"}]}
    assert await deployment.old.complete("r1", final_messages=final, extra_fields=extra) == 200
    outcome = await deployment.end()
    assert list(outcome.messages) == final
    assert dict(outcome.extra_fields) == extra
    assert outcome.reward is None


async def test_parameters(deployment):
    """Unknown ones go through, nulls do not."""
    await deployment.init()
    more = {"model": "gpt", "logprobs": True, "stop": None, "top_k": 3, "messages_": 1, "tools": [1]}
    assert (await deployment.old.chat("r1", **more))[0] == 200
    assert dict(deployment.policy.asked[0].params) == {"top_k": 3, "messages_": 1}
    await deployment.finish("r1")


async def test_chats_that_are_refused(deployment):
    await deployment.init()
    init = deployment.old.of("r1")
    for body, kind, wanted in [
        (b"[]", "application/json", 422),
        (b"{", "application/json", 422),
        (b"\xff", "application/json", 422),
        (b'{"rollout_id": NaN}', "application/json", 422),
        (b"[" * 5000, "application/json", 422),
        (b"{}", "text/plain", 415),
        (b'{"rollout_id":"r1"}', "application/json", 422),
    ]:
        assert (await deployment.old.post(init, CHAT, data=body, headers={"Content-Type": kind}))[0] == wanted
    for messages in ([{"role": "alien"}], [{}], ["text"], "text", None):
        assert (await deployment.old.chat("r1", messages))[0] == 422
    for params in ({"temperature": -1}, {"top_p": 2.0}, {"max_tokens": 0}):
        assert (await deployment.old.chat("r1", **params))[0] == 422
    for name in ("sample", "purpose", "self"):  # arguments of RolloutContext.chat
        body = {"rollout_id": "r1", "messages": QUESTION, name: "x"}
        status, reported, _ = await deployment.old.post(deployment.old.of("r1"), CHAT, json=body)
        assert (status, reported["detail"][0]["loc"]) == (422, ["body", name])
    assert deployment.policy.asked == []
    assert await deployment.old.complete("r1", "ERROR", error_message="mine") == 200
    outcome = await deployment.end()
    assert (outcome.failure.boundary, outcome.failure.message) == ("agent", "mine")


# Who joins whom; what Relay does about it has tests of its own


async def hangs_up(deployment, **params):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.08):
            await deployment.old.chat("r1", **params)


async def test_a_chat_asked_again_after_hanging_up_joins(deployment):
    deployment.policy.gate.clear()
    await deployment.init()
    for _ in range(3):
        await hangs_up(deployment, temperature=0.5)
    chat = asyncio.create_task(deployment.old.chat("r1", temperature=0.5))
    await asyncio.sleep(0.1)  # the chat arrives and joins, which nothing shows
    deployment.policy.gate.set()
    status, body = await chat
    assert (status, body["choices"][0]["message"]) == (200, REPLY)
    assert len(deployment.policy.asked) == 1
    assert (await deployment.finish("r1")).metrics.num_llm_calls == 1


async def test_a_reply_is_kept_for_one_who_hung_up(deployment):
    deployment.policy.gate.clear()
    await deployment.init()
    await hangs_up(deployment)
    deployment.policy.gate.set()
    await until(lambda: deployment.policy.answered)
    assert (await deployment.old.chat("r1"))[0] == 200
    assert len(deployment.policy.asked) == 1
    assert (await deployment.old.chat("r1"))[0] == 200, "taken once: this is another chat"
    assert len(deployment.policy.asked) == 2
    await deployment.finish("r1")


# Trainers that fail


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        (FailedPrecondition, False),
        (Unauthenticated, False),
        (Internal, False),
        (ResourceExhausted, True),
        (Unavailable, True),
    ],
)
async def test_a_trainers_refusal_reaches_the_old_agent(build, kind, again):
    """As a 4xx, which an old client does not ask again after: our engine has done that. The fault is the trainer's."""
    deployment = await build(trainer_grace=0.15)
    deployment.policy.faults = [kind("no such thing today") for _ in range(100)]
    await deployment.init()
    status, body = await deployment.old.chat("r1")
    assert (status, "no such thing today" in body["detail"]) == (424, True)
    assert (len(deployment.policy.asked) > 1) == again
    assert await deployment.old.complete("r1", "ERROR", error_message="chat: 424") == 200
    outcome = await deployment.end()
    assert (outcome.status, outcome.failure.boundary) == ("FAILED", "trainer")
    assert "no such thing today" in outcome.failure.message


@pytest.mark.parametrize("status", ["COMPLETED", "ERROR"])
async def test_after_a_refusal_the_agent_may_go_on(build, status):
    """Only the last chat's failure is an ERROR's reason."""
    deployment = await build(trainer_grace=0.2)
    deployment.policy.faults = [ResourceExhausted("busy", retry_after=7.0)]
    await deployment.init()
    reported, body = await deployment.old.chat("r1")
    assert (reported, "busy" in body["detail"]) == (424, True)
    assert (await deployment.old.chat("r1"))[0] == 200
    assert await deployment.old.complete("r1", status) == 200
    outcome = await deployment.end()
    assert outcome.metrics.num_llm_calls == 1
    if status == "ERROR":
        assert (outcome.status, outcome.failure.boundary) == ("FAILED", "agent")
    else:
        assert outcome.failure is None
