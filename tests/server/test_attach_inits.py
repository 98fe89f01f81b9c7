"""An attachment as a raw trainer sees it: Inits, rollouts that are open, cancels."""

import asyncio

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, control_pb2, outcome_pb2
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import cancel, init
from tests.server.attached import Talk, bystander, key

COMPLETED = outcome_pb2.OUTCOME_STATUS_COMPLETED


async def test_created_is_true_in_one_answer_over_all_streams(serve):
    gate = asyncio.Event()

    class Slow(Talk):
        lists_tools_without_request = False

        async def get_tools(self, request):
            await gate.wait()
            return []

    server = await serve(Slow())
    async with RawTrainer(server.address) as trainer:
        first = await trainer.attach()
        await trainer.send(init("r"), init("r"))
        await trainer.barrier()
        second = await trainer.attach()
        await trainer.send(init("r"))
        await trainer.barrier()
        gate.set()
        await second.until(lambda: second.count("init_reply") == 3)
        await trainer.send(init("r"))
        await second.until(lambda: second.count("init_reply") == 4)
        replies = [*first.all("init_reply"), *second.all("init_reply")]
        assert sorted(r.response.created for r in replies) == [False, False, False, True]
        assert (await trainer.finish()).status == COMPLETED


async def test_a_delivered_outcome_is_sent_again_to_who_asks_with_its_init(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer, RawTrainer(server.address) as other:
        await trainer.attach()
        await trainer.start("r")
        outcome = await trainer.finish()
        await trainer.barrier()
        assert not (await trainer.start("r")).created
        assert await trainer.settled() == outcome, "the same trainer: nothing says that it is of an earlier run"
        await other.attach()
        answer = await other.start("r")
        assert not answer.created
        assert await other.settled() == of_earlier_run(outcome, answer.from_journal)


def of_earlier_run(outcome, earlier):
    """An outcome as another run of the trainer gets it, which nothing ran for."""
    assert earlier.agent_loop == "talk"
    assert earlier.same_process
    assert earlier.end_time.seconds > 0
    assert earlier.agent_version == earlier.current_agent_version == outcome.agent_version != ""
    marked = type(outcome)()
    marked.CopyFrom(outcome)
    marked.from_journal.CopyFrom(earlier)
    return marked


async def test_a_higher_attempt_replaces_the_lower_within_a_full_window(serve):
    server = await serve(Talk(), max_concurrent=1, max_queued=0, stop_again_after=(0.05,))
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        old = await trainer.chat()
        await trainer.send(init("r", attempt=2))
        received = await stream.next("init_reply")
        if received.WhichOneof("result") == "response":
            assert received.response.created
            chat = await trainer.chat()
            assert key(chat) == ("r", 2, "main", 1)
            await trainer.answer(chat)
            assert (await trainer.settled()).attempt == 2
            await trainer.answer(old)
            await trainer.barrier()
        else:
            assert received.status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "until the old one has stopped"
        assert stream.over is None


@pytest.mark.parametrize("delivered", [False, True])
async def test_an_outcome_that_moved_to_another_attachment_survives_its_break(serve, delivered):
    server = await serve(Talk())
    async with RawTrainer(server.address) as gone, RawTrainer(server.address) as trainer:
        await gone.attach()
        await gone.start("r")
        await gone.answer(await gone.chat())
        outcome = await (gone.settled() if delivered else gone.outcome())
        await gone.barrier()
        await gone.stream.cut()
        await trainer.attach()
        marked = of_earlier_run(outcome, (await trainer.start("r")).from_journal)
        assert await trainer.outcome() == marked
        await trainer.stream.cut()
        stream = await trainer.attach()
        await trainer.send(open_rollouts(("r", 1)))
        assert not (await stream.next("unknown_rollouts")).rollouts, "the server says that it has it"
        await trainer.barrier()
        assert [c.outcome for c in stream.all("complete")] == [marked]


def open_rollouts(*refs: tuple[str, int]) -> attach_pb2.TrainerFrame:
    listed = [attach_pb2.RolloutRef(rollout_id=name, attempt=attempt) for name, attempt in refs]
    return attach_pb2.TrainerFrame(open_rollouts=attach_pb2.OpenRollouts(rollouts=listed))


async def test_open_rollouts_that_are_unknown_are_named(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("ended")
        await trainer.finish()
        await trainer.start("running")
        stream = await trainer.attach()
        lists = [
            [("running", 1), ("unknown", 1), ("ended", 1), ("running", 2)],
            [],
            [("running", 1)],
            [("ended", 2), ("\n", 3)],
        ]
        await trainer.send(*(open_rollouts(*refs) for refs in lists))
        received = [(await stream.next("unknown_rollouts")).rollouts for _ in lists]
        unknown = [("unknown", 1), ("running", 2)]
        assert [[(r.rollout_id, r.attempt) for r in refs] for refs in received] == [unknown, [], [], lists[3]]


@pytest.mark.row("SDK 71")
async def test_cancels_by_id_by_group_and_by_prefix(serve):
    server = await serve(Talk())
    async with bystander(server) as other, RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        for name, group in (("a", "g"), ("b", "g"), ("c", "h")):
            await trainer.start(name, group=outcome_pb2.Group(id=group))
        await trainer.send(cancel("1", rollout_id="c"), cancel("2", group_id="g"), cancel("3", group_id="g"))
        rows = [(await stream.next("cancel_reply")).response.results for _ in range(3)]
        names = [sorted(row.rollout_id for row in some) for some in rows]
        assert names[:2] == [["c"], ["a", "b"]]
        assert {row.disposition for some in rows for row in some} == {control_pb2.CANCEL_DISPOSITION_CANCELLED}
        ended = [await trainer.settled() for _ in range(3)]
        assert {c.status for c in ended} == {outcome_pb2.OUTCOME_STATUS_CANCELLED}
        await trainer.send(cancel("4", rollout_id="c"))
        row = (await stream.next("cancel_reply")).response.results[0]
        assert row.disposition == control_pb2.CANCEL_DISPOSITION_ALREADY_ENDED
        for name in ("eval-1", "eval-2", "train-1"):
            await trainer.start(name)
        await trainer.send(cancel("5", rollout_id_prefix="eval-"))
        rows = (await stream.next("cancel_reply")).response.results
        assert {row.rollout_id for row in rows} == {"eval-1", "eval-2"}
        assert {(await trainer.settled()).rollout_id for _ in range(2)} == {"eval-1", "eval-2"}
        assert other.stream.count("complete") == 0
