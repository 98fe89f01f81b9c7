"""A fork continues after its server was killed, with equal chats."""

import asyncio
import contextlib
import os
from collections import Counter
from pathlib import Path

import pytest

from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import Fork, OutcomeStatus, events
from osmosis_grpc.storage import SqliteJournal
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.ports import quiet_port
from tests.processes import server_process
from tests.server.forking import CHATS, USER, policy, tokens_of, trained

ROOT = Path(__file__).parents[2]
LIVE = CHATS[2:]


async def recorded(address, last=("main", 2)):
    """Wait until the journal of the server has the last reply that the fork gets from its original."""
    async with RolloutClient(address) as client:
        async for event in client.events("f1"):
            kind = event.kind
            if isinstance(kind, events.ChatAnswered) and (kind.sample, kind.chat_number) == last:
                return


async def killed(tmp_path, place, between=lambda: None):
    """An original, its fork from chat 2 of main on a server that is killed at a place, and their chats.

    The first live chat of the fork is answered when the journal has the replies of the original.
    """
    (tmp_path / "agents.py").write_text("from tests.server.forking import Brancher\nagent_loop = Brancher()\n")
    sampled = Counter()

    async def counting(request):
        sampled[request.rollout_id, request.sample, request.chat_number] += 1
        if (request.rollout_id, request.sample, request.chat_number) == ("f1", *LIVE[0]):
            await recorded(address)
        return await policy(request)

    command = ("-m", "agents:agent_loop", "--state-dir", "state", "--grpc-port", str(quiet_port()))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    async with CallbackTrainer(counting) as trainer:
        init = {"messages": [USER], "callback": trainer.callback()}
        fork = init | {"rollout_id": "f1", "fork": Fork("r1", 2)}
        kills = environment | {"OSMOSIS_FAILPOINT": place}
        with server_process(*command, cwd=tmp_path, env=kills) as (process, address):
            async with RolloutClient(address) as client:
                await client.init(**init, rollout_id="r1")
                original = await trainer.outcome("r1", timeout=30)
                with contextlib.suppress(Unavailable):  # some places are before the answer to the Init
                    await client.init(**fork)
            await asyncio.to_thread(process.wait, 30)
        assert process.returncode == -9
        between()
        with server_process(*command, cwd=tmp_path, env=environment) as (_, address):
            async with RolloutClient(address) as client:
                assert not (await client.init(**fork)).created
                outcome = await trainer.outcome("f1", timeout=30)
                kinds = [event.kind async for event in client.events("f1")]
    return original, outcome, sampled, kinds


@pytest.mark.slow
@pytest.mark.parametrize("place", ["init.committed:2", "rollout.started:2", "chat.open:8", "result.before:2"])
async def test_a_killed_fork_continues_with_equal_chats(tmp_path, place):
    original, outcome, sampled, kinds = await killed(tmp_path, place)
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0), outcome.failure
    assert sampled == Counter([("r1", *name) for name in CHATS] + [("f1", *name) for name in LIVE])
    segments = trained(outcome)
    assert set(segments) == set(LIVE)
    known = tokens_of(("main", 2), original)
    assert segments["main", 4].ids[: len(known)].tolist() == known.tolist()
    replies = {}
    for kind in kinds:
        if isinstance(kind, events.ChatAnswered):
            name = kind.sample, kind.chat_number
            ids = kind.response.tokens.ids.tolist()
            assert replies.setdefault(name, ids) == ids, "the run after the kill gets the same replies"
            assert kind.forked is (name not in LIVE)
    assert set(replies) == set(CHATS)


def forget(folder):
    journal = SqliteJournal(folder)
    journal.forget("r1", 1)
    journal.close()


@pytest.mark.slow
async def test_a_killed_fork_needs_its_original_until_it_has_all_its_replies(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    _, outcome, _, _ = await killed(first, "rollout.started:2", lambda: forget(first / "state"))
    assert outcome.failure.message == "rollout r1, from which it forks, is no longer in the journal"
    assert (outcome.failure.boundary, outcome.failure.reason) == ("server", "RESTART")
    _, outcome, sampled, _ = await killed(second, "chat.open:8", lambda: forget(second / "state"))
    assert outcome.status is OutcomeStatus.COMPLETED
    assert set(sampled.values()) == {1}
