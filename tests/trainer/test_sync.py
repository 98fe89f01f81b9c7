"""SyncTrainer: the trainer for scripts and notebooks, against a server in a process of its own."""

import asyncio
import signal
import textwrap
import threading
import time

import pytest

from osmosis_grpc.policies import EchoPolicy, ThreadedPolicy, ToolCallingMock
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus, events
from osmosis_grpc.trainer import RolloutClient, RolloutRequest, SyncTrainer, VersionSpan
from tests.waiting import ended, until

COMPLETED = OutcomeStatus.COMPLETED
QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
PATIENCE = 20.0


@pytest.fixture(scope="module")
def target(forked):
    """A server with the calculator; its rollouts need ids of their own."""
    with forked.serving("-m", "osmosis_grpc.testing.calculator:agent_loop", "--no-journal") as address:
        yield address


def requests(name, count):
    return [RolloutRequest(rollout_id=f"{name}-{n}", messages=QUESTION, label="3") for n in range(count)]


@pytest.mark.slow
def test_a_script_without_async(target, tmp_path):
    """Every method, from plain code."""
    with SyncTrainer([target], ToolCallingMock(), ledger=tmp_path / "a.ledger") as trainer:
        trainer.resume(version="step-1")
        outcome = trainer.rollout(rollout_id="plain", messages=QUESTION, label="3")
        assert (outcome.status, outcome.reward) == (COMPLETED, 1.0)
        kinds = [type(event.kind) for event in trainer.events("plain")]
        assert events.Ended in kinds
        trainer.confirm(outcome)
        trainer.pause()
        trainer.pause(idle=True)
        trainer.resume()
        outcomes = list(trainer.run(requests("plain", 8), max_in_flight=4))
        assert {(o.status, o.reward) for o in outcomes} == {(COMPLETED, 1.0)}
        assert trainer.metrics()["rollouts/completed"] == 9.0
        assert [server.attached for server in trainer.servers] == [True]
        assert list(trainer.unconfirmed()) == []
        assert trainer.cancel("plain-0") == []
        assert trainer.address == ""
    with SyncTrainer([target], ToolCallingMock(), ledger=tmp_path / "a.ledger") as trainer:
        assert {o.rollout_id for o in trainer.unconfirmed()} == {f"plain-{n}" for n in range(8)}


def test_a_sync_policy_has_one_call_at_a_time_on_one_thread(target):
    calls, threads, most = [0], set(), [0]

    def policy(request):
        calls[0] += 1
        most[0] = max(most[0], calls[0])
        threads.add(threading.current_thread())
        time.sleep(0.005)  # a second call would begin now
        calls[0] -= 1
        return answer(request, "#### 3", tokens=2)

    with SyncTrainer([target], policy) as trainer:
        trainer.resume(version=1)
        outcomes = list(trainer.run(requests("single", 12)))
        assert not threads & {threading.main_thread()}
        assert (most[0], len(threads)) == (1, 1)
        assert outcomes[0].samples["main"].segments[0].versions == (VersionSpan("1", 2),)
    threads.pop().join(PATIENCE)


def test_a_sync_policy_with_threads(target):
    """Four calls meet at a barrier: they run at once."""
    barrier = threading.Barrier(4, timeout=PATIENCE)

    def policy(request):
        barrier.wait()
        return answer(request, "#### 3")

    with SyncTrainer([target], ThreadedPolicy(policy, threads=4)) as trainer:
        assert {o.status for o in trainer.run(requests("several", 8))} == {COMPLETED}


@pytest.mark.parametrize(
    ("error", "raised"),
    [(StopIteration, RuntimeError), (KeyError("no model"), KeyError)],
    ids=["StopIteration", "KeyError"],
)
def test_what_a_sync_policy_raises_ends_the_loop(target, error, raised):
    def policy(request):
        raise error

    with SyncTrainer([target], policy) as trainer, pytest.raises(raised):
        list(trainer.run(requests(raised.__name__, 2)))


def test_requests_come_from_an_iterator_that_blocks_and_uses_the_trainer(target):
    """The loop goes on while it blocks, and what it raises is raised."""
    thread = []

    def lazily(trainer):
        for request in requests("lazy", 4):
            thread.append(threading.current_thread())
            trainer.rollout(request, rollout_id=f"{request.rollout_id}-first")
            time.sleep(0.01)  # the iterator blocks
            yield request

    with SyncTrainer([target], EchoPolicy()) as trainer:
        assert len(list(trainer.run(requests=lazily(trainer)))) == 4
        assert len(set(thread)) == 1
        with pytest.raises(ZeroDivisionError):
            list(trainer.run(1 // 0 for _ in range(1)))
    thread[0].join(PATIENCE)


async def test_where_a_loop_is_running_already(target):
    """As in a notebook: the caller's own loop is blocked meanwhile, and is not used."""
    trainer = SyncTrainer([target], EchoPolicy())
    trainer.open()
    try:
        assert {o.status for o in trainer.run(requests("notebook", 4))} == {COMPLETED}
        with pytest.raises(RuntimeError, match="open already"):
            trainer.open()
    finally:
        trainer.close()
    trainer.close()
    with pytest.raises(Unavailable, match="with SyncTrainer"):
        trainer.metrics()
    await asyncio.sleep(0)


def test_leaving_the_loop_cancels_and_a_late_generator_is_harmless(target):
    gate = threading.Event()

    async def policy(request):
        if request.rollout_id != "leave-0":
            await asyncio.to_thread(gate.wait, PATIENCE)
        return answer(request, "#### 3")

    with SyncTrainer([target], policy) as trainer:
        for outcome in trainer.run(requests("leave", 3)):
            assert outcome.rollout_id == "leave-0"
            break
        gate.set()
        kept = trainer.run(requests("kept", 3))
        assert next(kept).status is COMPLETED
    del kept


def test_threads_wait_beside_each_other(target):
    outcomes = []
    with SyncTrainer([target], EchoPolicy()) as trainer:
        threads = [
            threading.Thread(
                target=lambda n=n: outcomes.append(trainer.rollout(rollout_id=f"beside-{n}", messages=QUESTION))
            )
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert {o.status for o in outcomes} == {COMPLETED}


def test_used_from_its_own_policy_it_says_so(target):
    async def policy(request):
        trainer.metrics()

    with SyncTrainer([target], policy) as trainer, pytest.raises(RuntimeError, match="its own loop"):
        trainer.rollout(rollout_id="own", messages=QUESTION)


def test_a_trainer_that_cannot_open_leaves_no_thread(tmp_path):
    before = set(threading.enumerate())
    with pytest.raises(Exception, match="ledger"), SyncTrainer(["127.0.0.1:1"], EchoPolicy(), ledger=tmp_path):
        pass
    assert set(threading.enumerate()) <= before


# Ctrl-C

SCRIPT = """
import asyncio, contextlib, faulthandler, signal, sys, threading, time
from osmosis_grpc.protocol.errors import OsmosisRolloutError
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.trainer import RolloutRequest, SyncTrainer

began = threading.Event()

def say(text):
    print(text, flush=True)
    began.set()

def blocking(request):
    say("sampling")
    time.sleep(3600)  # on another thread than that of the signal

async def waiting(request):
    say("sampling")
    await asyncio.sleep(3600)

async def signalled(request):
    say("sampling")
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # the main thread does not wake up
    await asyncio.sleep(3600)

async def first(request):
    if request.rollout_id.endswith("-0"):
        return answer(request, "3")
    return await waiting(request)

async def deaf(request):
    say("sampling")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

def aside(trainer):
    with contextlib.suppress(OsmosisRolloutError):  # the trainer closes
        trainer.rollout(requests[0])

faulthandler.dump_traceback_later(15, exit=True)  # shows what hangs
where, policy, target = sys.argv[1:]
question = [{"role": "user", "content": "1+2?"}]
requests = [RolloutRequest(rollout_id=f"{where}-{policy}-{n}", messages=question, label="3") for n in range(3)]
policy = {"blocking": blocking, "waiting": waiting, "signalled": signalled, "first": first, "deaf": deaf}[policy]

with SyncTrainer([target], policy) as trainer:
    if where == "run":
        for outcome in trainer.run(iter(requests)):
            pass
    elif where == "rollout":
        trainer.rollout(requests[0])
    elif where == "body":
        for outcome in trainer.run(requests):
            say("outcome")
            while True:  # one long sleep does not end if the signal comes just before it begins
                time.sleep(0.05)
    elif where == "pause":
        threading.Thread(target=aside, args=(trainer,), daemon=True).start()
        began.wait()
        trainer.pause(idle=True)
say("not reached")
"""


@pytest.mark.parametrize(
    ("where", "policy"),
    [
        ("run", "waiting"),
        ("run", "blocking"),
        ("rollout", "waiting"),
        ("rollout", "blocking"),
        ("rollout", "signalled"),
        ("body", "first"),
        ("pause", "waiting"),
        pytest.param("run", "deaf", marks=pytest.mark.slow),
    ],
)
async def test_ctrl_c_cancels_closes_and_ends_the_process(forked, target, tmp_path, where, policy):
    script, out, err = tmp_path / "script.py", tmp_path / "out", tmp_path / "err"
    script.write_text(textwrap.dedent(SCRIPT))
    last = "outcome\n" if where == "body" else "sampling\n"
    with forked.start(str(script), where, policy, target, out=out, err=err) as process:
        await until(lambda: process.has_ended() or (out.exists() and out.read_text().endswith(last)))
        if policy != "signalled":
            process.send_signal(signal.SIGINT)
        code = await asyncio.to_thread(process.wait)
    assert code == -signal.SIGINT, err.read_text()
    assert "not reached" not in out.read_text()
    lines = err.read_text().splitlines()
    if policy == "deaf":  # it ignores that it is cancelled, and so the loop's thread does not end
        assert "did not end within" in lines.pop(0)
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "KeyboardInterrupt"
    assert err.read_text().count("Traceback") == 1
    async with RolloutClient(target) as client:
        outcome = await asyncio.wait_for(ended(client, f"{where}-{policy}-{1 if where == 'body' else 0}"), PATIENCE)
    assert outcome.status is OutcomeStatus.CANCELLED
