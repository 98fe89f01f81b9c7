"""Arguments of a wrong type and a trainer that is not open: the error says what to write."""

import pytest

from osmosis_grpc.policies import EchoPolicy, ThreadedPolicy
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.trainer import (
    ClientTls,
    Credentials,
    RolloutClient,
    RolloutOutcome,
    RolloutRequest,
    ServerSecurity,
    SyncTrainer,
    Trainer,
)

TARGET = "127.0.0.1:1"
CLIENT, SERVER = r"tls: .* is not a ClientTls; pass ClientTls\(ca=...\)", r"is not a ServerTls; pass ServerTls\(cert="


@pytest.mark.parametrize("tls", [True, "c.pem"])
@pytest.mark.parametrize("made", ["attach", "SyncTrainer", "RolloutClient"])
def test_tls_of_a_client(made, tls):
    makers = {
        "attach": lambda: Trainer([TARGET], EchoPolicy(), credentials=Credentials(tls=tls)),
        "SyncTrainer": lambda: SyncTrainer([TARGET], EchoPolicy(), credentials=Credentials(tls=tls)),
        "RolloutClient": lambda: RolloutClient(TARGET, tls=tls),
    }
    with pytest.raises(TypeError, match=CLIENT):
        makers[made]()


@pytest.mark.parametrize("tls", [True, "c.pem", ClientTls()])
def test_tls_of_a_server(tls):
    with pytest.raises(TypeError, match=f"^tls: .*{SERVER}"):
        Trainer([], EchoPolicy(), listen="127.0.0.1:0", security=ServerSecurity(tls=tls))


@pytest.mark.parametrize("policy", ["policy", None, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda policy: Trainer([TARGET], policy),
        lambda policy: SyncTrainer([TARGET], policy),
        lambda policy: Trainer([TARGET], policy, transport="callback"),
        ThreadedPolicy,
    ],
    ids=["attach", "SyncTrainer", "callback", "ThreadedPolicy"],
)
def test_a_policy_that_is_not_callable(make, policy):
    with pytest.raises(TypeError, match=f"policy: {policy!r} is not callable; pass a function from ChatRequest"):
        make(policy)


async def drained(values):
    return [value async for value in values]


async def resolved(value):
    return value


CALLS = {
    "wait_for_server": lambda trainer: trainer.wait_for_server(),
    "rollout": lambda trainer: trainer.rollout(rollout_id="r"),
    "run": lambda trainer: drained(trainer.run([RolloutRequest(rollout_id="r")])),
    "run with progress": lambda trainer: drained(trainer.run([], progress=True)),
    "groups": lambda trainer: drained(trainer.groups([RolloutRequest(rollout_id="r")], 2)),
    "evaluate": lambda trainer: trainer.evaluate([RolloutRequest(rollout_id="r")]),
    "unconfirmed": lambda trainer: drained(trainer.unconfirmed()),
    "cancel": lambda trainer: trainer.cancel("r"),
    "annotate": lambda trainer: trainer.annotate(RolloutOutcome(rollout_id="r", status="COMPLETED"), id="a"),
    "events": lambda trainer: drained(trainer.events("r")),
    "write_note": lambda trainer: trainer.write_note("n", {}),
    "read_note": lambda trainer: resolved(trainer.read_note("n")),
    "position": lambda trainer: resolved(trainer.position()),
    "confirm": lambda trainer: trainer.confirm({}),
    "pause": lambda trainer: trainer.pause(),
    "resume": lambda trainer: resolved(trainer.resume()),
    "resume with a version": lambda trainer: resolved(trainer.resume(version=1)),
    "metrics": lambda trainer: resolved(trainer.metrics()),
    "scheduler": lambda trainer: resolved(trainer.scheduler),
    "servers": lambda trainer: resolved(trainer.servers),
    "group_counts": lambda trainer: resolved(trainer.group_counts),
    "source": lambda trainer: resolved(trainer.source),
    "collector": lambda trainer: resolved(trainer.collector()),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_trainer_that_is_not_open(call):
    trainer = Trainer([TARGET], EchoPolicy())
    with pytest.raises(RuntimeError, match=r"use it inside `async with Trainer\(...\) as trainer:`"):
        await call(trainer)


def test_every_public_method_is_asked():
    names = {name for name in dir(Trainer([TARGET], EchoPolicy())) if not name.startswith("_")}
    assert names - {"address", "network"} == {name.partition(" ")[0] for name in CALLS}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("label", "\ud800"),
        ("agent_loop", "\ud800"),
        ("idempotency_key", "\ud800"),
        ("metadata", [1]),
        ("metadata", "a text"),
    ],
)
async def test_a_request_that_cannot_be_sent_is_refused_with_the_name_of_its_field(field, value):
    async with Trainer([TARGET], EchoPolicy()) as trainer:
        with pytest.raises(InvalidArgument) as raised:
            await trainer.rollout(rollout_id="r1", **{field: value})
    assert [name for name, _ in raised.value.violations] == [field]
