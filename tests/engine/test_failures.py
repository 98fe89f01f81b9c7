"""Code of the engine itself raises once: that rollout ends FAILED (server), and the next one completes."""

import asyncio
import dataclasses

import pytest

import osmosis_grpc.storage.journal.sqlite_journal
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.engine import runner
from osmosis_grpc.engine.config import EngineConfig
from osmosis_grpc.engine.engine import Engine
from osmosis_grpc.engine.record_table import RecordTable
from osmosis_grpc.engine.runner import Runner
from osmosis_grpc.engine.termination import Termination
from osmosis_grpc.engine.tombstones import Tombstones
from osmosis_grpc.engine.unreachable_trainers import Destinations
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus, events
from osmosis_grpc.storage import SqliteJournal
from osmosis_grpc.supervise import Supervisor
from tests.engine.conftest import FAST, Clock, Host


class Talk(RolloutAgentLoop):
    """Does what its request says."""

    name = "talk"

    async def get_tools(self, request):
        return []

    async def run(self, ctx):
        if ctx.request.label == "hang":
            await asyncio.Event().wait()
        messages = [{"role": "user", "content": "hello"}]
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages, reward=1.0)


@pytest.fixture
async def h(tmp_path):
    """A host with a journal and one slot."""
    clock = Clock()
    supervisor = Supervisor("the engine", system=clock)
    store = SqliteJournal(tmp_path / "state", supervisor=supervisor)
    try:
        config = EngineConfig(max_concurrent=1, **FAST)
        async with Engine([Talk()], config, supervisor=supervisor, journal=store) as engine:
            yield Host(engine, clock, [])
    finally:
        store.close()


@pytest.fixture
def once(monkeypatch):
    """Makes a function of ours raise the first time that it is called."""

    def patch(owner, name, when=lambda *arguments: True):
        whole, raised = getattr(owner, name), []

        def wrapper(*arguments, **named):
            if not raised and when(*arguments):
                raised.append(1)
                raise OSError("the disk")
            return whole(*arguments, **named)

        monkeypatch.setattr(owner, name, wrapper)
        return raised

    return patch


async def ends_as_ours(h, **fields):
    async with asyncio.timeout(5):
        outcome = await h.run("r1", **fields)
        assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "server")
        assert (await h.run("r2")).status is OutcomeStatus.COMPLETED
    assert h.engine.capacity().running == 0


async def test_a_deadline_that_raises(h, once, caplog):
    raised = once(Termination, "timed_out")
    await ends_as_ours(h, agent_timeout=0.05, label="hang")
    assert raised
    assert "rollout r1 ends FAILED" in caplog.text
    assert h.engine.supervisor.failures["engine.deadline"] == 1


@pytest.mark.parametrize(("owner", "name"), [(Tombstones, "take"), (Runner, "admit"), (RecordTable, "attempts_below")])
async def test_what_follows_an_acceptance_raises(h, once, caplog, owner, name):
    raised = once(owner, name)
    await ends_as_ours(h)
    assert raised
    assert h.engine.supervisor.failures["engine.committed"] == 1


@pytest.mark.parametrize("name", ["_start", "_over", "_end"])
async def test_the_start_and_the_end_of_an_agent_raise(h, once, name):
    raised = once(Runner, name)
    await ends_as_ours(h)
    assert raised


async def test_what_follows_an_end_raises(h, once):
    """The end is committed and stays what it is; the slot is free, and the outcome is delivered."""
    raised = once(RecordTable, "ended")
    async with asyncio.timeout(5):
        assert (await h.run("r1")).status is OutcomeStatus.COMPLETED
        assert (await h.run("r2")).status is OutcomeStatus.COMPLETED
    assert raised
    assert len(h.trainer.outcomes) >= 2


async def test_a_delivery_that_raises_is_tried_again(h, once):
    raised = once(Destinations, "tried")
    h.trainer.answers = [Unavailable("not now")]
    async with asyncio.timeout(10):
        assert (await h.run("r1")).status is OutcomeStatus.COMPLETED
    assert raised


async def test_a_sweep_that_raises_ends_nothing(h, once, caplog):
    raised = once(RecordTable, "sweep")
    await h.until(lambda: raised)
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert (await h.run("r1")).status is OutcomeStatus.COMPLETED
    h.clock.ahead = 10_000.0
    await h.until_listed()
    assert "engine.sweep failed; runs again" in caplog.text


async def test_an_outcome_that_cannot_be_written(h, once):
    raised = once(
        osmosis_grpc.storage.journal.sqlite_journal, "kind_to_bytes", lambda kind: isinstance(kind, events.Ended)
    )
    await ends_as_ours(h)
    assert raised


async def test_metrics_that_cannot_be_written(h, once, monkeypatch):
    build = runner.build_outcome

    def outcome(record, *arguments):
        made = build(record, *arguments)
        metrics = dataclasses.replace(made.metrics, tool_latency_ms=1e300)
        return dataclasses.replace(made, metrics=metrics) if record.rollout_id == "r1" else made

    monkeypatch.setattr(runner, "build_outcome", outcome)
    await ends_as_ours(h)
