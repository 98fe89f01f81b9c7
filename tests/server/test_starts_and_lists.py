"""An agent server that does not start leaves nothing behind; long reads do not hold up its event loop."""

import asyncio
import threading

import pytest
from grpc_health.v1 import health

from osmosis_grpc.engine import Engine
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.types import Group, OutcomeStatus, RolloutFilter, RolloutState
from osmosis_grpc.server import AgentServer
from osmosis_grpc.storage import Reader, SqliteJournal
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.deployment import USER, Hangs, Talk


async def test_a_server_that_cannot_be_made_lets_go_of_its_folder(tmp_path):
    with pytest.raises(ValueError, match="unique names"):
        AgentServer([CalculatorAgent(), CalculatorAgent()], port=0, state_dir=tmp_path)
    SqliteJournal(tmp_path).close()


async def test_a_server_that_cannot_start_lets_go_of_folder_and_port(tmp_path, monkeypatch):
    server = AgentServer([CalculatorAgent()], port=0, state_dir=tmp_path)

    async def fail(self, service, status):
        raise OSError("no health")

    monkeypatch.setattr(health.aio.HealthServicer, "set", fail)
    with pytest.raises(OSError, match="no health"):
        async with server:
            pass
    monkeypatch.undo()
    SqliteJournal(tmp_path).close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)
    assert [thread.name for thread in threading.enumerate() if thread.name == "journal.commit"] == []


async def test_an_engine_that_cannot_start_lets_go_of_the_folder(tmp_path, monkeypatch):
    async def fail(self):
        raise OSError("no engine")

    monkeypatch.setattr(Engine, "__aenter__", fail)
    with pytest.raises(OSError, match="no engine"):
        async with AgentServer([CalculatorAgent()], port=0, state_dir=tmp_path):
            pass
    SqliteJournal(tmp_path).close()


@pytest.fixture
def threads(monkeypatch):
    """Notes on which thread a journal's reader reads rollouts and events."""
    seen = {"entries": set(), "events": set()}

    def note(name):
        read = getattr(Reader, name)

        def noted(self, *arguments, **options):
            seen[name].add(threading.get_ident())
            return read(self, *arguments, **options)

        monkeypatch.setattr(Reader, name, noted)

    note("entries")
    note("events")
    return seen


@pytest.mark.slow
async def test_lists_and_long_trajectories_are_read_off_the_event_loop(tmp_path, threads):
    async with (
        AgentServer([Talk(), Hangs()], port=0, state_dir=tmp_path) as server,
        RolloutClient(server.address) as client,
    ):
        async with Trainer([server.address], EchoPolicy()) as trainer:
            for number in range(12):
                group = Group("odd" if number % 2 else "even", number // 2, 6)
                done = await trainer.rollout(rollout_id=f"r{number}", agent_loop="talk", messages=[USER], group=group)
                assert done.status is OutcomeStatus.COMPLETED
            async with CallbackTrainer(EchoPolicy()) as called:
                await client.init(rollout_id="h", agent_loop="hangs", messages=[USER], callback=called.callback())
                rows = [row.rollout_id async for row in client.rollouts(group_id="odd")]
                assert rows == [f"r{number}" for number in range(1, 12, 2)]
                page, _ = await server.engine.rollouts.page("", where=RolloutFilter(states=[RolloutState.RUNNING]))
                assert [row.rollout_id for row in page] == ["h"]
                assert [row.rollout_id async for row in client.rollouts(undelivered=True)] == []
        assert threads["entries"]
        threads["events"].clear()
        assert len((await client.get("r3")).outcome.messages) == 5
        assert threads["events"]
    assert threading.get_ident() not in threads["entries"] | threads["events"]
