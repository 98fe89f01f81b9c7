"""A rollout belongs to the credential it came with: what others see of it, over every way."""

import asyncio

import grpc
import httpx
import pytest

from osmosis_gateway.http_server import serve_http
from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol.errors import AlreadyExists, InvalidArgument, NotFound
from osmosis_grpc.protocol.types import Callback, OutcomeStatus
from osmosis_grpc.server import AgentServer, ServerSecurity
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.trainer import Credentials, RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.security.conftest import SECOND, TOKEN
from tests.waiter import Waiter
from tests.waiting import ended

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
TOKENS = [f"mine={TOKEN}", "mine=rotated-in", SECOND]
PATIENCE = 20.0


@pytest.fixture
async def deployment(stack):
    """A server with a rollout of the first token's, and everybody's clients."""
    agent = Waiter()
    server = await stack.enter_async_context(AgentServer([agent], port=0, security=ServerSecurity(TOKENS)))
    trainer = await stack.enter_async_context(CallbackTrainer(ToolCallingMock()))
    clients = [
        await stack.enter_async_context(RolloutClient(server.address, token=token))
        for token in (TOKEN, "rotated-in", SECOND)
    ]
    await clients[0].init(rollout_id="r", messages=QUESTION, callback=trainer.callback())
    return server, agent, trainer, clients


async def rows(client):
    return [row.rollout_id async for row in client.rollouts()]


async def test_other_owners_do_not_see_a_rollout(deployment):
    _, agent, trainer, (owner, _, other) = deployment
    with pytest.raises(AlreadyExists):
        await other.init(rollout_id="r", messages=QUESTION, callback=trainer.callback())
    with pytest.raises(AlreadyExists):
        await other.init(rollout_id="r", attempt=2, messages=QUESTION, callback=trainer.callback())
    with pytest.raises(NotFound) as theirs:
        await other.get("r")
    with pytest.raises(NotFound) as nobodys:
        await other.get("s")
    assert str(theirs.value).removesuffix("r") == str(nobodys.value).removesuffix("s")
    with pytest.raises(NotFound):
        await anext(other.events("r"))
    assert await rows(other) == []
    assert [row.state for row in await other.cancel("r", reason="mine now")] == [None]
    assert await other.cancel(everything=True) == []
    stream = other.all_events()
    assert (await anext(stream))[1] is None, "a sign of life first"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await anext(stream)
    await stream.aclose()
    assert (await owner.get("r")).activity.description
    agent.go.set()
    assert (await asyncio.wait_for(trainer.outcome("r"), PATIENCE)).status is OutcomeStatus.COMPLETED


async def test_a_rotated_token_keeps_its_rollouts(deployment):
    _, _, trainer, (owner, rotated, _) = deployment
    again = await rotated.init(rollout_id="r", messages=QUESTION, callback=trainer.callback(state=b"re-pointed"))
    assert not again.created
    assert await rows(rotated) == await rows(owner) == ["r"]
    assert len(await rotated.cancel("r")) == 1
    assert (await asyncio.wait_for(ended(owner, "r"), PATIENCE)).status is OutcomeStatus.CANCELLED


async def test_http_callers_are_owners_as_well(deployment, stack):
    server, _, trainer, (owner, _, other) = deployment
    http = await stack.enter_async_context(serve_http(server, port=0))
    client = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://{http.address}", trust_env=False))
    body = {"server_url": f"http://{trainer.address}", "messages": QUESTION, "completion_params": {}}

    async def init(rollout_id, token):
        shown = {"authorization": f"Bearer {token}"}
        return (
            await client.post("/v1/rollout/init", json=body | {"rollout_id": rollout_id}, headers=shown)
        ).status_code

    assert await init("r", SECOND) == 409
    assert await init("h", SECOND) == 202
    assert await init("h", TOKEN) == 409
    assert await rows(other) == ["h"]
    assert await rows(owner) == ["r"]


async def test_an_attachment_is_its_credentials(deployment):
    server, *_ = deployment

    def opened(trainer, token):
        trainer.metadata = (("authorization", f"Bearer {token}"),)
        return trainer.open()

    async with RawTrainer(server.address) as trainer:
        first = opened(trainer, TOKEN)
        await first.send(trainer.hello())
        await first.next("hello")
        second = opened(trainer, SECOND)
        await second.send(trainer.hello())
        assert await second.ended() == "UNAUTHENTICATED"
        assert first.over is None
        third = opened(trainer, "rotated-in")
        await third.send(trainer.hello())
        await third.next("hello")
        assert await first.ended() == "ABORTED"
        await third.cut()


async def test_over_attachments_rollouts_are_their_owners(deployment):
    server, agent, _, (owner, _, other) = deployment
    async with Trainer([server.address], ToolCallingMock(), credentials=Credentials(token=SECOND)) as trainer:
        with pytest.raises(AlreadyExists):
            await asyncio.wait_for(trainer.rollout(rollout_id="r", messages=QUESTION), PATIENCE)
        running = asyncio.ensure_future(trainer.rollout(rollout_id="a", messages=QUESTION))
        async with asyncio.timeout(PATIENCE):
            while await rows(other) != ["a"]:
                await asyncio.sleep(0.01)  # between two lists
        assert await rows(owner) == ["r"]
        with pytest.raises(NotFound):
            await owner.get("a")
        agent.go.set()
        assert (await asyncio.wait_for(running, PATIENCE)).status is OutcomeStatus.COMPLETED


async def test_a_server_that_dials_in_cannot_replace_another(stack):
    """Another credential that names a server's journal does not get that server's rollouts."""
    tokens = ["one=1-secret", "two=2-secret"]
    trainer = await stack.enter_async_context(
        Trainer([], ToolCallingMock(), listen="127.0.0.1:0", security=ServerSecurity(tokens))
    )
    from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, services_pb2

    channel = await stack.enter_async_context(grpc.aio.insecure_channel(trainer.address))
    hello = attach_pb2.ServerHello(
        process_id="p", journal_id="journal-of-one", version="x", protocol_min=1, protocol_max=1, max_open_rollouts=1
    )

    async def dial(token):
        call = channel.stream_stream(
            "/osmosis.rollout.v1.TrainerService/Accept",
            services_pb2.AcceptRequest.SerializeToString,
            services_pb2.AcceptResponse.FromString,
        )(metadata=(("authorization", f"Bearer {token}"),))
        await call.write(services_pb2.AcceptRequest(frames=[attach_pb2.ServerFrame(hello=hello)]))
        try:
            return (await call.read()).frames[0].hello.attachment_id
        except grpc.aio.AioRpcError as error:
            return error.code().name
        finally:
            call.cancel()

    mine = await dial("1-secret")
    assert len(mine) > 16
    assert await dial("2-secret") == "UNAUTHENTICATED"
    assert await dial("1-secret") == mine


async def test_a_callback_has_a_credential_of_its_own(stack, serve):
    server = await serve(CalculatorAgent())
    trainer = await stack.enter_async_context(CallbackTrainer(ToolCallingMock(), tokens=[f"lab={TOKEN}", SECOND]))
    client = await stack.enter_async_context(RolloutClient(server.address))

    async def ends(rollout_id, callback):
        await client.init(rollout_id=rollout_id, messages=QUESTION, callback=callback)
        outcome = await asyncio.wait_for(ended(client, rollout_id), PATIENCE)
        return outcome.status, outcome.failure and outcome.failure.boundary

    made = trainer.callback()
    assert TOKEN not in made.credential
    assert made == trainer.callback()
    completed, failed = (OutcomeStatus.COMPLETED, None), (OutcomeStatus.FAILED, "trainer")
    assert await ends("r1", made) == completed
    assert await ends("r2", trainer.callback(rollout_id="r2")) == completed
    assert await ends("r3", trainer.callback(rollout_id="r2")) == failed
    assert await ends("r4", trainer.callback(credential=SECOND)) == completed
    for credential in ("", "wrong", made.credential[:-1], TOKEN[:-1]):
        assert (
            await ends(f"r{credential[:3]}{len(credential)}", Callback(target=trainer.address, credential=credential))
            == failed
        )
    with pytest.raises(ValueError, match="not one of this trainer's tokens"):
        trainer.callback(credential="wrong")


@pytest.mark.parametrize("authenticated", [True, False])
async def test_an_authenticated_caller_may_name_another_machine(stack, authenticated):
    """Authenticated callers may name private and public addresses; link-local addresses are always refused."""
    security = ServerSecurity(TOKEN) if authenticated else ServerSecurity()
    server = await stack.enter_async_context(AgentServer([Waiter()], port=0, security=security))
    client = await stack.enter_async_context(RolloutClient(server.address, token=TOKEN if authenticated else ""))
    for number, (target, allowed) in enumerate(
        (
            ("10.1.2.3:1", authenticated),
            ("192.0.2.7:1", authenticated),
            ("[2001:db8::1]:1", authenticated),
            ("127.0.0.1:1", True),
            ("169.254.169.254:80", False),
            ("0.0.0.0:1", False),
            ("100.100.100.200:1", False),
        )
    ):
        try:
            await client.init(rollout_id=f"r{number}", callback=Callback(target=target))
            accepted = True
        except InvalidArgument as error:
            accepted = error.violations[0][0] != "callback.target"
        assert accepted is allowed, target


async def test_a_url_as_callback_is_refused_although_http_is_served(stack):
    for token in (TOKEN, ""):
        security = ServerSecurity(token) if token else ServerSecurity()
        server = await stack.enter_async_context(AgentServer([Waiter()], port=0, security=security))
        await stack.enter_async_context(serve_http(server, port=0))
        client = await stack.enter_async_context(RolloutClient(server.address, token=token))
        with pytest.raises(InvalidArgument, match=r"callback\.target: is a URL"):
            await client.init(rollout_id="r", callback=Callback(target="http://10.1.2.3:1"))
