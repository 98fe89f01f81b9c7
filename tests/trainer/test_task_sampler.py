"""TaskSampler: what it draws, what it remembers, and how it continues from the ledger."""

import random
from collections import Counter

import pytest

from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome
from osmosis_grpc.trainer import OutcomeGroup, RolloutRequest, TaskSampler, Trainer
from tests.trainer.conftest import reply, talker

TASKS = [RolloutRequest(rollout_id=f"t{n}", metadata={"task_id": f"task-{n}"}) for n in range(8)]
FLAT, VARIED, NEARLY_FLAT = (1.0,) * 8, (0.0, 1.0) * 4, (0.0, *(1.0,) * 7)


def group(request, rewards):
    outcomes = tuple(
        RolloutOutcome(rollout_id=f"{request.rollout_id}-{n}", status=OutcomeStatus.COMPLETED, reward=reward)
        for n, reward in enumerate(rewards)
    )
    return OutcomeGroup(id=request.rollout_id, size=len(rewards), outcomes=outcomes)


def noted(sampler, batches, rewards_of, count=3):
    """Draw and note some batches. Return how often each task was drawn."""
    drawn = Counter()
    for number in range(batches):
        for request in sampler.draw(count, f"b{number}"):
            task = request.metadata["task_id"]
            drawn[task] += 1
            sampler.note(group(request, rewards_of(task)))
    return drawn


def test_a_batch_has_different_tasks_with_ids_of_the_prefix():
    requests = TaskSampler(TASKS).draw(8, "batch-1")
    assert [request.rollout_id for request in requests] == [f"batch-1-{n}" for n in range(8)]
    assert {request.metadata["task_id"] for request in requests} == {f"task-{n}" for n in range(8)}


def test_uniform_is_the_default_and_draws_all_tasks_alike():
    drawn = noted(TaskSampler(TASKS), 400, lambda task: FLAT)
    assert set(drawn) == {f"task-{n}" for n in range(8)}
    assert all(110 < count < 190 for count in drawn.values())  # 150 expected


def test_varied_draws_tasks_without_variance_less_often_and_not_never():
    sampler = TaskSampler(TASKS, choice="varied", seed=3)
    drawn = noted(sampler, 400, lambda task: VARIED if task in ("task-1", "task-5", "task-6") else FLAT)
    rare = {task: count for task, count in drawn.items() if task not in ("task-1", "task-5", "task-6")}
    assert len(rare) == 5
    assert min(rare.values()) > 0
    assert max(rare.values()) < min(drawn[task] for task in ("task-1", "task-5", "task-6")) / 2
    assert sampler.weight("task-1") > 0.9
    assert sampler.weight("task-0") == 0.05


def test_a_task_comes_back_when_its_groups_have_variance_again():
    sampler = TaskSampler(TASKS, choice="varied", memory=0.5)
    noted(sampler, 20, lambda task: FLAT)
    before = sampler.weight("task-0")
    noted(sampler, 60, lambda task: VARIED)
    assert sampler.weight("task-0") > 0.8 > before


def test_a_task_comes_less_often_before_its_first_group_without_variance():
    samplers = {rewards: TaskSampler(TASKS, choice="varied") for rewards in (FLAT, NEARLY_FLAT, VARIED)}
    for rewards, sampler in samplers.items():
        noted(sampler, 3, lambda task, rewards=rewards: rewards, count=8)
    flat, nearly, varied = (sampler.weight("task-0") for sampler in samplers.values())
    assert flat < nearly < varied


def test_it_keeps_count_of_the_rewards_of_each_task():
    sampler = TaskSampler(TASKS)
    for number, rewards in enumerate([(0.0, 1.0), (1.0, 1.0, 1.0)]):
        request = next(each for each in sampler.draw(8, f"b{number}") if each.metadata["task_id"] == "task-2")
        sampler.note(group(request, rewards))
        sampler.note(group(request, rewards))  # a group counts once
    record = sampler.records["task-2"]
    assert (record.groups, record.rewards, record.mean_reward) == (2, 5, pytest.approx(0.8))
    assert list(sampler.records) == ["task-2"]
    sampler.note(group(RolloutRequest(rollout_id="stranger"), (1.0, 0.0)))
    assert list(sampler.records) == ["task-2"]


def test_a_restored_sampler_draws_what_the_first_one_would_have_drawn():
    first, second = (TaskSampler(TASKS, choice="varied", seed=1) for _ in range(2))
    noted(first, 10, lambda task: FLAT if task < "task-4" else VARIED)
    open_request = first.draw(1, "open")[0]
    second.restore(first.state())
    assert second.draw(5, "x") == first.draw(5, "x")
    for sampler in (first, second):
        sampler.note(group(open_request, VARIED))
    assert second.state() == first.state()


async def test_its_state_is_kept_in_the_ledger(serve, tmp_path):
    server, sampler = await serve(talker()), TaskSampler(TASKS, choice="varied")
    noted(sampler, 5, lambda task: VARIED)
    async with Trainer([server.address], reply, ledger=tmp_path / "ledger") as trainer:
        assert trainer.read_note("sampler") is None
        await trainer.write_note("sampler", {"draws": 0})
        await trainer.write_note("sampler", sampler.state())
        with pytest.raises(InvalidArgument):
            await trainer.write_note("sampler", {"no": object})
    async with Trainer([server.address], reply, ledger=tmp_path / "ledger") as trainer:
        again = TaskSampler(TASKS, choice="varied")
        again.restore(trainer.read_note("sampler"))
    assert again.state() == sampler.state()


async def test_without_a_ledger_there_are_no_notes(serve):
    async with Trainer([(await serve(talker())).address], reply) as trainer:
        with pytest.raises(FailedPrecondition):
            trainer.read_note("x")


@pytest.mark.parametrize(
    ("tasks", "options"),
    [([], {}), (TASKS[:1] * 2, {}), (TASKS, {"choice": "best"}), (TASKS, {"floor": 0.0}), (TASKS, {"memory": 1.5})],
)
def test_what_it_refuses(tasks, options):
    with pytest.raises(ValueError, match=r"tasks|choice|floor"):
        TaskSampler(tasks, **options)


@pytest.mark.parametrize("count", [0, 9])
def test_more_tasks_than_there_are_cannot_be_drawn(count):
    with pytest.raises(ValueError, match="count"):
        TaskSampler(TASKS).draw(count, "x")


def test_groups_without_variance_become_fewer_where_many_tasks_are_too_easy_or_too_hard():
    chances = [0.0] * 24 + [1.0] * 16 + [0.2, 0.5, 0.8] * 8
    tasks = [RolloutRequest(rollout_id=f"t{n}", metadata={"chance": chance}) for n, chance in enumerate(chances)]
    shares = {}
    for choice in ("uniform", "varied"):
        sampler, source, flat = TaskSampler(tasks, choice=choice, seed=1), random.Random(1), 0
        for batch in range(120):
            for request in sampler.draw(4, f"b{batch}"):
                made = group(request, [float(source.random() < request.metadata["chance"]) for _ in range(8)])
                flat += made.zero_variance
                sampler.note(made)
        shares[choice] = flat / 480
    assert shares["uniform"] > 0.55
    assert shares["varied"] < 0.3
