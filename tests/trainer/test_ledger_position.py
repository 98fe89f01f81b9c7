"""The position of a ledger in checkpoints: what comes again, what does not, and a loop that is killed."""

import asyncio
import json
import signal
import sys

import pytest

from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument
from osmosis_grpc.trainer import AlreadyExists, RolloutRequest, SyncTrainer, Trainer
from tests.processes import ROOT
from tests.trainer.conftest import USER, reply, talker
from tests.trainer.deployment import collect


def requests(*names, **changes):
    return [RolloutRequest(rollout_id=name, messages=[USER], **changes) for name in names]


async def again(server, ledger, position=None):
    """The ids that a new process gets from unconfirmed(), after it has confirmed the position of its checkpoint."""
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        if position is not None:
            await trainer.confirm(position)
        return sorted([outcome.rollout_id async for outcome in trainer.unconfirmed()])


async def test_a_position_has_all_that_the_program_got_and_did_not_confirm(serve, tmp_path):
    server, ledger = await serve(talker()), tmp_path / "ledger"
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        assert trainer.position()["outcomes"] == []
        await trainer.rollout(requests("single")[0])
        mine = await trainer.rollout(requests("mine")[0])
        await mine.confirm()
        async for _ in trainer.run(requests("run")):
            pass
        async for _ in trainer.groups(requests("group"), 2):
            pass
        await trainer.evaluate(requests("evaluation"))
        position = json.loads(json.dumps(trainer.position()))
    assert [name for name, _, _ in position["outcomes"]] == ["single", "run", "group-0", "group-1", "evaluation"]
    assert await again(server, ledger) == sorted(name for name, _, _ in position["outcomes"])
    assert await again(server, ledger, position) == []


async def test_what_came_after_the_checkpoint_comes_again(serve, tmp_path):
    server, ledger = await serve(talker()), tmp_path / "ledger"
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        await trainer.rollout(requests("before")[0])
        position = trainer.position()
        late = await trainer.rollout(requests("after")[0])
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        await trainer.confirm(position)
        (same,) = await collect(trainer.run(requests("after")))
        assert (same, same.result_id) == (late, late.result_id)
        with pytest.raises(AlreadyExists):
            await trainer.rollout(requests("before")[0])


async def test_outcomes_that_unconfirmed_yields_belong_to_the_position(serve, tmp_path):
    server, ledger = await serve(talker()), tmp_path / "ledger"
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        await trainer.rollout(requests("left")[0])
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        async for _ in trainer.unconfirmed():
            pass
        position = trainer.position()
    assert [name for name, _, _ in position["outcomes"]] == ["left"]


async def test_a_checkpoint_that_is_older_than_the_ledger_is_refused(serve, tmp_path):
    server, ledger = await serve(talker()), tmp_path / "ledger"
    positions = []
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        for name in ("a", "b"):
            await trainer.rollout(requests(name)[0])
            positions.append(trainer.position())
            await trainer.confirm(positions[-1])
            await trainer.confirm(positions[-1])
    older, newest = positions
    assert await again(server, ledger, newest) == []
    with pytest.raises(FailedPrecondition):
        await again(server, ledger, older)
    assert await again(server, tmp_path / "new ledger", older) == [], "with a new ledger it may go on"


WRONG = [{}, {"number": 1}, {"number": "x", "outcomes": []}, {"number": 1, "outcomes": [["r"]]}]


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_is_no_position_is_refused(serve, tmp_path, wrong):
    async with Trainer([(await serve(talker())).address], reply, ledger=tmp_path / "ledger") as trainer:
        with pytest.raises(InvalidArgument):
            await trainer.confirm(wrong)


async def test_without_a_ledger_there_is_no_position(serve):
    async with Trainer([(await serve(talker())).address], reply) as trainer:
        outcome = await trainer.rollout(requests("r")[0])
        await trainer.confirm(outcome)
        with pytest.raises(FailedPrecondition):
            trainer.position()
        with pytest.raises(FailedPrecondition):
            await trainer.confirm({"number": 1, "outcomes": []})


async def test_a_trainer_without_async_has_them_too(serve, tmp_path):
    server, ledger = await serve(talker()), tmp_path / "ledger"

    def train():
        with SyncTrainer([server.address], reply, ledger=ledger) as trainer:
            (group,) = trainer.groups(requests("g"), 2)
            position = trainer.position()
            trainer.confirm(group)
            assert trainer.position()["outcomes"] == []
            trainer.confirm(position)
            return [name for name, _, _ in position["outcomes"]]

    assert await asyncio.to_thread(train) == ["g-0", "g-1"]
    assert await again(server, ledger) == []


async def loop(server, folder, *kill):
    """Run the loop of checkpoint_process to its end; its exit code, and what it printed."""
    folder.mkdir(exist_ok=True)
    command = ["-m", "tests.trainer.checkpoint_process", server.address, str(folder), "4", *map(str, kill)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(40):
        printed, _ = await process.communicate()
    return process.returncode, [json.loads(line) for line in printed.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("place", ["trained", "saved", "confirmed"])
async def test_a_loop_that_is_killed_continues_with_the_same_batch(serve, tmp_path, place):
    server = await serve(talker())
    code, before = await loop(server, tmp_path / "run", place, 2)
    assert code == -signal.SIGKILL
    assert [line["step"] for line in before] == [0, 1, 2]
    code, after = await loop(server, tmp_path / "run")
    assert code == 0
    if place == "trained":  # the batch that was not saved: the same tokens, logprobs and rewards, for the same weights
        assert after[0] == before[2]
        after = after[1:]
    assert [line["step"] for line in after] == [3, 4], "every other batch is trained on once"
    assert after[-1]["left"] == []
