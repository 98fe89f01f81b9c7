"""The ledger's file, what a disk that is full does, and what a trainer with one yields, holds and forgets."""

import asyncio
import copy
import pickle
import shutil
import sqlite3
import threading
import time
from contextlib import aclosing, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from osmosis_grpc.protocol.errors import Aborted, AlreadyExists, LedgerError, Unavailable
from osmosis_grpc.protocol.types import ChatRequest, OutcomeStatus
from osmosis_grpc.server import AgentServer
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.storage.ledger.rows import LEDGER
from osmosis_grpc.trainer import Credentials, RolloutClient, RolloutRequest, ServerSecurity, Trainer, TrainerConfig
from osmosis_grpc.trainer.chats.rollout_cache import RolloutCache
from tests.attach.cutting_proxy import CuttingProxy
from tests.damaged import signed
from tests.trainer.conftest import PATIENCE, USER, reply, talker
from tests.trainer.deployment import collect
from tests.waiting import until

COMPLETED = OutcomeStatus.COMPLETED


def requests(count, **changes):
    return [RolloutRequest(rollout_id=f"r{n}", messages=[USER], **changes) for n in range(count)]


def copied(ledger: Path, name: str = "copy") -> Path:
    """The ledger as a process that is killed now leaves it."""
    target = ledger.with_name(name)
    for suffix in ("", "-wal"):
        if Path(f"{ledger}{suffix}").exists():
            shutil.copy(f"{ledger}{suffix}", f"{target}{suffix}")
    return target


def rows(ledger: Path, query: str) -> list:
    with closing(sqlite3.connect(ledger)) as connection:
        return connection.execute(query).fetchall()


# The file.


async def test_only_its_owner_may_read_it_and_no_secret_is_in_it(serve, tmp_path):
    server, path = await serve(talker()), tmp_path / "deep" / "ledger"
    secret = "hush-hush-credential"
    secrets = {"credentials": Credentials(token=secret), "security": ServerSecurity(secret)}
    async with Trainer([server.address], reply, transport="callback", ledger=path, **secrets) as trainer:
        outcome = await trainer.rollout(rollout_id="r", messages=[USER])
        assert outcome.status is COMPLETED
        files = [file for file in path.parent.iterdir() if file.suffix != ".lock"]
        assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
        assert not any(b"hush-hush" in file.read_bytes() for file in files)


# An application and its trainer, started again.


BOTH = pytest.mark.parametrize("transport", ["attach", "callback"])


@BOTH
async def test_an_unconfirmed_outcome_is_yielded_again_unchanged(serve, tmp_path, transport):
    server, path, asked = await serve(talker()), tmp_path / "ledger", []
    async with Trainer([server.address], reply, transport=transport, ledger=path) as trainer:
        first = await collect(trainer.run(requests(4, metadata={"turns": 3})))
        await first[0].confirm()
        await first[0].confirm()
    sampled = lambda request: asked.append(request) or reply(request)  # noqa: E731
    async with Trainer([server.address], sampled, transport=transport, ledger=path) as trainer:
        left = {request.rollout_id: request for request in requests(4, metadata={"turns": 3})}
        with pytest.raises(AlreadyExists, match="is over"):
            await trainer.rollout(left.pop(first[0].rollout_id))
        again = await collect(trainer.run(left.values()))
        assert sorted(again, key=lambda c: c.rollout_id) == sorted(first[1:], key=lambda c: c.rollout_id)
        for outcome in again:
            await outcome.confirm()
        assert await collect(trainer.unconfirmed()) == []
    assert asked == []
    async with Trainer([server.address], reply, transport=transport, ledger=path) as trainer:
        assert await collect(trainer.unconfirmed()) == []
    assert rows(path, "SELECT count(*) FROM chat") == [(0,)], "the chats of what is confirmed are deleted"
    assert rows(path, "SELECT count(*) FROM rollout") == [(0,)]
    results = {outcome.rollout_id: outcome.result_id for outcome in first}
    kept = rows(path, "SELECT rollout_id, attempt, result_id FROM confirmed ORDER BY 1")
    assert kept == [(f"r{n}", 1, results[f"r{n}"]) for n in range(4)]


async def test_another_request_with_the_id_of_an_unconfirmed_outcome_is_refused(serve, tmp_path):
    server, path = await serve(talker()), tmp_path / "ledger"
    async with Trainer([server.address], reply, ledger=path) as trainer:
        await trainer.rollout(rollout_id="r", messages=[USER])
    async with Trainer([server.address], reply, ledger=path) as trainer:
        with pytest.raises(AlreadyExists, match="another request"):
            await trainer.rollout(rollout_id="r", messages=[])
        assert (await trainer.rollout(rollout_id="r", messages=[USER], api_key="not sent")).status is COMPLETED
        again = await trainer.rollout(rollout_id="r", messages=[USER], attempt=2)
        assert (again.status, again.attempt) == (COMPLETED, 2)
        assert rows(path, "SELECT DISTINCT attempt FROM chat") == [(2,)]
        assert (await trainer.rollout(rollout_id="r", messages=[USER])).attempt == 2


@pytest.mark.parametrize("ask", ["run", "unconfirmed"])
async def test_rollouts_that_run_are_joined_over_a_kill_with_the_same_attachment(serve, tmp_path, ask):
    agent, path = talker(tools=[{"type": "function", "function": {"name": "f"}}]), tmp_path / "ledger"
    server, asked, gate = await serve(agent), [], asyncio.Event()

    async def halting(request):
        if request.chat_number > 1:
            await gate.wait()
        asked.append(request)
        return reply(request)

    async with Trainer([server.address], halting, ledger=path) as trainer:
        running = asyncio.create_task(collect(trainer.run(requests(3, metadata={"turns": 2}))))
        await until(lambda: len(asked) == 3 and sum(agent.running.values()) == 3)
        await until(lambda: len(trainer.scheduler.cache.rollout("r0", 1, time.monotonic()).samples["main"].asked) == 2)
        ids = [s.attachment_id for s in trainer.scheduler.servers]
        left = copied(path)
        async with Trainer([server.address], halting, ledger=left) as other:
            assert [s.attachment_id for s in other.scheduler.servers] == ids
            gate.set()
            got = await collect(other.run(requests(3, metadata={"turns": 2})) if ask == "run" else other.unconfirmed())
            assert sorted(outcome.rollout_id for outcome in got) == ["r0", "r1", "r2"]
            for outcome in got:
                assert (outcome.status, outcome.attempt) == (COMPLETED, 1)
                assert [chat.chat_number for chat in outcome.samples["main"].chats] == [1, 2]
                assert outcome.samples["main"].trainable
                await outcome.confirm()
        running.cancel()
    assert agent.attempts == [("r0", 1), ("r1", 1), ("r2", 1)]


async def test_leaving_unconfirmed_cancels_nothing_and_what_another_asks_for_is_theirs(serve, tmp_path):
    agent, path = talker(), tmp_path / "ledger"
    server = await serve(agent)
    async with Trainer([server.address], reply, ledger=path) as trainer:
        await collect(trainer.run(requests(3)))
    async with Trainer([server.address], reply, ledger=path) as trainer:
        async with aclosing(trainer.unconfirmed()) as outcomes:
            async for outcome in outcomes:
                assert outcome.rollout_id == "r0"
                break
        assert (await trainer.rollout(requests(3)[1])).rollout_id == "r1"
        assert [outcome.rollout_id for outcome in await collect(trainer.unconfirmed())] == ["r2"]


async def test_unconfirmed_leaves_out_an_outcome_if_a_higher_attempt_was_asked_for_while_it_was_read(serve, tmp_path):
    server, path = await serve(talker()), tmp_path / "ledger"
    async with Trainer([server.address], reply, ledger=path) as trainer:
        await collect(trainer.run(requests(1)))
    async with Trainer([server.address], reply, ledger=path) as trainer:
        left = asyncio.create_task(collect(trainer.unconfirmed()))
        higher = asyncio.create_task(trainer.rollout(replace(requests(1)[0], attempt=2)))
        again, outcome = await asyncio.gather(left, higher)
        assert (again, outcome.attempt) == ([], 2)


async def test_a_server_that_has_forgotten_starts_them_with_a_higher_attempt(serve, stack, tmp_path):
    agent, path = talker(), tmp_path / "ledger"
    agent.gate("r0")
    async with Trainer([(await serve(agent)).address], reply, ledger=path) as trainer:
        running = asyncio.create_task(collect(trainer.run(requests(1))))
        await until(lambda: agent.running["r0"])
        await until(lambda: trainer.scheduler.rollouts["r0"].opened)
        await trainer.scheduler.ledger.written()
        left = copied(path)
        running.cancel()
    with closing(sqlite3.connect(left)) as connection, connection:
        port = (other := await serve(agent)).address
        connection.execute("UPDATE rollout SET server_key = ?", (f"target {port}",))
        connection.execute("UPDATE attachment SET server_key = ? WHERE attachment_id != ''", (f"target {port}",))
        for name in ("rollout", "attachment"):
            signed(connection, LEDGER, name)
    agent.release()
    async with Trainer([other.address], reply, ledger=left) as trainer:
        (outcome,) = await collect(trainer.run(requests(1)))
        assert (outcome.status, outcome.attempt) == (COMPLETED, 2)


@pytest.mark.parametrize("transport", ["attach", pytest.param("callback", marks=pytest.mark.slow)])
async def test_a_server_that_is_no_longer_named_ends_its_rollouts_while_it_can_be_reached(serve, tmp_path, transport):
    agent, path = talker(), tmp_path / "ledger"
    agent.gate("r0")
    async with Trainer([(await serve(agent)).address], reply, transport=transport, ledger=path) as trainer:
        running = asyncio.create_task(collect(trainer.run(requests(1))))
        await until(lambda: agent.running["r0"])
        await trainer.scheduler.ledger.written()
        left = copied(path)
        trainer.scheduler.servers.running.clear()  # this process does nothing more
        async with Trainer([(await serve(agent)).address], reply, transport=transport, ledger=left) as second:
            continued = asyncio.create_task(collect(second.run(requests(1))))
            await until(lambda: sum(server.attached for server in second.servers) == 2)
            agent.release()
            (outcome,) = await continued
            assert (outcome.status, outcome.attempt) == (COMPLETED, 1)
            await until(lambda: len(second.servers) == 1, "the server that is not named is forgotten")
        running.cancel()


@BOTH
async def test_a_server_that_is_no_longer_named_and_is_away_is_left_at_once(serve, tmp_path, transport):
    agent, path = talker(), tmp_path / "ledger"
    agent.gate("r0")
    server = await serve(agent)
    async with Trainer([server.address], reply, transport=transport, ledger=path) as trainer:
        running = asyncio.create_task(collect(trainer.run(requests(1))))
        await until(lambda: agent.running["r0"])
        await trainer.scheduler.ledger.written()
        left = copied(path)
        running.cancel()
    agent.release()
    await server.__aexit__(None, None, None)
    async with Trainer([(await serve(agent)).address], reply, transport=transport, ledger=left) as trainer:
        (outcome,) = await collect(trainer.run(requests(1)))
        assert (outcome.status, outcome.attempt) == (COMPLETED, 2)
        assert len(trainer.servers) == 1


@BOTH
async def test_an_abandoned_rollout_needs_no_confirmation_and_runs_again_as_the_next_attempt(
    serve, tmp_path, transport
):
    agent, path = talker(), tmp_path / "ledger"
    agent.gate("r0")
    server = await serve(agent)
    async with Trainer([server.address], reply, transport=transport, ledger=path) as trainer:
        for attempt in (1, 2):  # the second time in the same process
            waiting = asyncio.create_task(trainer.rollout(requests(1)[0]))
            await until(lambda attempt=attempt: agent.attempts[-1:] == [("r0", attempt)])
            waiting.cancel()
            await until(lambda: "r0" not in trainer.scheduler.rollouts)
    assert rows(path, "SELECT attempt, outcome FROM rollout") == [(3, None)]
    agent.release()
    async with Trainer([server.address], reply, transport=transport, ledger=path) as trainer:
        assert await collect(trainer.unconfirmed()) == []
        outcome = await trainer.rollout(requests(1)[0])
        assert (outcome.status, outcome.attempt) == (COMPLETED, 3)
        await outcome.confirm()
        with pytest.raises(Aborted):
            await trainer.rollout(requests(1)[0])


async def test_a_loop_over_groups_that_an_error_has_left_goes_on_in_the_next_process(serve, tmp_path):
    agent, path = talker(), tmp_path / "ledger"
    agent.gate("slow-1")
    server, tasks = await serve(agent), [RolloutRequest(rollout_id=name, messages=[USER]) for name in ("fast", "slow")]

    async def train(trainer):
        async with aclosing(trainer.groups(tasks, group_size=2)) as groups:
            async for group in groups:
                yield group

    async with Trainer([server.address], reply, ledger=path) as trainer:
        with pytest.raises(ZeroDivisionError):
            async with aclosing(train(trainer)) as groups:
                async for group in groups:
                    assert group.id == "fast"
                    await until(lambda: agent.running["slow-1"] and "slow-0" not in trainer.scheduler.rollouts)
                    1 / 0
    agent.release()
    async with Trainer([server.address], reply, ledger=path) as trainer:
        attempts = {each.rollout_id: each.attempt for group in await collect(train(trainer)) for each in group}
    assert attempts == {"fast-0": 1, "fast-1": 1, "slow-0": 1, "slow-1": 2}


async def test_an_agent_server_that_dials_out_is_known_by_its_journal(stack, tmp_path):
    agent, path = talker(), tmp_path / "ledger"
    agent.gate("r0")
    async with Trainer([], reply, listen="127.0.0.1:0", ledger=path) as trainer, CuttingProxy(trainer.address) as proxy:
        await stack.enter_async_context(AgentServer([agent], port=0, connect=[proxy.address]))
        running = asyncio.create_task(collect(trainer.run(requests(1))))
        await until(lambda: agent.running["r0"])
        await until(lambda: trainer.scheduler.rollouts["r0"].opened)
        await trainer.scheduler.ledger.written()
        ids = [s.attachment_id for s in trainer.scheduler.servers]
        left = copied(path)
        async with Trainer([], reply, listen="127.0.0.1:0", ledger=left) as other:
            proxy.target = other.address
            proxy.cut()
            running.cancel()
            assert [s.attachment_id for s in other.scheduler.servers] == ids
            task = asyncio.create_task(collect(other.run(requests(1))))
            await until(lambda: other.servers[0].attached)
            agent.release()
            (outcome,) = await task
            assert outcome.attempt == 1


@BOTH
async def test_a_higher_attempt_replaces_an_unconfirmed_outcome(serve, tmp_path, transport):
    server, path = await serve(talker()), tmp_path / "ledger"
    (request,) = requests(1)
    for attempt in (1, 2):
        async with Trainer([server.address], reply, transport=transport, ledger=path) as trainer:
            outcome = await trainer.rollout(replace(request, attempt=attempt))
            assert outcome.attempt == attempt
    async with Trainer([server.address], reply, transport=transport, ledger=path) as trainer:
        (left,) = await collect(trainer.unconfirmed())
        assert left.attempt == 2
        await left.confirm()
    assert rows(path, "SELECT attempt FROM confirmed") == [(2,)]
    assert rows(path, "SELECT count(*) FROM chat") == [(0,)]


async def test_without_a_ledger_confirm_does_nothing(serve):
    server = await serve(talker())
    async with Trainer([server.address], reply) as trainer:
        outcome = await trainer.rollout(rollout_id="r", messages=[USER])
        await outcome.confirm()
        assert await collect(trainer.unconfirmed()) == []


async def test_a_receipt_is_copied_and_does_not_travel(serve, tmp_path):
    server = await serve(talker())
    async with Trainer([server.address], reply, ledger=tmp_path / "ledger") as trainer:
        outcome = await trainer.rollout(rollout_id="r", messages=[USER])
        assert "confirmation" not in repr(outcome)
        assert copy.copy(outcome) == outcome
        far = pickle.loads(pickle.dumps(outcome.confirmation))
        with pytest.raises(LedgerError, match="in the trainer's process"):
            await replace(outcome, confirmation=far).confirm()
        await replace(outcome, confirmation=copy.deepcopy(outcome.confirmation)).confirm()
        assert trainer.scheduler.ledger.unconfirmed == {}


async def test_a_confirmed_outcome_is_forgotten_after_the_ttl(serve, tmp_path):
    server, path = await serve(talker()), tmp_path / "ledger"
    async with Trainer([server.address], reply, ledger=path) as trainer:
        first = await collect(trainer.run(requests(2)))
        await first[0].confirm()
    await asyncio.sleep(0.05)  # more than the ttl
    await (await SqliteLedger.open(path, 0.01)).close()
    assert rows(path, "SELECT rollout_id FROM rollout") == [(first[1].rollout_id,)]
    assert rows(path, "SELECT rollout_id FROM confirmed") == []
    assert {row[0] for row in rows(path, "SELECT rollout_id FROM chat")} == {first[1].rollout_id}


async def test_the_sweep_forgets_confirmed_outcomes_only(serve, tmp_path):
    server, path = await serve(talker()), tmp_path / "ledger"
    async with Trainer([server.address], reply, ledger=path, config=TrainerConfig(ttl=0.2)) as trainer:
        first = await collect(trainer.run(requests(2)))
        await first[0].confirm()
        await until(lambda: not trainer.scheduler.cache.knows(first[0].rollout_id))
        await until(lambda: rows(path, "SELECT count(*) FROM confirmed") == [(0,)])
        assert await trainer.rollout(requests(2)[int(first[1].rollout_id[1:])]) == first[1]


# What waits for a commit.


@contextmanager
def held_up(ledger: SqliteLedger):
    """Nothing is committed meanwhile."""
    go_on = threading.Event()
    ledger.writer.read(lambda connection: go_on.wait(PATIENCE), lambda value, error: None)
    try:
        yield
    finally:
        go_on.set()


async def test_init_reply_and_outcome_wait_for_their_commits(serve, tmp_path):
    agent = talker()
    agent.gate("r0")
    server, asked = await serve(agent), []

    def policy(request):
        asked.append(request)
        return reply(request)

    async def undelivered():
        return [info async for info in client.rollouts(undelivered=True)]

    path = tmp_path / "ledger"
    async with Trainer([server.address], policy, ledger=path) as trainer, RolloutClient(server.address) as client:
        await until(lambda: trainer.servers[0].attached)
        with held_up(trainer.scheduler.ledger):
            running = asyncio.create_task(trainer.rollout(requests(1)[0]))
            await asyncio.sleep(0.1)  # nothing is sent
            assert agent.started == [], "the Init waits"
        await until(lambda: agent.started)
        await until(lambda: trainer.scheduler.rollouts["r0"].opened)
        with held_up(trainer.scheduler.ledger):
            agent.release()
            await until(lambda: asked)
            await asyncio.sleep(0.1)  # nothing is sent
            assert agent.running["r0"], "the reply waits"
            assert rows(path, "SELECT count(*) FROM chat") == [(0,)]
        await until(lambda: rows(path, "SELECT count(*) FROM chat") == [(1,)])
        outcome = await running
        assert rows(path, "SELECT result_id FROM rollout") == [(outcome.result_id,)]
        agent.gate("r9")
        running = asyncio.create_task(trainer.rollout(rollout_id="r9", messages=[USER], metadata={"turns": 0}))
        await until(lambda: agent.running["r9"] and trainer.scheduler.rollouts["r9"].opened)
        with held_up(trainer.scheduler.ledger):
            agent.release("r9")
            await until(lambda: "r9" in agent.ended_ones)
            await asyncio.sleep(0.1)  # nothing is sent
            assert not running.done(), "the outcome waits"
            assert [info.rollout_id for info in await undelivered()] == ["r9"]
        assert (await running).status is COMPLETED


# A disk that is full.


def fill(ledger: SqliteLedger, full: bool) -> None:
    """Let the file not grow any more, or grow again: on the ledger's own thread."""

    def limit(connection):
        (count,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {count if full else 1 << 30}").fetchone()

    ledger.writer.read(limit, lambda value, error: None)


LONG = "x" * 100_000


def long_reply(request):
    made = reply(request)
    made.message["content"] = LONG
    return made


async def test_a_chat_that_cannot_be_written_is_unavailable_and_never_sampled_again(tmp_path, caplog):
    asked = []

    def policy(request):
        asked.append(request)
        return long_reply(request)

    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    try:
        book = RolloutCache(policy, ledger)
        fill(ledger, True)
        question = ChatRequest(rollout_id="r", chat_number=1, messages=[USER])
        for _ in range(3):
            chat = book.chat(question, 0.0)
            await asyncio.wait({chat.done})
            with pytest.raises(Unavailable, match="the trainer's ledger cannot be written now") as caught:
                chat.done.result()
            assert caught.value.retry_after == 1.0
        fill(ledger, False)
        chat = book.chat(question, 0.0)
        await asyncio.wait({chat.done})
        assert chat.done.exception() is None
        assert len(asked) == 1
    finally:
        await ledger.close()
    told = [record.getMessage() for record in caplog.records if record.name.endswith("sqlite.committer")]
    assert len(told) == 2
    assert "cannot be written: database or disk is full" in told[0]
    assert "can be written again" in told[1]


@BOTH
async def test_a_full_disk_holds_rollouts_up_and_refuses_new_ones(serve, tmp_path, transport):
    agent, path = talker(), tmp_path / "ledger"
    agent.gate("r0")
    server = await serve(agent)
    options = {"transport": transport, "ledger": path}
    async with Trainer([server.address], long_reply, **options) as trainer, asyncio.timeout(PATIENCE):
        running = asyncio.create_task(trainer.rollout(requests(1)[0]))
        await until(lambda: agent.running["r0"])
        fill(trainer.scheduler.ledger, True)
        agent.release()
        with pytest.raises(LedgerError, match=f"the ledger {path} cannot be written"):
            await trainer.rollout(rollout_id="new", messages=[USER | {"content": LONG}])
        (refused,) = await collect(trainer.run([RolloutRequest(rollout_id="n", messages=[USER | {"content": LONG}])]))
        assert refused.finish_reason == "refused"
        assert refused.failure.boundary == "trainer"
        assert refused.failure.retryable
        assert str(path) in refused.failure.message
        assert not running.done()
        fill(trainer.scheduler.ledger, False)
        assert (await running).status is COMPLETED
        await until(lambda: not server.engine.capacity().undelivered)
        assert (await trainer.rollout(rollout_id="new", messages=[USER])).status is COMPLETED
