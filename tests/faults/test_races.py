"""The same call many times at once; cancel, result and deadline raced: one effect, one end."""

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import grpc
import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import (
    chat_pb2,
    control_pb2,
    message_pb2,
    outcome_pb2,
    rollout_pb2,
    services_pb2_grpc,
)
from osmosis_grpc.protocol.types import events
from osmosis_grpc.server import AgentServer, ServerConfig
from tests.callback_trainer import CallbackTrainer
from tests.credentials import shown
from tests.waiting import until

USER = message_pb2.Message(role="user", text="Hello")
SOON = 20.0
FAST = ServerConfig(max_concurrent=2000, max_queued=10_000, stop_again_after=(0.05, 0.1), retry_delay=(0.01, 0.02))


class Counted(RolloutAgentLoop):
    """Counts its runs, and makes as many chats as requested."""

    name: ClassVar[str] = "counted"

    def __init__(self) -> None:
        self.ran: Counter[tuple[str, int]] = Counter()

    def get_tools(self, request: Any) -> Any:
        return []

    async def run(self, ctx: Any) -> Any:
        self.ran[ctx.request.rollout_id, ctx.request.attempt] += 1
        messages = list(ctx.request.messages)
        for _ in range(ctx.request.metadata.get("turns", 1)):
            messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages, reward=1.0)


class Recorded:
    """A trainer over the plain stubs: counts outcomes, and remembers how long each chat might take."""

    def __init__(self, delay: float = 0.0) -> None:
        self.outcomes: dict[tuple[str, int], list[outcome_pb2.RolloutOutcome]] = {}
        self.left: list[tuple[float, float]] = []
        """When a chat came, and the seconds that its deadline left it."""
        self._delay = delay

    async def Chat(self, request: Any, context: Any) -> Any:
        self.left.append((time.monotonic(), context.time_remaining()))
        seconds = 3600 if request.full.messages[-1].text == "slow" else self._delay
        await asyncio.sleep(seconds)  # the reply takes so long
        return chat_pb2.ChatResponse(message=message_pb2.Message(role="assistant", text="fine"), finish_reason="stop")

    async def Complete(self, request: Any, context: Any) -> Any:
        received = request.outcome
        known = self.outcomes.setdefault((received.rollout_id, received.attempt), [])
        known.append(received)
        receipt = outcome_pb2.RECEIPT_RECORDED
        return outcome_pb2.CompleteResponse(receipt=receipt)

    async def AbandonChat(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    async def Accept(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def results(self, rollout_id: str, attempt: int = 1) -> int:
        """The number of different results: an Init after the end gets the same one again."""
        return len({outcome.result_id for outcome in self.outcomes[rollout_id, attempt]})


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


async def recording(stack: Any, **options: Any) -> tuple[Recorded, str]:
    trainer, server = Recorded(**options), grpc.aio.server()
    services_pb2_grpc.add_TrainerServiceServicer_to_server(trainer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stack.push_async_callback(server.stop, None)
    return trainer, f"127.0.0.1:{port}"


async def serving(stack: Any, config: ServerConfig = FAST, **options: Any) -> tuple[Counted, AgentServer]:
    agent = Counted()
    return agent, await stack.enter_async_context(AgentServer([agent], port=0, config=config, **options))


def request(target: str, rollout_id: str, *, label: str | None = None, turns: int = 1) -> rollout_pb2.InitRequest:
    spec = rollout_pb2.RolloutSpec(messages=[USER], metadata_json=f'{{"turns": {turns}}}')
    made = rollout_pb2.InitRequest(rollout_id=rollout_id, spec=spec)
    made.callback.target = target
    if label is not None:
        made.spec.label = label
    return made


async def stubs(stack: Any, address: str, count: int) -> list[Any]:
    options = client_options(grpc__use_local_subchannel_pool=1)
    made = []
    for _ in range(count):
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
        made.append(services_pb2_grpc.RolloutServiceStub(channel))
    return made


async def outcome(call: Any) -> tuple[str, bytes]:
    """The status of a call, and its answer but for `created`."""
    try:
        response = await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, b""
    created, response.created = response.created, False
    return ("CREATED" if created else "OK"), response.SerializeToString()


@pytest.mark.slow
async def test_the_same_init_a_thousand_times_over_ten_connections_runs_once(stack):
    agent, server = await serving(stack)
    trainer, target = await recording(stack)
    callers = await stubs(stack, server.address, 10)
    calls = [stub.Init(request(target, "r"), timeout=SOON) for _ in range(100) for stub in callers]
    received = Counter(await asyncio.gather(*map(outcome, calls)))
    assert sorted(received.values()) == [1, 999]
    assert {status for status, _ in received} == {"CREATED", "OK"}
    assert len({body for _, body in received}) == 1
    await until(lambda: trainer.outcomes)
    assert (agent.ran, trainer.results("r")) == ({("r", 1): 1}, 1)


async def test_of_different_bodies_at_once_one_wins(stack):
    agent, server = await serving(stack)
    trainer, target = await recording(stack)
    callers = await stubs(stack, server.address, 5)
    calls = [stub.Init(request(target, "r", label=str(n)), timeout=SOON) for n in range(20) for stub in callers]
    received = Counter(status for status, _ in await asyncio.gather(*map(outcome, calls)))
    assert received == {"CREATED": 1, "OK": 4, "ALREADY_EXISTS": 95}
    await until(lambda: trainer.outcomes)
    assert (agent.ran, trainer.results("r")) == ({("r", 1): 1}, 1)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 27))])
async def test_init_cancel_result_and_deadline_raced(stack, seed):
    """200 rollouts a seed. The first end stands, one outcome is sent for each, events agree."""
    print(f"seed {seed}")
    drawn = random.Random(seed)
    agent, server = await serving(stack)
    trainer, target = await recording(stack, delay=0.001)
    callers = await stubs(stack, server.address, 3)

    async def one(rollout_id: str) -> None:
        made = request(target, rollout_id, turns=drawn.randrange(4))
        if drawn.random() < 0.5:
            made.spec.agent_timeout.FromMicroseconds(drawn.randrange(1, 30_000))
        steps: list[Any] = [lambda: drawn.choice(callers).Init(made)] * drawn.randrange(1, 4)
        cancel = control_pb2.CancelRequest(rollout_id=rollout_id, reason="raced")
        steps += [lambda: drawn.choice(callers).Cancel(cancel)] * drawn.randrange(3)
        drawn.shuffle(steps)
        for step, pause in [(step, drawn.choice([0, 0, 0.002, 0.01])) for step in steps]:
            await asyncio.sleep(pause)  # the drawn pause
            calls.append(asyncio.ensure_future(_quiet(step())))

    calls: list[Any] = []
    names = [f"r{seed}-{n}" for n in range(200)]
    await asyncio.gather(*map(one, names))
    results = await asyncio.gather(*calls)
    assert not [error for error in results if isinstance(error, grpc.aio.AioRpcError)]
    await until(lambda: len(trainer.outcomes) == len(names) and not server.engine.capacity().undelivered)
    for name in names:
        outcome = trainer.outcomes[name, 1][0]
        assert trainer.results(name) == 1
        info = await callers[0].GetRollout(control_pb2.GetRolloutRequest(rollout_id=name))
        assert info.rollout.outcome.status == outcome.status
        received = [event.kind for event in server.engine.journal.events(name, 1, 0, 1000)]
        assert sum(isinstance(kind, events.Ended) for kind in received) == 1
        assert agent.ran[name, 1] <= 1
    left = server.engine.capacity()
    assert (left.running, left.queued, left.abandoned) == (0, 0, 0)


async def _quiet(call: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return error


async def test_each_call_made_twice_has_the_effect_of_one(stack):
    """On the server's side: as if the first answer was lost after the work was done."""
    agent, server = await serving(stack)
    trainer, target = await recording(stack, delay=0.2)
    (stub,) = await stubs(stack, server.address, 1)
    made = request(target, "r")
    cancel = control_pb2.CancelRequest(rollout_id="r", attempt=1)
    rows = {
        "Init": (stub.Init, made),
        "GetRollout": (stub.GetRollout, control_pb2.GetRolloutRequest(rollout_id="r")),
        "Cancel": (stub.Cancel, cancel),
        "ListRollouts": (stub.ListRollouts, control_pb2.ListRolloutsRequest()),
        "Drain": (stub.Drain, control_pb2.DrainRequest()),
    }
    for name, (call, message) in rows.items():
        first, second = await call(message), await call(message)
        if name == "Init":
            assert (first.created, second.created) == (True, False)
        for answer_ in (first, second):
            for volatile in ("created", "running"):
                if volatile in answer_.DESCRIPTOR.fields_by_name:
                    answer_.ClearField(volatile)
        if name not in ("GetRollout", "ListRollouts", "Drain"):  # their answers change
            assert first == second or name == "Cancel", name
    await until(lambda: trainer.outcomes)
    assert (sum(agent.ran.values()) <= 1, len(trainer.outcomes["r", 1])) == (True, 1)


async def test_each_of_the_trainers_calls_made_twice_has_the_effect_of_one(stack):
    sampled: list[Any] = []

    def policy(request: Any) -> Any:
        sampled.append(request)
        return answer(request, f"reply {len(sampled)}")

    trainer = await stack.enter_async_context(CallbackTrainer(policy))
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(trainer.address))
    stub = services_pb2_grpc.TrainerServiceStub(channel)
    chat = chat_pb2.ChatRequest(rollout_id="r", sample="main", chat_number=1)
    chat.full.messages.append(USER)
    own = shown(trainer)
    assert await stub.Chat(chat, metadata=own) == await stub.Chat(chat, metadata=own)
    assert len(sampled) == 1
    outcome = outcome_pb2.RolloutOutcome(rollout_id="r", attempt=1, result_id="x", status=1, finish_reason="stop")
    received = outcome_pb2.CompleteRequest(outcome=outcome)
    outcomes = [(await stub.Complete(received, metadata=own)).receipt for _ in range(2)]
    assert outcomes == [outcome_pb2.RECEIPT_RECORDED, outcome_pb2.RECEIPT_ALREADY_RECORDED]
    assert (await trainer.outcome("r", SOON)).result_id == "x"
    with pytest.raises(TimeoutError):
        await trainer.outcome("r", 0.05)


class Steps(RolloutAgentLoop):
    """Awaits many things in turn; `reached` is the step."""

    name: ClassVar[str] = "steps"
    steps: ClassVar[tuple[str, ...]] = (
        "get_tools",
        "first line",
        "sleep",
        "chat",
        "two chats",
        "event",
        "child task",
        "thread",
        "shielded",
        "finally",
        "async generator",
        "last line",
    )

    def __init__(self, hold: str) -> None:
        self.hold = hold
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def _at(self, step: str) -> None:
        if step == self.hold:
            self.reached.set()
            await self.go.wait()

    async def get_tools(self, request: Any) -> Any:
        await self._at("get_tools")
        return []

    lists_tools_without_request: ClassVar[bool] = False

    async def run(self, ctx: Any) -> Any:
        await self._at("first line")
        await self._at("sleep")
        if self.hold in ("chat", "two chats"):
            self.reached.set()
        await ctx.chat([{"role": "user", "content": "slow" if self.hold == "chat" else "x"}])
        slow = "slow" if self.hold == "two chats" else "x"
        await asyncio.gather(*(ctx.chat([{"role": "user", "content": slow}], sample=f"s{n}") for n in range(2)))
        ctx.log_event("noted")
        await self._at("event")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._at("child task"))
        await asyncio.to_thread(time.sleep, 0.001)
        await self._at("thread")
        await asyncio.shield(asyncio.sleep(0))
        await self._at("shielded")
        try:
            await asyncio.sleep(0)
        finally:
            await self._at("finally")

        async def generated() -> Any:
            yield 1
            await self._at("async generator")
            yield 2

        async for _ in generated():
            pass
        await self._at("last line")
        return ctx.complete([], reward=1.0)


@pytest.mark.parametrize("how", ["cancel", "deadline"])
@pytest.mark.parametrize("step", Steps.steps)
async def test_stopped_at_each_await(stack, step, how):
    """Nothing of the rollout is left, and one outcome has the reason."""
    agent = Steps(step)
    trainer, target = await recording(stack)
    server = await stack.enter_async_context(AgentServer([agent], port=0, config=FAST))
    (stub,) = await stubs(stack, server.address, 1)
    before = asyncio.all_tasks()
    made = request(target, "r")
    if how == "deadline":
        made.spec.agent_timeout.FromMilliseconds(150)
    starting = asyncio.ensure_future(stub.Init(made))
    await asyncio.wait_for(agent.reached.wait(), SOON)
    if step == "get_tools":
        if how == "cancel":
            await stub.Cancel(control_pb2.CancelRequest(rollout_id="r"))
        agent.go.set()
    await starting
    if how == "cancel" and step != "get_tools":
        await asyncio.sleep(0.01)  # let a chat get on its way
        await stub.Cancel(control_pb2.CancelRequest(rollout_id="r"))
    await until(lambda: trainer.outcomes)
    (outcome,) = trainer.outcomes["r", 1]
    wanted = {"cancel": "CANCELLED", "deadline": "DEADLINE_EXCEEDED"}[how]
    got = outcome_pb2.OutcomeStatus.Name(outcome.status).removeprefix("OUTCOME_STATUS_")
    assert got == wanted or (step, how) == ("get_tools", "deadline"), got  # the deadline counts from acceptance
    await until(lambda: not [t for t in asyncio.all_tasks() - before if "run" in repr(t.get_coro()) and not t.done()])
    left = server.engine.capacity()
    assert (left.running, left.abandoned) == (0, 0)
    assert len(trainer.outcomes["r", 1]) == 1


async def test_a_chat_never_has_more_time_than_its_rollout(stack):
    """The grpc-timeout at the trainer is what is left of the agent_timeout, or less."""
    _, server = await serving(stack)
    trainer, target = await recording(stack, delay=0.05)
    (stub,) = await stubs(stack, server.address, 1)
    made = request(target, "r", turns=100)
    made.spec.agent_timeout.FromMilliseconds(600)
    began = time.monotonic()
    await stub.Init(made)
    accepted = time.monotonic()
    await until(lambda: trainer.outcomes)
    assert len(trainer.left) > 2
    for came, left in trainer.left:
        assert came + left <= accepted + 0.6 + 0.05, "rounding of grpc-timeout, and the way there"
        assert left <= 0.6 - (came - accepted) + 0.05
    assert max(came for came, _ in trainer.left) < accepted + 0.6 + 0.2
    assert began < accepted
