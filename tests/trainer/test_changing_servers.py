"""Servers that come and go while rollouts run: load, rollouts of removed servers, workers, groups on one server."""

import asyncio
import random
from collections import Counter
from contextlib import aclosing

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.network.network import GrpcNetwork
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.raw import listen_as_agent_server
from osmosis_grpc.testing.raw.server_frames import accepted, hello
from osmosis_grpc.trainer import RolloutRequest, Trainer, TrainerConfig, target_sources
from tests.ports import quiet_port
from tests.trainer.conftest import PATIENCE, USER, reply, talker
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("quick_sources")

BOTH = pytest.mark.parametrize("transport", ["attach", "callback"])
IN_FLIGHT = 36
THINK = 0.08, 0.18
"""Seconds that a rollout thinks, at least and at most."""


@pytest.fixture
def quick_sources(monkeypatch):
    for name in ("FILE_PERIOD", "FUNCTION_PERIOD", "SHORTEST_PERIOD", "SETTLED"):
        monkeypatch.setattr(target_sources, name, 0.02)


class Thinker(RolloutAgentLoop):
    """Thinks, chats and completes."""

    name = "thinker"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        await asyncio.sleep(random.uniform(*THINK))  # the time that its tools take
        await ctx.chat(ctx.request.messages)
        return ctx.complete(ctx.request.messages, reward=1.0)


class Names:
    """Where a trainer of the test finds its servers: a file or a name in DNS, and what is in there now."""

    def __init__(self, kind, folder):
        self.kind = kind
        self.file = folder / "servers"
        self.addresses = []
        self.network = Network(self)
        self.target = self.file if kind == "file" else ""

    def set(self, *servers):
        """These servers are named from now on."""
        self.addresses = [server.address for server in servers]
        self.file.write_text("\n".join(["# the servers", *self.addresses]))

    def trainer(self, transport, **config):
        """Returns a trainer that finds its servers here."""
        made = type("Named", (Trainer,), {"network": self.network})
        config = TrainerConfig(resolve_every=0.05, **config)
        target = self.file if self.kind == "file" else f"dns:///agents:{self.addresses[0].rpartition(':')[2]}"
        return made(target, reply, transport=transport, config=config)


class Network(GrpcNetwork):
    """This machine, with one name more."""

    def __init__(self, names):
        self._names = names

    async def resolve(self, name):
        assert name == "agents"
        return [address.rpartition(":")[0] for address in self._names.addresses]


@pytest.fixture
def started(stack):
    """Starts agent servers with one port, each at an address of its own."""

    async def start(count, make):
        port = quiet_port()
        servers = []
        for number in range(count):
            config = ServerConfig(max_concurrent=64, outbox_delay=(0.05, 0.2), retry_delay=(0.05, 0.2))
            server = AgentServer([make()], host=f"127.0.0.{number + 1}", port=port, config=config)
            servers.append(await stack.enter_async_context(server))
        return servers

    return start


def requests(count, **fields):
    return [RolloutRequest(rollout_id=f"r{n}", messages=[USER], **fields) for n in range(count)]


class Load:
    """The mean number of open rollouts of each server, from the moment when they are level after a change."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.phases = []
        self._expected, self._seen, self._level = set(), Counter(), False

    def change(self, *servers):
        """End a phase, and begin one with these servers."""
        if self._expected:
            even = sum(self._seen.values()) / len(self._expected)
            self.phases.append([round(count / even, 2) for count in self._seen.values()])
        self._expected, self._seen, self._level = {server.address for server in servers}, Counter(), False

    async def watch(self):
        """Count open rollouts again and again."""
        while True:
            now = {
                server.name: server.open for server in self.trainer.servers if server.attached and not server.retired
            }
            if set(now) == self._expected:
                self._level = self._level or max(now.values()) - min(now.values()) <= 2
                if self._level:
                    self._seen.update(now)
            await asyncio.sleep(0.005)  # a mean over time


@pytest.mark.parametrize(
    ("kind", "transport"),
    [
        ("file", "attach"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("file", "callback"), ("dns", "attach"))),
    ],
)
async def test_three_servers_then_four_then_two_share_300_rollouts_evenly(started, tmp_path, transport, kind):
    servers = await started(4, Thinker)
    names = Names(kind, tmp_path)
    phases = {0: servers[:3], 100: servers, 200: servers[2:]}
    names.set(*phases[0])
    outcomes = []
    async with names.trainer(transport) as trainer:
        load = Load(trainer)
        load.change(*phases[0])
        watching = asyncio.create_task(load.watch())
        async with asyncio.timeout(60), aclosing(trainer.run(requests(300), max_in_flight=IN_FLIGHT)) as run:
            async for outcome in run:
                outcomes.append(outcome)
                if len(outcomes) in phases:
                    names.set(*phases[len(outcomes)])
                    load.change(*phases[len(outcomes)])
                if len(outcomes) == 300 - IN_FLIGHT:  # the last ones are not replaced, so that nothing levels them
                    load.change()
        watching.cancel()
        await until(lambda: len(trainer.servers) == 2, "the removed servers are forgotten")
    assert Counter(outcome.status for outcome in outcomes) == {OutcomeStatus.COMPLETED: 300}
    assert {outcome.attempt for outcome in outcomes} == {1}
    assert len({outcome.rollout_id for outcome in outcomes}) == 300
    assert [len(shares) for shares in load.phases] == [3, 4, 2]
    for shares in load.phases:
        assert all(0.8 <= share <= 1.2 for share in shares), load.phases


@BOTH
async def test_a_removed_server_gets_no_new_rollouts_and_ends_its_own(started, tmp_path, transport):
    agents = []

    def make():
        agents.append(talker())
        return agents[-1]

    servers = await started(2, make)
    names = Names("file", tmp_path)
    names.set(servers[0])
    agents[0].gate("r0")
    async with names.trainer(transport) as trainer:
        first = asyncio.create_task(trainer.rollout(requests(1)[0]))
        await until(lambda: agents[0].running["r0"])
        names.set(servers[1])
        await until(lambda: {server.name for server in trainer.servers if server.attached} >= set(names.addresses))
        await until(lambda: all(server.retired for server in trainer.servers if server.open))
        later = await asyncio.gather(*(trainer.rollout(request) for request in requests(20)[1:]))
        assert {outcome.attempt for outcome in later} == {1}
        assert agents[0].started == ["r0"]
        agents[0].release()
        outcome = await first
        assert (outcome.status, outcome.attempt) == (OutcomeStatus.COMPLETED, 1)
        await until(lambda: len(trainer.servers) == 1)


@BOTH
async def test_a_server_that_is_removed_and_away_is_left_at_once(started, stack, tmp_path, transport):
    agents = []

    def make():
        agents.append(talker())
        agents[-1].gate("r0")
        return agents[-1]

    servers = await started(2, make)
    names = Names("file", tmp_path)
    names.set(servers[0])
    async with asyncio.timeout(PATIENCE * 2), names.trainer(transport, lost_after=1000.0) as trainer:
        running = asyncio.create_task(trainer.rollout(requests(1)[0]))
        await until(lambda: agents[0].running["r0"])
        names.set(servers[1])
        await until(lambda: len(trainer.servers) == 2 and all(server.attached for server in trainer.servers))
        agents[0].gates.clear()
        await servers[0].__aexit__(None, None, None)
        agents[1].release()
        outcome = await running
        assert (outcome.status, outcome.attempt) in {
            (OutcomeStatus.COMPLETED, 2),
            (OutcomeStatus.FAILED, 1),  # the server ended it before its connection ended
        }


@BOTH
async def test_a_server_that_is_named_again_goes_on(started, tmp_path, transport):
    agents = []

    def make():
        agents.append(talker())
        agents[-1].gate("r0")
        return agents[-1]

    servers = await started(2, make)
    names = Names("file", tmp_path)
    names.set(*servers)
    async with names.trainer(transport) as trainer:
        await until(lambda: all(server.attached for server in trainer.servers))
        running = asyncio.create_task(trainer.rollout(requests(1)[0]))
        await until(lambda: any(agent.running["r0"] for agent in agents))
        names.set()
        await until(lambda: [server.retired for server in trainer.servers] == [True])
        names.set(*servers)
        await until(lambda: [server.retired for server in trainer.servers] == [False, False])
        for agent in agents:
            agent.release()
        outcome = await running
        assert (outcome.status, outcome.attempt) == (OutcomeStatus.COMPLETED, 1)
        again = await trainer.rollout(requests(2)[1])
        assert again.status is OutcomeStatus.COMPLETED


@BOTH
async def test_groups_stay_on_one_server_unless_it_is_removed(started, tmp_path, transport):
    where = {}

    class Noting(Thinker):
        async def run(self, ctx):
            where.setdefault(ctx.request.group.id, set()).add(self)
            return await super().run(ctx)

    servers = await started(4, Noting)
    names = Names("file", tmp_path)
    names.set(*servers[:3])
    outcomes = []
    async with names.trainer(transport) as trainer, asyncio.timeout(60):
        run = trainer.run(requests(20), group_size=4, max_in_flight=24, colocate_groups=True)
        async with aclosing(run):
            async for outcome in run:
                outcomes.append(outcome)
                if len(outcomes) == 24:
                    names.set(*servers[2:])
                    await until(lambda: any(server.retired for server in trainer.servers))
                    unfinished = {rollout.request.group.id for rollout in trainer.scheduler.rollouts.values()}
    assert Counter(outcome.status for outcome in outcomes) == {OutcomeStatus.COMPLETED: 80}
    split = {group for group, agents in where.items() if len(agents) > 1}
    assert split <= unfinished  # only groups that ran while their server was removed
    assert all(len(agents) <= 2 for agents in where.values())
    assert len({agent for agents in where.values() for agent in agents}) == 4


# Workers.


async def attached_to(listener, name, *workers):
    """Answers the next stream of a trainer as a server whose workers are these listeners. Returns the stream."""
    stream = await listener.accept()
    await stream.next("hello")
    rows = [control_pb2.Worker(port=int(worker.address.rpartition(":")[2])) for worker in workers]
    await stream.send(hello(journal_id=name, workers=rows))
    return stream


def names_of(trainer):
    return {server.name for server in trainer.servers}


async def test_a_trainer_attaches_to_the_workers_that_a_hello_names(stack):
    first, second, third = [await stack.enter_async_context(listen_as_agent_server()) for _ in range(3)]
    async with Trainer([first.address], reply) as trainer:
        stream = await attached_to(first, "j1", first, second, third)
        await attached_to(second, "j2", first, second, third)
        await attached_to(third, "j3", first, second, third)
        await until(lambda: len([server for server in trainer.servers if server.attached]) == 3)
        assert names_of(trainer) == {first.address, second.address, third.address}
        done = [asyncio.create_task(trainer.rollout(r)) for r in requests(6, agent_loop="talk")]
        await until(lambda: [server.open for server in trainer.servers] == [2, 2, 2], "they share the rollouts")

        await stream.send(hello(journal_id="j1"))  # a second hello is a breach, and the trainer connects again
        await attached_to(first, "j1", first, second)
        await until(lambda: [s.retired for s in trainer.servers] == [False, False, True])
    await asyncio.gather(*done, return_exceptions=True)  # the trainer was closed


async def test_a_worker_that_names_others_adds_none(stack):
    first, second, third = [await stack.enter_async_context(listen_as_agent_server()) for _ in range(3)]
    async with Trainer([first.address], reply) as trainer:
        await attached_to(first, "j1", first, second)
        await attached_to(second, "j2", first, second, third)
        await until(lambda: len([server for server in trainer.servers if server.attached]) == 2)
        assert names_of(trainer) == {first.address, second.address}


async def test_workers_are_removed_with_their_server(stack, tmp_path):
    first, second = [await stack.enter_async_context(listen_as_agent_server()) for _ in range(2)]
    path = tmp_path / "servers"
    path.write_text(first.address)
    async with Trainer(path, reply) as trainer:
        await attached_to(first, "j1", first, second)
        await attached_to(second, "j2", first, second)
        await until(lambda: len(trainer.servers) == 2)
        path.write_text("# none")
        await until(lambda: not trainer.servers)


async def test_rollouts_of_an_earlier_process_wait_for_the_worker_that_ran_them(stack, tmp_path):
    """The ledger knows the worker by its address. The worker is named only when the server has answered."""
    first, second = [await stack.enter_async_context(listen_as_agent_server()) for _ in range(2)]
    ledger = tmp_path / "ledger"
    async with Trainer([first.address], reply, ledger=ledger) as trainer:
        await attached_to(first, "j1", first, second)
        stream = await attached_to(second, "j2", first, second)
        await until(lambda: len([server for server in trainer.servers if server.attached]) == 2)
        tasks = [asyncio.create_task(trainer.rollout(r)) for r in requests(2, agent_loop="talk")]
        request = await stream.next("init")
        await stream.send(accepted(request))
        await until(lambda: trainer.scheduler.rollouts[request.rollout_id].opened)
        await trainer.scheduler.ledger.written()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with Trainer([first.address], reply, ledger=ledger) as trainer:
        stream = await attached_to(second, "j2", first, second)
        listed = await stream.next("open_rollouts")
        assert [(row.rollout_id, row.attempt) for row in listed.rollouts] == [(request.rollout_id, 1)]
        assert {server.name: server.retired for server in trainer.servers}[second.address]
        await attached_to(first, "j1", first, second)
        await until(lambda: not any(server.retired for server in trainer.servers))
        assert trainer.scheduler.rollouts[request.rollout_id].request.attempt == 1
