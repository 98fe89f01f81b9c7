"""An engine, a trainer made of two functions, and what the tests ask of both."""

import asyncio
import copy
import time
from contextlib import asynccontextmanager

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.engine import Engine, EngineConfig, Peer
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.types import InitRequest, Receipt, RolloutRequest, events
from osmosis_grpc.storage import MemoryJournal
from osmosis_grpc.supervise import Supervisor, System
from tests.waiting import until

FAST = {
    "stop_again_after": (0.05, 0.1),
    "outbox_delay": (0.01, 0.05),
    "retry_delay": (0.01, 0.02),
    "trainer_grace": 0.5,
    "idle_interval": 0.05,
    "sweep_interval": 0.02,
    "get_tools_timeout": 3.0,
}
PATIENCE = 3.0
"""Seconds after which something that should happen is taken not to happen."""


class Clock(System):
    """The machine's clocks; tests move them ahead."""

    ahead = 0.0

    def monotonic(self):
        return time.monotonic() + self.ahead

    def time(self):
        return time.time() + self.ahead


class Trainer:
    """Answers chats by its policy, records outcomes, and keeps all calls."""

    def __init__(self, policy=None, key=None):
        self.policy = policy or EchoPolicy()
        self.chats = []
        self.asked = []
        """The chats' messages as they were when they came."""
        self.outcomes = []
        self.answers = []
        """Outcomes to give or exceptions to raise, one per outcome; after the last, RECORDED."""
        self.peer = Peer(self.chat, self.complete, key)

    async def chat(self, request):
        self.chats.append(request)
        self.asked.append(copy.deepcopy(list(request.messages)))
        return await self.policy(request)

    async def complete(self, outcome):
        self.outcomes.append(outcome)
        answer = self.answers.pop(0) if self.answers else Receipt.RECORDED
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def results(self, rollout_id):
        """The ids of the results that came for a rollout."""
        return [c.result_id for c in self.outcomes if c.rollout_id == rollout_id]


class Host:
    """A running engine and its trainer."""

    def __init__(self, engine, clock, escaped):
        self.engine = engine
        self.escaped = escaped
        """What reached the loop's exception handler."""
        self.clock = clock
        self.trainer = Trainer()
        self.Trainer = Trainer

    async def init(self, rollout_id="r1", *, owner="me", trainer=None, digest=None, callback=None, **fields):
        """An Init; the digest is made of the request unless one is given."""
        request = RolloutRequest(rollout_id=rollout_id, **fields)
        digest = repr(request).encode() if digest is None else digest
        init = InitRequest(request=request, digest=digest, callback=callback)
        return await self.engine.init(init, owner=owner, peer=(trainer or self.trainer).peer)

    async def start(self, rollout_id="r1", **fields):
        """An Init that is to start a rollout; its record."""
        record, started = await self.init(rollout_id, **fields)
        assert started
        return record

    async def settled(self, record):
        """The outcome of a rollout, once nothing more can happen to it."""
        async with asyncio.timeout(PATIENCE):
            async for _ in self.engine.log.follow(record, 0):
                pass
        return record.delivery.outcome

    async def run(self, rollout_id="r1", **fields):
        """A rollout from its Init to its outcome."""
        return await self.settled(await self.start(rollout_id, **fields))

    async def running(self, count=1):
        """Wait until the agents of so many rollouts have begun."""
        await until(lambda: self.engine.capacity().running >= count)
        await asyncio.sleep(0)

    async def until(self, condition):
        """Wait until something is true."""
        await until(condition)

    async def until_listed(self, *ids):
        """Wait until exactly these rollouts are kept."""

        async def listed():
            rows, _ = await self.engine.rollouts.page("me")
            return [row.rollout_id for row in rows] == list(ids)

        await until(listed)

    def kinds(self, record, kind=object):
        """What happened in a rollout, or only what is of one kind."""
        stored = self.engine.journal.events(record.rollout_id, record.attempt, 0, 100_000)
        return [event.kind for event in stored if isinstance(event.kind, kind)]

    def check_whole(self, record):
        """Numbers from 1 without gaps, one end, nothing after it but one delivery, one result delivered."""
        stored = self.engine.journal.events(record.rollout_id, record.attempt, 0, 100_000)
        assert [event.event_number for event in stored] == list(range(1, len(stored) + 1))
        kinds = [type(event.kind) for event in stored]
        assert kinds[0] is events.Accepted
        assert kinds.count(events.Ended) == 1
        assert kinds[kinds.index(events.Ended) + 1 :] == [events.Delivered]
        assert self.trainer.results(record.rollout_id) == [record.delivery.outcome.result_id]
        assert stored[kinds.index(events.Ended)].kind.outcome is record.delivery.outcome


def as_loop(agent, get_tools):
    """An agent loop or a workflow as it is, or an agent loop made of its run method."""
    if isinstance(agent, RolloutAgentLoop | WorkflowRunnable | type):
        return agent

    async def run(self, ctx):
        return await agent(ctx)

    body = {"name": "agent", "run": run, "get_tools": lambda self, request: get_tools(request)}
    return type("Agent", (RolloutAgentLoop,), body)()


@asynccontextmanager
async def _hosting(*agents, get_tools=lambda request: [], sinks=(), **config):
    escaped = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: escaped.append(context))
    clock, loops = Clock(), [as_loop(agent, get_tools) for agent in agents]
    supervisor = Supervisor("the engine", system=clock)
    async with Engine(
        loops, EngineConfig(**{**FAST, **config}), supervisor=supervisor, sinks=sinks, journal=MemoryJournal()
    ) as engine:
        yield Host(engine, clock, escaped)
    for _ in range(10):
        await asyncio.sleep(0)
    assert escaped == []


@pytest.fixture
def hosting():
    """`async with hosting(agent, **config) as h`: an engine; nothing may fail behind its back."""
    return _hosting
