"""Each background job of the trainer and its ledger fails once: it runs again, or the call that waits gets the error.

A job that is declared without a scenario here fails its test.
"""

import asyncio
from types import SimpleNamespace

import grpc
import pytest
from google.rpc import error_details_pb2

from osmosis_grpc import supervise
from osmosis_grpc.protocol.errors import AlreadyExists, Internal, LedgerError, TrainerFailed
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.raw.server_frames import complete, init_reply, referring, status
from osmosis_grpc.trainer import RolloutClient, RolloutRequest, SyncTrainer, Trainer, TrainerConfig, outcome_recorder
from osmosis_grpc.trainer import log_warnings as unreachable_file
from osmosis_grpc.trainer import target_sources as sources_file
from osmosis_grpc.trainer.loop_thread import LoopThread
from osmosis_grpc.trainer.transports.callback.standalone_recorder import CallbackRecorder
from tests.server.workers.cluster import workers
from tests.trainer.conftest import PATIENCE, USER, reply, talker
from tests.trainer.deployment import collect, within
from tests.waiting import until

JOBS = sorted(name for name in supervise.declared() if name.startswith(("trainer.", "ledger.")))
INJECTED = OSError("injected on purpose")
NOWHERE = "127.0.0.1:1"
COMPLETED, FAILED = OutcomeStatus.COMPLETED, OutcomeStatus.FAILED
SCENARIOS = {}


def scenario(name):
    def add(function):
        SCENARIOS[name] = function
        return function

    return add


@pytest.fixture
def tools(serve, train, attach_to, listening, stack, monkeypatch, tmp_path, caplog):
    return SimpleNamespace(
        serve=serve,
        train=train,
        attach_to=attach_to,
        listening=listening,
        stack=stack,
        monkeypatch=monkeypatch,
        path=tmp_path,
        caplog=caplog,
        text=lambda: caplog.text,
    )


@pytest.mark.parametrize("name", JOBS)
async def test_a_job_that_fails_runs_again_or_is_reported(name, tools):
    assert name in SCENARIOS, f"write a scenario in which {name} fails"
    try:
        await SCENARIOS[name](tools, name)
    finally:
        supervise.inject(name, INJECTED)
        supervise.jobs.injected(supervise.declared()[name])  # what was not raised is forgotten


def inject(name):
    supervise.inject(name, INJECTED)


def restarted(tools, name):
    return f"{name} failed; runs again" in tools.text() and "injected on purpose" in tools.text()


def reported(name):
    """The caller's exception names the job and tells why it failed."""
    return pytest.raises(Internal, match=f"{name} failed: OSError: injected on purpose")


# Jobs that run again.


@scenario("trainer.sweep")
async def sweep(tools, name):
    trainer = await tools.attach_to(reply, await tools.serve(talker()), ttl=0.04)
    inject(name)
    await until(lambda: restarted(tools, name))
    await within(trainer.rollout(rollout_id="r"))
    async with asyncio.timeout(PATIENCE):
        while True:  # a rollout that is forgotten may be asked for again; to ask is to remember
            try:
                await trainer.rollout(rollout_id="r")
                return
            except AlreadyExists:
                await asyncio.sleep(0.2)  # more than the ttl


@scenario("trainer.warn")
async def warn(tools, name):
    tools.monkeypatch.setattr(unreachable_file, "EVERY", 0.05)
    server = await tools.serve(talker())
    await server.drain()
    inject(name)
    async with Trainer([server.address, NOWHERE], reply, config=TrainerConfig(longest_pause=3600.0)) as trainer:
        rollout = asyncio.create_task(trainer.rollout(rollout_id="r"))
        await until(lambda: restarted(tools, name))
        tools.caplog.clear()
        refused = f"server {NOWHERE} cannot be reached: it refuses connections; start it, or name another; trying again"
        drained = f"all servers drain: {server.address}; 1 rollout waits until one accepts rollouts again"
        await until(lambda: refused in tools.text() and drained in tools.text())
        await server.end_drain()
        assert (await within(rollout)).status is COMPLETED


@scenario("trainer.dial")
async def dial(tools, name):
    server = await tools.serve(talker())
    inject(name)
    async with Trainer([server.address], reply) as trainer:
        assert (await within(trainer.rollout(rollout_id="r"))).status is COMPLETED
    assert restarted(tools, name)


@scenario("trainer.watch_targets")
async def watch_targets(tools, name):
    tools.monkeypatch.setattr(sources_file, "FILE_PERIOD", 0.02)
    first, second = await tools.serve(talker()), await tools.serve(talker())
    path = tools.path / "servers"
    path.write_text(first.address)
    inject(name)
    async with Trainer(path, reply) as trainer:
        await until(lambda: restarted(tools, name))
        path.write_text(second.address)
        await until(lambda: [server.name for server in trainer.servers] == [second.address])


@scenario("trainer.retire_server")
async def retire_server(tools, name):
    tools.monkeypatch.setattr(sources_file, "FILE_PERIOD", 0.02)
    first, second = await tools.serve(talker()), await tools.serve(talker())
    path = tools.path / "servers"
    path.write_text(f"{first.address}\n{second.address}")
    async with Trainer(path, reply) as trainer:
        inject(name)
        path.write_text(second.address)
        await until(lambda: restarted(tools, name))
        await until(lambda: [server.name for server in trainer.servers] == [second.address])
        assert (await within(trainer.rollout(rollout_id="r"))).status is COMPLETED


@scenario("trainer.ask_workers")
async def ask_workers(tools, name):
    cluster = await tools.stack.enter_async_context(workers([talker()], 2))
    async with Trainer([cluster.servers[0].address], reply) as trainer:
        await trainer.wait_for_server(count=2)
        inject(name)
        await cluster.leave(1)
        await until(lambda: restarted(tools, name))
        await until(lambda: len(trainer.servers) == 1)


@scenario("trainer.answer_chat")
async def answer_chat(tools, name):
    """The stream ends, and the server sends the chat again on the next one."""

    async def later(request):
        await asyncio.sleep(0)  # a turn of the loop: the chat is open until then
        return reply(request)

    trainer = await tools.attach_to(later, await tools.serve(talker()))
    inject(name)
    assert (await within(trainer.rollout(rollout_id="r"))).status is COMPLETED
    assert f"{name} failed" in tools.text()


# Jobs whose failure one rollout, one call, gets.


@scenario("trainer.assigned")
async def assigned(tools, name):
    trainer = await tools.attach_to(reply, await tools.serve(talker()), ledger=tools.path / "ledger")
    inject(name)
    with reported(name):
        await within(trainer.rollout(rollout_id="r"))
    assert (await within(trainer.rollout(rollout_id="s"))).status is COMPLETED


@scenario("trainer.take_outcome")
async def take_outcome(tools, name):
    trainer = await tools.attach_to(reply, await tools.serve(talker()))
    inject(name)
    with reported(name):
        await within(trainer.rollout(rollout_id="r"))
    assert (await within(trainer.rollout(rollout_id="s"))).status is COMPLETED


@scenario("trainer.send_again")
async def send_again(tools, name):
    deployment = await tools.listening()
    server = await deployment.server()
    await server.attach()
    done = deployment.run("r")
    request = await server.stream.next("init")
    inject(name)
    full = status(grpc.StatusCode.RESOURCE_EXHAUSTED)
    full.details.add().Pack(error_details_pb2.RetryInfo(retry_delay={"nanos": 1000}))
    await server.send(init_reply(request, status=full))
    with reported(name):
        await done


async def refer_to_nothing(tools):
    """A rollout whose outcome refers to chats that were never made."""
    deployment = await tools.listening()
    server = await deployment.server()
    await server.attach()
    done = deployment.run("r")
    await server.send(complete(await server.accept(), **referring(1, runs=(1, 2))))
    return done


@scenario("trainer.read_events")
async def read_events(tools, name):
    inject(name)
    with reported(name):
        await (await refer_to_nothing(tools))


@scenario("trainer.overdue_outcome")
async def overdue_outcome(tools, name):
    tools.monkeypatch.setattr(outcome_recorder, "READING_LIMIT", 0.1)
    inject(name)
    with reported(name):
        await (await refer_to_nothing(tools))


@scenario("trainer.lost_server")
async def lost_server(tools, name):
    deployment = await tools.listening(lost_after=0.2)
    server = await deployment.server()
    await server.attach()
    done = deployment.run("r")
    await server.accept()
    inject(name)
    await server.stream.cut()
    with reported(name):
        await done


@scenario("trainer.feed")
async def feed(tools, name):
    trainer = await tools.attach_to(reply, await tools.serve(talker()))
    for values in (
        lambda: trainer.run([RolloutRequest(rollout_id="r")]),
        lambda: trainer.groups([RolloutRequest(rollout_id="g")], group_size=2),
    ):
        inject(name)
        with reported(name):
            await within(collect(values()))


@scenario("trainer.sample")
async def sample(tools, name):
    async def policy(request):
        return reply(request)

    trainer = await tools.attach_to(policy, await tools.serve(talker()))
    inject(name)
    with pytest.raises(Exception, match="injected on purpose"):
        await within(trainer.rollout(rollout_id="r"))
    assert trainer.metrics()["failures/trainer/CHAT_REFUSED"] == 1


@scenario("trainer.keep_reply")
async def keep_reply(tools, name):
    trainer = await tools.attach_to(reply, await tools.serve(talker()))
    inject(name)
    with pytest.raises(Exception, match="injected on purpose"):
        await within(trainer.rollout(rollout_id="r"))
    assert f"{name} failed" in tools.text()


@scenario("trainer.cancel_policy")
async def cancel_policy(tools, name):
    class Policy:
        def __init__(self):
            self.asked, self.cancelled = asyncio.Event(), []

        async def __call__(self, request):
            if request.rollout_id in ("lost", "held"):
                self.asked.set()
                await asyncio.sleep(3600)
            return reply(request)

        def cancel(self, request):
            self.cancelled.append(request.rollout_id)

    policy = Policy()
    trainer = await tools.attach_to(policy, await tools.serve(talker()))
    inject(name)
    for rollout_id in ("lost", "held"):
        running = asyncio.ensure_future(within(trainer.rollout(rollout_id=rollout_id)))
        await within(policy.asked.wait())
        policy.asked.clear()
        await within(trainer.cancel(rollout_id))
        assert (await running).status is OutcomeStatus.CANCELLED
        await until(lambda: f"{name} failed" in tools.text())
    await until(lambda: policy.cancelled == ["held"])
    assert (await within(trainer.rollout(rollout_id="r"))).status is COMPLETED


@scenario("trainer.recorder")
async def recorder(tools, name):
    recorded = []

    async def record(outcome, state, credential):
        recorded.append(outcome.rollout_id)

    server = await tools.serve(talker())
    async with CallbackRecorder(reply, record) as trainer, RolloutClient(server.address) as client:
        inject(name)
        await client.init(rollout_id="r", messages=[USER], callback=trainer.callback())
        await until(lambda: recorded == ["r"] and not server.engine.capacity().undelivered)
    assert "injected on purpose" in tools.text(), "the call that reported the outcome failed, and was made again"


@scenario("trainer.repoint_ended")
async def repoint_ended(tools, name):
    server = await tools.serve(talker())
    inject(name)
    options = {"transport": "callback", "ledger": tools.path / "ledger"}
    async with Trainer(server.address, reply, **options) as trainer:
        assert (await within(trainer.rollout(rollout_id="r", messages=[USER]))).status is COMPLETED
        await until(lambda: restarted(tools, name))


@scenario("trainer.send_init")
async def send_init(tools, name):
    server = await tools.serve(talker())
    async with Trainer(server.address, reply, transport="callback") as trainer:
        inject(name)
        with reported(name):
            await within(trainer.rollout(rollout_id="r"))
        assert (await within(trainer.rollout(rollout_id="s"))).status is COMPLETED


@scenario("trainer.send_cancel")
async def send_cancel(tools, name):
    agent = talker()
    agent.gate("r")
    server = await tools.serve(agent)
    async with Trainer(server.address, reply, transport="callback") as trainer:
        running = asyncio.ensure_future(within(trainer.rollout(rollout_id="r")))
        await until(lambda: agent.running["r"])
        inject(name)
        with reported(name):
            await within(trainer.cancel("r"))
        agent.release()
        assert (await running).status is COMPLETED


@scenario("ledger.after_commit")
async def after_commit(tools, name):
    trainer = await tools.attach_to(reply, await tools.serve(talker()), ledger=tools.path / "ledger")
    inject(name)
    with pytest.raises(LedgerError, match=f"{name}.* failed: OSError: injected on purpose"):
        await within(trainer.rollout(rollout_id="r"))
    outcome = await within(trainer.rollout(rollout_id="s"))
    await outcome.confirm()


# Jobs that the trainer cannot do without.


def failed(name):
    return pytest.raises(TrainerFailed, match=f"{name}: OSError: injected on purpose")


@scenario("trainer.no_server")
async def no_server(tools, name):
    inject(name)
    async with Trainer([NOWHERE], reply, config=TrainerConfig(lost_after=0.3)) as trainer:
        waiting = [
            asyncio.ensure_future(within(trainer.rollout(rollout_id="r"))),
            asyncio.ensure_future(within(collect(trainer.run([RolloutRequest(rollout_id="s")])))),
            asyncio.ensure_future(within(collect(trainer.groups([RolloutRequest(rollout_id="t")], group_size=2)))),
            asyncio.ensure_future(within(collect(trainer.events("r")))),
            asyncio.ensure_future(within(trainer.evaluate([RolloutRequest(rollout_id="u")]))),
            asyncio.ensure_future(within(collect(trainer.run(endless())))),
        ]
        for task in waiting:
            with failed(name):
                await task
        with failed(name):
            await within(trainer.rollout(rollout_id="later"))
        with failed(name):
            await within(collect(trainer.events("r")))
    assert f"{name} failed; the trainer has failed" in tools.text()


async def endless():
    """Requests that never come."""
    await asyncio.sleep(3600)
    yield RolloutRequest(rollout_id="never")


@scenario("ledger.flush")
async def flush(tools, name):
    trainer = await tools.attach_to(reply, await tools.serve(talker()), ledger=tools.path / "ledger")
    inject(name)
    with pytest.raises((LedgerError, TrainerFailed), match="injected on purpose"):
        await within(trainer.rollout(rollout_id="r"))
    with failed(name):
        await within(trainer.rollout(rollout_id="s"))


@scenario("ledger.commit")
async def commit(tools, name):
    for transport in ("attach", "callback"):
        async with Trainer([NOWHERE], reply, transport=transport, ledger=tools.path / transport) as trainer:
            running = asyncio.ensure_future(within(trainer.rollout(rollout_id="r")))
            await asyncio.sleep(0)
            inject(name)
            with failed(name):
                await running


@scenario("trainer.loop")
async def loop(tools, name):
    inject(name)
    with failed(name):
        await within(asyncio.to_thread(SyncTrainer([NOWHERE], reply).open))
    trainer = SyncTrainer([NOWHERE], reply)
    await within(asyncio.to_thread(trainer.open))
    await within(asyncio.to_thread(trainer.close))


@scenario("trainer.close_iterator")
async def close_iterator(tools, name):
    """The collector closes a generator on the loop's own thread."""

    async def values():
        yield 1
        yield 2

    def use():
        thread = LoopThread("test")
        thread.start()
        generators = [thread.iterate(values)]
        assert next(generators[0]) == 1

        async def drop():
            generators.clear()
            await asyncio.sleep(0.05)  # the closing task runs

        thread.call(drop)
        thread.stop()

    inject(name)
    await within(asyncio.to_thread(use))
    assert f"{name} failed" in tools.text()
