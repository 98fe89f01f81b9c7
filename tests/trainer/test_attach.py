"""A trainer that is attached: rollout() and what becomes of it, and cancelling."""

import asyncio
import dataclasses

import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import rollout_pb2, services_pb2
from osmosis_grpc.protocol.errors import AlreadyExists, Internal, InvalidArgument, NotFound
from osmosis_grpc.protocol.types import Group, OutcomeStatus
from osmosis_grpc.trainer import RolloutRequest, Trainer, TrainerConfig
from tests.trainer.conftest import USER, Talker, reply, talker
from tests.trainer.deployment import begun, within
from tests.waiting import until

CANCELLED, COMPLETED, FAILED = OutcomeStatus.CANCELLED, OutcomeStatus.COMPLETED, OutcomeStatus.FAILED


@pytest.mark.parametrize("target", ["http://localhost:1", "https://x:1", "localhost", ""])
def test_a_target_that_is_none_is_refused(target):
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        Trainer(["127.0.0.1:1", target], reply)


async def test_where_to_listen_may_be_refused(stack):
    with pytest.raises(ValueError, match="public"):
        await stack.enter_async_context(Trainer([], reply, listen="0.0.0.0:0"))
    first = await stack.enter_async_context(Trainer([], reply, listen="127.0.0.1:0"))
    assert int(first.address.rpartition(":")[2]) > 0
    with pytest.raises(OSError, match="in use"):
        await stack.enter_async_context(Trainer([], reply, listen=first.address))


async def test_a_trainer_and_its_servers(serve, attach_to):
    agent = talker()
    server = await serve(agent)
    trainer = await attach_to(reply, server)
    assert trainer.address == ""
    agent.gate("r1")
    running = begun(trainer.rollout(rollout_id="r1", messages=[USER]))
    await until(lambda: agent.started == ["r1"])
    [seen] = trainer.servers
    assert (seen.name, seen.attached, seen.open, seen.agent_loops) == (server.address, True, 1, ("talker",))
    assert seen.window == 300
    agent.release()
    outcome = await running
    assert (outcome.status, outcome.reward, outcome.rollout_id) == (COMPLETED, 1.0, "r1")
    assert [m["content"] for m in outcome.messages] == [USER["content"], "main 1", "after 1"]
    assert outcome.samples["main"].trainable
    assert trainer.servers[0].open == 0


async def test_an_equal_request_joins_and_another_is_refused(serve, attach_to):
    agent = talker()
    agent.gate("r1")
    trainer = await attach_to(reply, await serve(agent))
    request = RolloutRequest(rollout_id="r1", messages=[USER])
    first, second = begun(trainer.rollout(request)), begun(trainer.rollout(request))
    await until(lambda: agent.started)
    third = begun(trainer.rollout(rollout_id="r1", messages=[USER]))
    with pytest.raises(AlreadyExists):
        await trainer.rollout(request, label="another")
    agent.release()
    assert await first is await second is await third
    assert agent.started == ["r1"]


async def test_an_ended_rollout_runs_again_only_with_a_higher_attempt(serve, attach_to):
    agent = talker()
    trainer = await attach_to(reply, await serve(agent))
    await within(trainer.rollout(rollout_id="r1", messages=[USER]))
    for changes in ({}, {"label": "another"}):
        with pytest.raises(AlreadyExists):
            await trainer.rollout(rollout_id="r1", messages=[USER], **changes)
    again = await within(trainer.rollout(rollout_id="r1", messages=[USER], attempt=2))
    assert (again.attempt, again.status) == (2, COMPLETED)
    assert agent.attempts == [("r1", 1), ("r1", 2)]


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("rollout_id", {"rollout_id": "a/b"}),
        ("rollout_id", {"rollout_id": ""}),
        ("label", {"label": 5}),
        ("messages[0]", {"messages": [5]}),
        ("messages[1]", {"messages": [USER, {"role": "user", "content": {1}}]}),
        ("agent_timeout", {"agent_timeout": -1.0}),
        ("completion_params.temperature", {"completion_params": {"temperature": -1}}),
        ("group.id", {"group": Group("a/b")}),
        ("metadata", {"metadata": {"x": float("nan")}}),
        ("metadata", {"metadata": {"x": object()}}),
        ("sampling", {"completion_params": {"x": object()}}),
        ("attempt", {"attempt": -1}),
        ("max_turns", {"max_turns": "many"}),
        ("agent_loop", {"agent_loop": 5}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_bad_request_is_refused_by_name(serve, attach_to, field, changes):
    agent = talker()
    trainer = await attach_to(reply, await serve(agent))
    with pytest.raises(InvalidArgument) as refusal:
        await within(trainer.rollout(**{"rollout_id": "r1", "messages": [USER], **changes}))
    assert field.split(".")[-1].split("[")[0] in refusal.value.violations[0][0]
    assert agent.started == []
    assert trainer.servers[0].attached
    assert (await within(trainer.rollout(rollout_id="good", messages=[USER]))).status is COMPLETED


async def test_a_request_of_unknown_fields_is_a_type_error(serve, attach_to):
    trainer = await attach_to(reply, await serve(talker()))
    with pytest.raises(TypeError, match="nonsense"):
        await trainer.rollout(rollout_id="r1", nonsense=1)
    with pytest.raises(TypeError, match="RolloutRequest"):
        await trainer.rollout({"rollout_id": "r1"})


class Fussy(Talker):
    name = "fussy"

    def get_tools(self, request):
        if request.metadata.get("refuse"):
            raise RuntimeError("no tools today")
        return []


async def test_what_a_server_refuses_is_raised(serve, attach_to):
    trainer = await attach_to(reply, await serve(Fussy("fussy"), talker()))
    with pytest.raises(NotFound, match="nobody"):
        await within(trainer.rollout(rollout_id="r1", agent_loop="nobody"))
    with pytest.raises(Internal, match="no tools today"):
        await within(trainer.rollout(rollout_id="r2", agent_loop="fussy", metadata={"refuse": True}))
    with pytest.raises(InvalidArgument, match="agent_loop"):
        await within(trainer.rollout(rollout_id="r3"))
    assert trainer.servers[0].open == 0


async def test_what_was_refused_may_be_asked_again_otherwise(serve, attach_to):
    trainer = await attach_to(reply, await serve(talker()))
    with pytest.raises(NotFound):
        await within(trainer.rollout(rollout_id="r1", agent_loop="nobody"))
    outcome = await within(trainer.rollout(rollout_id="r1", messages=[USER], agent_loop="talker"))
    assert outcome.status is COMPLETED


async def test_cancelling_the_last_one_who_waits_cancels_the_rollout(serve, attach_to):
    agent = talker()
    agent.gate("r1", "r2")
    server = await serve(agent)
    trainer = await attach_to(reply, server)
    one, two = begun(trainer.rollout(rollout_id="r1")), begun(trainer.rollout(rollout_id="r1"))
    alone = begun(trainer.rollout(rollout_id="r2"))
    await until(lambda: len(agent.started) == 2)
    one.cancel()
    alone.cancel()
    await until(lambda: agent.ended_ones == ["r2"])
    assert server.engine.capacity().running == 1
    assert agent.running["r1"] == 1
    agent.release("r1")
    assert (await two).status is COMPLETED
    await until(lambda: trainer.servers[0].open == 0)


async def test_one_a_group_or_all_can_be_cancelled_queued_ones_too(serve, attach_to):
    agent = talker()
    names = [f"r{n}" for n in range(6)]
    agent.gate(*names)
    trainer = await attach_to(reply, await serve(agent, max_concurrent=2, max_queued=1))
    groups = {"r1": "g", "r4": "g"}
    running = {
        name: begun(trainer.rollout(rollout_id=name, group=Group(groups[name]) if name in groups else None))
        for name in names
    }
    await until(lambda: agent.started == ["r0", "r1"])
    assert [row.rollout_id for row in await within(trainer.cancel("r0", reason="enough"))] == ["r0"]
    assert (await running["r0"]).status is CANCELLED
    assert await within(trainer.cancel("nobody")) == []
    rows = await within(trainer.cancel(group_id="g"))
    assert {row.rollout_id for row in rows} <= {"r1", "r4"}
    for name in ("r1", "r4"):
        outcome = await running[name]
        assert (outcome.status, outcome.group) == (CANCELLED, Group("g"))
    assert not any(running[name].done() for name in ("r2", "r3", "r5"))
    await within(trainer.cancel(prefix="r5"))
    assert (await running["r5"]).status is CANCELLED
    assert not any(running[name].done() for name in ("r2", "r3"))
    await within(trainer.cancel(everything=True))
    for name in ("r2", "r3"):
        assert (await running[name]).status is CANCELLED
    await within(trainer.cancel(everything=True))
    assert "r4" not in agent.started


async def test_a_request_that_is_too_large_is_refused_and_harms_no_other(serve, attach_to):
    trainer = await attach_to(reply, await serve(talker()))
    huge = [{"role": "user", "content": "x" * (65 * 1024 * 1024)}]
    with pytest.raises(InvalidArgument, match="messages: the request has"):
        await trainer.rollout(rollout_id="huge", messages=huge)
    assert (await within(trainer.rollout(rollout_id="good", messages=[USER]))).status is COMPLETED


async def test_without_delta_every_chat_has_its_whole_history(serve, attach_to):
    server = await serve(talker())
    trainer = await attach_to(reply, server, delta=False)
    outcome = await within(trainer.rollout(rollout_id="r", messages=[USER], metadata={"turns": 3}))
    assert outcome.samples["main"].trainable
    (link,) = trainer.scheduler.servers
    (hello,) = (frame.hello for frame in services_pb2.AttachRequest.FromString(link.greeting(1, 1)).frames)
    assert hello.history == rollout_pb2.HISTORY_FORM_FULL


@pytest.mark.parametrize("option", ["lost_after", "max_attempts", "max_open_chats", "ttl"])
def test_an_option_that_bounds_nothing_is_refused(option):
    with pytest.raises(ValueError, match=option):
        TrainerConfig(**{option: 0})


async def test_a_trainer_cancels_its_own_rollouts_only(serve, attach_to):
    held = asyncio.Event()

    async def policy(request):
        await held.wait()
        return reply(request)

    server = await serve(talker())
    one, other = await attach_to(policy, server), await attach_to(policy, server)
    mine, theirs = begun(one.rollout(rollout_id="mine")), begun(other.rollout(rollout_id="theirs"))
    await until(lambda: server.engine.capacity().running == 2)
    (row,) = await within(one.cancel(everything=True))
    assert (row.rollout_id, row.disposition) == ("mine", "CANCELLED")
    assert (await mine).status is CANCELLED
    held.set()
    assert (await theirs).status is COMPLETED


async def test_what_was_cancelled_is_not_run_again_when_its_server_forgets_it(serve, attach_to):
    """The cancel is on its way as the server goes; the next one on its port knows nothing."""
    asked = []

    async def policy(request):
        asked.append(request.attempt)
        await asyncio.sleep(3600)

    trainer = await attach_to(policy, await serve(talker()))
    running = begun(trainer.rollout(rollout_id="r"))
    await until(lambda: asked == [1])
    (rollout,) = trainer.scheduler.rollouts.values()
    rollout.server.stream = None  # no frame is sent any more
    cancelling = asyncio.ensure_future(trainer.cancel("r"))
    await asyncio.sleep(0)
    trainer.scheduler.restart(rollout, "the server has forgotten it")
    outcome = await running
    assert (outcome.status, outcome.attempt) == (CANCELLED, 1)
    assert asked == [1]
    cancelling.cancel()


async def test_a_usage_that_no_field_can_hold_takes_nothing_along(serve, attach_to):
    def policy(request):
        return dataclasses.replace(reply(request), usage={"prompt_tokens": 10**30, "completion_tokens": 2**63})

    server = await serve(talker(), max_concurrent=1)
    trainer = await attach_to(policy, server)
    for name in ("r1", "r2"):
        assert (await within(trainer.rollout(rollout_id=name, messages=[USER]))).status is COMPLETED
    await until(lambda: (server.engine.capacity().running, server.engine.capacity().undelivered) == (0, 0))
