"""Peers of a later version work with ours, in both directions: every RPC and every frame kind, and nothing is fatal."""

import asyncio
from contextlib import aclosing

import grpc
import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, control_pb2, outcome_pb2, services_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import RolloutServiceStub
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.protocol.wire.control import MAX_FEATURES, features_from_wire
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.raw import RawAgentServer, RawTrainer
from osmosis_grpc.testing.raw.server_frames import complete
from osmosis_grpc.testing.raw.trainer_frames import recorded
from osmosis_grpc.trainer import Annotation, RolloutClient, Trainer, TrainerConfig
from tests.server.attached import Talk
from tests.trainer.conftest import USER, reply
from tests.trainer.deployment import begun, within
from tests.versions.later_peers import ENUM_NUMBER, FEATURE, FRAME_NUMBER, POOL, LaterProxy, later_class
from tests.waiting import until

COMPLETED = OutcomeStatus.COMPLETED
FAST = {"outbox_delay": (0.05, 0.2), "retry_delay": (0.05, 0.2), "stop_again_after": (0.05, 0.1)}
CONFIG = TrainerConfig(longest_pause=0.2)


class Gated(RolloutAgentLoop):
    """Asks two chats. Logs something in between."""

    name = "gated"

    def get_tools(self, request):
        return [{"type": "function", "function": {"name": "nod", "parameters": {"type": "object"}}}]

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for _ in range(2):
            messages.append((await ctx.chat(messages)).message)
            messages.append({"role": "user", "content": [{"type": "text", "text": "go on"}]})
            ctx.log_event("asked", sample="main")
        return ctx.complete(messages, reward=1.0)


class Policy:
    """Answers a chat of the rollout "slow" when it may."""

    def __init__(self):
        self.may = asyncio.Event()
        self.asked, self.stopped = set(), set()

    async def __call__(self, request):
        self.asked.add(request.rollout_id)
        try:
            if request.rollout_id in ("slow", "cancelled"):
                await self.may.wait()
        except asyncio.CancelledError:
            self.stopped.add(request.rollout_id)
            raise
        return reply(request)


def frames(name):
    """The kinds of frames of our version, as LaterProxy names them."""
    return {f"{name}.{field.name}" for field in getattr(attach_pb2, name).DESCRIPTOR.oneofs_by_name["frame"].fields}


def rpcs(service):
    return {method.name for method in services_pb2.DESCRIPTOR.services_by_name[service].methods}


async def use(trainer, policy, proxy):
    """Run rollouts that need every part of the protocol."""
    outcome = await within(trainer.rollout(rollout_id="first", messages=[USER], metadata={"n": 1}, label="x"))
    assert (outcome.status, outcome.samples["main"].trainable) == (COMPLETED, True)
    assert await within(trainer.annotate(outcome, id="note", trained=True))
    async with aclosing(trainer.events("first", tokens=True)) as events:
        kinds = [type(event.kind).__name__ async for event in events]
    assert {"Accepted", "ChatAnswered", "Logged", "Ended"} <= set(kinds)
    slow, cancelled = (begun(trainer.rollout(rollout_id=name, messages=[USER])) for name in ("slow", "cancelled"))
    await until(lambda: {"slow", "cancelled"} <= policy.asked)
    async with aclosing(trainer.events("slow")) as events:
        async for _ in events:
            break  # leaves early
    await within(trainer.cancel("cancelled"))
    assert (await cancelled).status is OutcomeStatus.CANCELLED
    await until(lambda: "cancelled" in policy.stopped)
    await trainer.pause()
    await asyncio.sleep(0.05)  # the windows of pause() and resume() are frames of two messages
    trainer.resume(version=2)
    proxy.cut()
    policy.may.set()
    assert (await slow).status is COMPLETED
    assert (await within(trainer.rollout(rollout_id="last", messages=[USER]))).status is COMPLETED


@pytest.mark.parametrize("dials", ["trainer", "server"])
async def test_every_frame_kind_works_with_a_later_peer(stack, dials):
    policy, config = Policy(), ServerConfig(**FAST)
    proxy = await stack.enter_async_context(LaterProxy())
    connect = [proxy.address] if dials == "server" else []
    targets, listen = ([], "127.0.0.1:0") if dials == "server" else ([proxy.address], "")
    async with Trainer(targets, policy, listen=listen, config=CONFIG) as trainer:
        server = AgentServer([Gated()], port=0, config=config, connect=connect)
        await stack.enter_async_context(server)
        proxy.lead_to(trainer.address if dials == "server" else server.address)
        await until(lambda: any(link.attached for link in trainer.servers))
        await use(trainer, policy, proxy)
    if dials == "trainer":
        async with Trainer([proxy.address], policy, config=CONFIG) as other:
            await until(lambda: any(link.attached for link in other.servers))
            await server.drain()
            await server.stop(0.0)
            await until(lambda: "ServerFrame.goodbye" in proxy.seen)
        beats = {"TrainerFrame.heartbeat", "ServerFrame.heartbeat"}  # after 15 s of silence; the proxy sends some
        assert frames("TrainerFrame") | frames("ServerFrame") <= proxy.seen | beats
    assert {("TrainerFrame", FRAME_NUMBER), ("ServerFrame", FRAME_NUMBER)} == set(proxy.unknown)


async def test_every_rpc_works_with_a_later_peer(stack):
    policy = Policy()
    server = await stack.enter_async_context(AgentServer([Gated()], port=0, config=ServerConfig(**FAST)))
    proxy, callbacks = LaterProxy(), LaterProxy()
    for each in (proxy, callbacks):
        await stack.enter_async_context(each)
    proxy.lead_to(server.address)
    config = TrainerConfig(longest_pause=0.2, callback_target=callbacks.address)
    trainer = Trainer([proxy.address], policy, transport="callback", config=config)
    await stack.enter_async_context(trainer)
    callbacks.lead_to(trainer.address)
    await until(lambda: trainer.servers[0].attached)
    await use(trainer, policy, proxy)
    client = await stack.enter_async_context(RolloutClient(proxy.address))
    assert {row.rollout_id async for row in client.rollouts()} == {"first", "slow", "cancelled", "last"}
    assert (await client.get("first")).outcome.status is COMPLETED
    assert (await client.annotate("first", Annotation(id="note 2", labels=("odd",))))[1] is True
    assert (await client.info()).features >= ("abandon_chat",)
    assert (await client.cancel("nobody"))[0].rollout_id == "nobody"
    async for _, event in client.all_events():
        if event is not None:
            break
    await client.drain(cancel=True)
    assert proxy.seen >= rpcs("RolloutService") - {"Attach"}
    assert callbacks.seen >= rpcs("TrainerService") - {"Accept"}


async def test_a_feature_of_a_later_version_is_kept_and_harms_nothing(serve):
    assert features_from_wire([FEATURE, "abandon_chat"]) == {FEATURE, "abandon_chat"}
    assert len(features_from_wire(map(str, range(10 * MAX_FEATURES)))) == MAX_FEATURES
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach(features=[FEATURE, "", "x" * 1000])
        await trainer.start("r")
        assert (await trainer.finish()).status == outcome_pb2.OUTCOME_STATUS_COMPLETED


async def test_an_unknown_frame_is_answered_and_the_stream_goes_on(serve):
    server = await serve(Talk())
    later = later_class("TrainerFrame")(later_frame={})
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        batch = later_class("AttachRequest")(frames=[later, later])
        await stream.send_bytes(batch.SerializeToString())
        answers = [await stream.next("unknown_frame") for _ in range(2)]
        assert [answer.frame_number for answer in answers] == [FRAME_NUMBER] * 2
        assert (await trainer.finish()).status == outcome_pb2.OUTCOME_STATUS_COMPLETED


# Enum values of a later version


def test_every_enum_of_the_later_version_has_another_value():
    purposes = POOL.FindEnumTypeByName("osmosis.rollout.v1.ChatPurpose")
    assert purposes.values_by_name["CHAT_PURPOSE_LATER"].number == ENUM_NUMBER


async def test_a_purpose_of_a_later_version_refuses_that_chat_alone(stack):
    async with Trainer([], reply, listen="127.0.0.1:0") as trainer:
        server = await stack.enter_async_context(RawAgentServer(trainer.address))
        await server.attach()
        ended = begun(trainer.rollout(rollout_id="r", messages=[USER], agent_loop="talk"))
        request = await server.accept()
        refused = await server.ask(request, purpose=ENUM_NUMBER)
        assert (refused.status.code, refused.status.message) == (3, f"purpose: {ENUM_NUMBER} is not a purpose")
        assert (await server.ask(request, number=2)).WhichOneof("result") == "response"
        await server.complete(request)
        assert (await ended).status is COMPLETED


async def test_a_boundary_of_a_later_version_is_read_as_the_server(stack):
    async with Trainer([], reply, listen="127.0.0.1:0") as trainer:
        server = await stack.enter_async_context(RawAgentServer(trainer.address))
        await server.attach()
        ended = begun(trainer.rollout(rollout_id="r", messages=[USER], agent_loop="talk"))
        request = await server.accept()
        failure = outcome_pb2.Failure(boundary=ENUM_NUMBER, message="later", reason="LATER_REASON", retryable=True)
        failed = complete(request, status=outcome_pb2.OUTCOME_STATUS_FAILED, failure=failure)
        await server.send(failed)
        assert (await server.stream.next("complete_reply")).receipt == outcome_pb2.RECEIPT_RECORDED
        outcome = await ended
        assert (outcome.failure.boundary, outcome.failure.reason, outcome.failure.retryable) == (
            "server",
            "LATER_REASON",
            True,
        )


async def test_a_receipt_of_a_later_version_is_no_receipt(serve):
    """The server reports the outcome again until it reads a receipt that it knows."""
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r", turns=0)
        outcome = await trainer.outcome()
        later = recorded(outcome)
        later.complete_reply.receipt = ENUM_NUMBER
        await trainer.send(later)
        assert await trainer.settled() == outcome
        await until(lambda: server.engine.capacity().undelivered == 0)


async def test_an_unknown_state_in_a_filter_is_refused_by_name(serve, stack):
    server = await serve(Talk())
    stub = RolloutServiceStub(await stack.enter_async_context(grpc.aio.insecure_channel(server.address)))
    with pytest.raises(grpc.aio.AioRpcError, match="states"):
        await stub.ListRollouts(control_pb2.ListRolloutsRequest(states=[ENUM_NUMBER]))
