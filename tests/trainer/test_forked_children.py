"""What a child made by os.fork() can do with a trainer: nothing, and it says so at once."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, json, multiprocessing, sys, threading
from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.policies.threads import ThreadedPolicy
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import ChatRequest, RolloutClient, SyncTrainer, Trainer

question = [{"role": "user", "content": "What is 2 + 3?"}]
threaded = ThreadedPolicy(lambda request: "a reply")
ended = iter([])


async def serve():
    global client, later
    async with AgentServer([CalculatorAgent()], port=0) as server:
        client = RolloutClient(server.address)
        async with client, Trainer([server.address], ToolCallingMock()) as later:
            address.append(server.address)
            ready.set()
            await asyncio.to_thread(done.wait)


async def new_server():
    async with AgentServer([CalculatorAgent()], port=0):
        pass


def of_new_trainer():
    with SyncTrainer(address, ToolCallingMock()) as new:
        new.rollout(rollout_id="new", messages=question)


async def on_thread():
    return await threaded(None)


WORK = {
    "a rollout": lambda: trainer.rollout(rollout_id="again", messages=question),
    "the next outcome": lambda: next(outcomes),
    "the metrics": lambda: trainer.metrics(),
    "a rollout of an async trainer": lambda: asyncio.run(later.rollout(rollout_id="later", messages=question)),
    "a call of a client": lambda: asyncio.run(client.get("parent")),
    "a new trainer": of_new_trainer,
    "a new server": lambda: asyncio.run(new_server()),
    "a new client": lambda: RolloutClient(address[0]),
    "a policy on a thread": lambda: asyncio.run(on_thread()),
    "leaving the trainer": lambda: trainer.close(),
    "what needs no trainer": lambda: sum(range(10)),
}


def run(name, results):
    try:
        WORK[name]()
        results.put((name, ""))
    except Exception as error:
        results.put((name, f"{type(error).__name__}: {error}"))


address, ready, done = [], threading.Event(), threading.Event()
thread = threading.Thread(target=asyncio.run, args=(serve(),))
thread.start()
ready.wait()
context = multiprocessing.get_context("fork")
results = context.SimpleQueue()
found = {}
with SyncTrainer(address, ToolCallingMock()) as trainer:
    asyncio.run(on_thread())
    trainer.rollout(rollout_id="parent", messages=question)
    outcomes = trainer.run([])
    for name in WORK:
        child = context.Process(target=run, args=(name, results))
        child.start()
        child.join(20)
        if child.is_alive():
            child.kill()
            found[name] = "it hangs"
        elif child.exitcode:
            found[name] = "it crashes"
        else:
            found.update([results.get()])
    found["the parent"] = str(trainer.rollout(rollout_id="after", messages=question).status)
done.set()
thread.join()
print(json.dumps(found))
"""
REFUSED = [
    "a rollout",
    "the next outcome",
    "the metrics",
    "a rollout of an async trainer",
    "a call of a client",
    "a new trainer",
    "a new server",
    "a new client",
]


@pytest.fixture(scope="module")
def found():
    """What each child did."""
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=55, check=True)
    return json.loads(ended.stdout.split("\n")[-2])


@pytest.mark.slow
@pytest.mark.parametrize("work", REFUSED)
def test_a_forked_child_cannot_use_grpc_and_says_which_method_to_use(found, work):
    kind, _, text = found[work].partition(":")
    assert kind == "RuntimeError"
    assert "forked" in text
    assert "spawn" in text


@pytest.mark.slow
@pytest.mark.parametrize("work", ["a policy on a thread", "leaving the trainer", "what needs no trainer"])
def test_a_forked_child_can_do_what_needs_no_grpc(found, work):
    assert found[work] == ""


@pytest.mark.slow
def test_the_parent_of_forked_children_goes_on(found):
    assert found["the parent"] == "COMPLETED"


SERVER = """
import asyncio
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import CalculatorAgent


async def serve():
    async with AgentServer([CalculatorAgent()], port=0) as server:
        print(server.address, flush=True)
        await asyncio.to_thread(input)


asyncio.run(serve())
"""
CHILDREN = """
import asyncio, json, multiprocessing, sys
from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.trainer import RolloutClient, SyncTrainer

context = multiprocessing.get_context("fork")
address = sys.argv[1]


async def info():
    async with RolloutClient(address) as client:
        await client.info()


def ask():
    try:
        asyncio.run(info())
    except RuntimeError:
        sys.exit(7)


def codes(function, count):
    children = [context.Process(target=function) for _ in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join(20)
        child.kill()
    return sorted({child.exitcode for child in children}, key=str)


with SyncTrainer([address], ToolCallingMock()) as trainer:
    trainer.rollout(rollout_id="parent", messages=[{"role": "user", "content": "What is 2 + 3?"}])
    found = [codes(int, 60)]
print(json.dumps([*found, codes(ask, 2)]))
"""


@pytest.fixture(scope="module")
def codes():
    """The exit codes of children that do nothing while a trainer is open, and of those that use gRPC after its end."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=pipe, stdout=pipe, text=True) as server:
        command = [sys.executable, "-c", CHILDREN, server.stdout.readline().strip()]
        ended = subprocess.run(command, stdout=pipe, text=True, timeout=110, check=True)
        server.communicate("\n")
    return json.loads(ended.stdout.split("\n")[-2])


@pytest.mark.slow
def test_no_forked_child_crashes_while_a_trainer_is_open(codes):
    assert codes[0] == [0]


@pytest.mark.slow
def test_a_child_that_was_forked_after_the_end_of_a_trainer_says_that_it_cannot_use_grpc(codes):
    assert codes[1] == [7]
