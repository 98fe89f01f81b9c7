"""What every environment does as an agent: its tasks, its failures, its end, and many episodes at once."""

import asyncio
import random
import signal
from collections import Counter

import numpy as np
import pytest

from osmosis_grpc.environments import EnvironmentSpec, task_requests, task_rows
from osmosis_grpc.environments.episode import THREADS
from osmosis_grpc.environments.own_randomness import OwnRandomness
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import Internal, InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.rollouts import run_rollout
from osmosis_grpc.trainer import RolloutRequest, Trainer
from tests.environments import toys
from tests.environments.living import alive
from tests.environments.parity import exact
from tests.ports import quiet_port
from tests.processes import server_process
from tests.waiting import until

CANCELLED, COMPLETED, DEADLINE = OutcomeStatus.CANCELLED, OutcomeStatus.COMPLETED, OutcomeStatus.DEADLINE_EXCEEDED
SPEC = "toy:counting,tasks=300"


def two(request):
    return answer(request, "2")


def counting(spec=SPEC):
    return toys.Counting(EnvironmentSpec.parse(spec))


def wrong(how, **options):
    return toys.Wrong(EnvironmentSpec("toy", "wrong", {"how": how, **options}))


async def play(environment, key="0", policy=two, **fields):
    metadata = {"task_id": environment.task_id(key)}
    return await run_rollout(environment, policy, environment.opening, **{"metadata": metadata, **fields})


@pytest.mark.parametrize(
    ("text", "kind", "name", "options"),
    [
        ("reasoning-gym:leg_counting", "reasoning-gym", "leg_counting", {}),
        ("a:b,size=5,seed=7", "a", "b", {"size": 5, "seed": 7}),
        ("a:module:Class-v0,x=[1,2],y=,z=on", "a", "module:Class-v0", {"x": [1, 2], "y": "", "z": "on"}),
        ("openenv:http://127.0.0.1:8000,seconds=1.5", "openenv", "http://127.0.0.1:8000", {"seconds": 1.5}),
        ('a:b,c={"d":true,"e":null}', "a", "b", {"c": {"d": True, "e": None}}),
        ('a:b,c="5"', "a", "b", {"c": "5"}),
    ],
)
def test_a_text_names_an_environment_and_its_options(text, kind, name, options):
    spec = EnvironmentSpec.parse(text)
    assert (spec.kind, spec.name, dict(spec.options)) == (kind, name, options)
    assert EnvironmentSpec.parse(str(spec)) == spec


@pytest.mark.parametrize("text", ["", "a", "a:", ":b", "A:b", "a b:c", "a:b,c=1,c=2"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"KIND:NAME|twice"):
        EnvironmentSpec.parse(text)


def test_options_in_another_order_name_the_same_tasks():
    specs = ["toy:x,b=1,a=2", "toy:x,a=2,b=1"]
    assert len({str(EnvironmentSpec.parse(text)) for text in specs}) == 1


async def test_an_episode_has_its_reward_its_parts_and_its_facts():
    outcome = await play(counting(), "7")
    assert outcome.status is COMPLETED
    assert (outcome.reward, dict(outcome.reward_components)) == (13.0, {"turns": 3.0})
    assert outcome.extra_fields == {"seed": 7}
    said = ["system", *["user", "assistant"] * 3]
    assert [message["role"] for message in outcome.messages] == said


def test_rows_have_ids_that_requests_carry():
    rows = list(task_rows(counting("toy:counting,tasks=2,seed=5")))
    ids = ["toy:counting,seed=5,tasks=2#5", "toy:counting,seed=5,tasks=2#6"]
    assert [row["task_id"] for row in rows] == ids
    requests = list(task_requests(counting("toy:counting,tasks=2,seed=5"), "r", max_turns=4, metadata={"mine": 1}))
    assert [request.metadata for request in requests] == [{"task_id": each, "mine": 1} for each in ids]
    assert {(request.max_turns, request.agent_loop) for request in requests} == {(4, "toy:counting")}


@pytest.mark.parametrize(
    "metadata",
    [{}, {"task_id": 5}, {"task_id": "5"}, {"task_id": "toy:counting#0"}, {"task_id": "toy:other,tasks=300#0"}],
)
async def test_a_rollout_that_names_no_task_of_the_environment_is_refused(metadata):
    async with AgentServer([counting()], port=0) as server, Trainer([server.address], two) as trainer:
        request = RolloutRequest(rollout_id="r", metadata=metadata)
        with pytest.raises((InvalidArgument, Internal)):
            await trainer.rollout(request)


@pytest.mark.parametrize("key", ["300", "-1", "x", ""])
async def test_a_task_that_does_not_exist_is_a_failure(key):
    outcome = await play(counting(), key)
    assert outcome.status is OutcomeStatus.FAILED
    assert f"{SPEC}#{key}" in outcome.failure.message


@pytest.mark.parametrize(
    "how",
    [
        *("raises", "raises_in_the_adapter", "exits", "never_ends", "hangs"),
        *("nan", "list", "none", "text", "infinite", "part"),
    ],
)
async def test_a_failure_names_the_environment_and_the_task(how):
    environment = wrong(how, seconds=0.2)
    try:
        outcome = await play(environment, "3")
    finally:
        toys.Wrong.let_go.set()
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.failure.message.startswith(environment.task_id("3"))
    assert not outcome.failure.retryable
    assert outcome.reward is None
    assert outcome.reward_components == {}
    await until(lambda: not environment.open)
    toys.Wrong.let_go.clear()


async def test_a_failure_of_the_policy_is_the_trainers():
    def fails(request):
        raise ValueError("no model")

    async with AgentServer([counting()], port=0) as server, Trainer([server.address], fails) as trainer:
        with pytest.raises(ValueError, match="no model"):
            await trainer.rollout(next(task_requests(counting(), "r")))


@pytest.mark.parametrize("end", ["cancel", "deadline"])
async def test_a_call_that_does_not_return_does_not_keep_the_rollout(end):
    environment = wrong("hangs")
    request = next(task_requests(environment, "r", agent_timeout=2.0 if end == "deadline" else None))
    async with AgentServer([environment], port=0) as server, Trainer([server.address], two) as trainer:
        running = asyncio.ensure_future(trainer.rollout(request))
        await until(lambda: environment.open)
        if end == "cancel":
            await trainer.cancel(request.rollout_id)
        assert (await running).status is (CANCELLED if end == "cancel" else DEADLINE)
        toys.Wrong.let_go.set()
        await until(lambda: not environment.open)
    toys.Wrong.let_go.clear()


async def test_an_episode_that_is_cancelled_before_a_thread_is_free_is_closed():
    environment, asked, may = wrong("hangs"), [], asyncio.Event()

    async def together(request):
        asked.append(request.rollout_id)
        if len(asked) == THREADS + 1:
            may.set()
        await may.wait()
        return two(request)

    requests = list(task_requests(environment, "r"))[: THREADS + 1]
    server = AgentServer([environment], port=0, config=ServerConfig(max_concurrent=THREADS + 1))
    async with server, Trainer([server.address], together) as trainer:
        running = [asyncio.ensure_future(trainer.rollout(request)) for request in requests]
        await until(lambda: len(environment.hanging) == THREADS)
        for request in sorted(requests, key=lambda request: request.rollout_id in environment.hanging):
            await trainer.cancel(request.rollout_id)  # the one that waits comes first
        assert {(await each).status for each in running} == {CANCELLED}
        toys.Wrong.let_go.set()
        await until(lambda: not environment.open)
    toys.Wrong.let_go.clear()


async def test_256_episodes_at_once_have_exact_tokens():
    environment, waiting, may = counting(), [], asyncio.Event()

    async def together(request):
        waiting.append(request.rollout_id)
        if len(waiting) == 256:
            may.set()
        await may.wait()
        return answer(request, str(request.chat_number))

    requests = list(task_requests(environment, "r"))[:256]
    server = AgentServer([environment], port=0, config=ServerConfig(max_concurrent=256))
    async with server, Trainer([server.address], together) as trainer:
        outcomes = [outcome async for outcome in trainer.run(requests, max_in_flight=256)]
    for outcome in outcomes:
        exact(outcome)
    rewards = {outcome.rollout_id: outcome.reward for outcome in outcomes}
    assert rewards == {f"r-{seed}": seed + 6.0 for seed in range(256)}
    assert environment.most == 256
    assert environment.open == set()


async def test_cancelling_all_leaves_no_episode():
    environment, stopped = counting(), asyncio.Event()

    async def never(request):
        await stopped.wait()

    requests = list(task_requests(environment, "r"))[:64]
    async with AgentServer([environment], port=0) as server, Trainer([server.address], never) as trainer:
        running = [asyncio.ensure_future(trainer.rollout(request)) for request in requests]
        await until(lambda: len(environment.open) == 64)
        await trainer.cancel(everything=True)
        assert {(await each).status for each in running} == {CANCELLED}
        await until(lambda: not environment.open)
        stopped.set()


@pytest.mark.slow
async def test_after_a_kill_of_the_server_each_task_is_rewarded_once_and_each_chat_sampled_once(tmp_path):
    port = quiet_port()
    arguments = ("-m", "tests.environments.toys:counting", "--state-dir", str(tmp_path), "--grpc-port", str(port))
    asked, half = Counter(), asyncio.Event()

    async def policy(request):
        asked[request.rollout_id, request.attempt, request.chat_number] += 1
        if len(asked) > 150:
            half.set()
        return answer(request, str(request.chat_number))

    requests = list(task_requests(toys.counting, "r"))[:100]
    async with Trainer([f"127.0.0.1:{port}"], policy) as trainer:
        with server_process(*arguments) as (process, _):
            running = [asyncio.ensure_future(trainer.rollout(request)) for request in requests]
            await asyncio.wait_for(half.wait(), 30)
            process.send_signal(signal.SIGKILL)
        with server_process(*arguments):
            outcomes = await asyncio.wait_for(asyncio.gather(*running), 50)
    assert [(outcome.rollout_id, outcome.reward) for outcome in outcomes] == [(f"r-{n}", n + 6.0) for n in range(100)]
    assert set(asked.values()) == {1}
    assert len(asked) == 300


@pytest.mark.slow
async def test_after_a_kill_of_the_server_no_process_of_256_episodes_is_left_and_each_is_rewarded_once(tmp_path):
    port = quiet_port()
    arguments = ("-m", "tests.environments.toys:starting", "--state-dir", str(tmp_path), "--grpc-port", str(port))
    pids, killed = set(), asyncio.Event()

    async def policy(request):
        pids.add(int(request.messages[-1]["content"]))
        await killed.wait()
        return answer(request, "go on")

    options = ("--max-concurrent", "256")
    async with Trainer([f"127.0.0.1:{port}"], policy) as trainer:

        async def collected():
            run = trainer.run(task_requests(toys.starting, "r"), max_in_flight=256, retries=1)
            return [(outcome.rollout_id, outcome.reward) async for outcome in run]

        with server_process(*arguments, *options) as (process, _):
            running = asyncio.ensure_future(collected())
            await until(lambda: len(pids) == 256, timeout=60)
            assert all(map(alive, pids))
            process.send_signal(signal.SIGKILL)
            first = set(pids)
        await until(lambda: not any(map(alive, first)))
        killed.set()
        with server_process(*arguments, *options):
            rewards = await asyncio.wait_for(running, 100)
    assert sorted(rewards) == sorted((f"r-{n}", float(n)) for n in range(256))
    assert not any(map(alive, pids))


@pytest.mark.parametrize("end", ["cancel", "deadline"])
async def test_no_process_is_left_after_a_cancel_or_a_deadline(end):
    pids, never = set(), asyncio.Event()

    async def policy(request):
        pids.add(int(request.messages[-1]["content"]))
        await never.wait()

    fields = {"agent_timeout": 2.0} if end == "deadline" else {}
    requests = list(task_requests(toys.starting, "r", **fields))[:64]
    async with AgentServer([toys.starting], port=0) as server, Trainer([server.address], policy) as trainer:
        running = [asyncio.ensure_future(trainer.rollout(request)) for request in requests]
        await until(lambda: len(pids) == 64)
        if end == "cancel":
            await trainer.cancel(everything=True)
        assert {(await each).status for each in running} == {CANCELLED if end == "cancel" else DEADLINE}
        await until(lambda: not any(map(alive, pids)))
        never.set()


@pytest.mark.parametrize("kind", ["function", "async function"])
async def test_a_second_cancel_does_not_stop_what_closes_an_episode(kind):
    environment = toys.Slow(EnvironmentSpec("toy", "slow", {"kind": kind}))
    policy = ServerConfig(stop_again_after=(0.05, 0.1))
    async with AgentServer([environment], port=0, config=policy) as server, Trainer([server.address], two) as trainer:
        running = asyncio.ensure_future(trainer.rollout(next(task_requests(environment, "r"))))
        await until(lambda: environment.waits)
        await trainer.cancel("r-0")
        assert (await running).status is CANCELLED  # the server has given up waiting
        assert not environment.closed
        environment.let_go()
        await until(lambda: environment.closed)


def test_each_episode_has_random_numbers_of_its_own():
    first, second = OwnRandomness(1), OwnRandomness(2)
    random.seed(5)
    np.random.seed(5)
    drawn = {1: [], 2: []}
    for _ in range(3):
        drawn[1] += [first.call(random.random), first.call(np.random.rand)]
        drawn[2] += [second.call(random.random), second.call(np.random.rand)]
    for seed, numbers in drawn.items():
        python, numpy = random.Random(seed), np.random.RandomState(seed)
        assert numbers == [each() for _ in range(3) for each in (python.random, numpy.rand)]
    assert (random.random(), np.random.rand()) == (random.Random(5).random(), np.random.RandomState(5).rand())
