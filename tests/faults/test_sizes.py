"""Messages at their limits, packed bombs, and a trainer that answers without measure."""

from pathlib import Path

import grpc
import pytest

from osmosis_grpc.network.channel_options import MAX_MESSAGE_BYTES, MAX_REPLY_BYTES
from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import rollout_pb2, services_pb2, services_pb2_grpc
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.connections import OPTIONS
from osmosis_grpc.testing.raw.trainer_frames import HEARTBEAT, chat_reply, init, reply
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.processes import server_process

MIB = 2**20
CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
SERVICE = "/osmosis.rollout.v1.RolloutService"


@pytest.fixture(scope="module")
def served():
    with server_process(*CALCULATOR) as (process, address):
        yield process.pid, address


def peak(pid: int) -> int:
    """The most bytes of a process that were in memory at once."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(row for row in rows if row.startswith("VmHWM")).split()[1]) * 1024


async def a_rollout(address: str, rollout_id: str) -> None:
    """An bystander one still runs."""
    async with CallbackTrainer(ToolCallingMock()) as trainer, RolloutClient(address) as client:
        await client.init(rollout_id=rollout_id, messages=QUESTION, callback=trainer.callback())
        assert (await trainer.outcome(rollout_id, 20)).status == "COMPLETED"


def padded_init(size: int):
    """An InitRequest of just so many bytes, its metadata made long enough."""
    request = rollout_pb2.InitRequest(rollout_id="r")
    request.spec.metadata_json = "x" * size
    request.spec.metadata_json = "x" * (2 * size - request.ByteSize())
    assert request.ByteSize() == size
    return request


@pytest.mark.long
@pytest.mark.parametrize(("more", "code"), [(0, "INVALID_ARGUMENT"), (1, "RESOURCE_EXHAUSTED")])
@pytest.mark.parametrize("where", ["unary", "first", "later"])
async def test_the_limit_is_exact(served, where, more, code):
    """A message of 64 MiB is read, and refused for what is in it; one byte more is not read."""
    _, address = served
    size = MAX_MESSAGE_BYTES + more
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel, RawTrainer(address) as trainer:
        if where == "unary":
            message = padded_init(size)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await services_pb2_grpc.RolloutServiceStub(channel).Init(message)
            assert caught.value.code().name == code
            return
        stream = await trainer.attach() if where == "later" else trainer.open()
        frame = padded_frame(size)
        await stream.send_bytes(frame)
        if where == "later" and not more:  # answered singly: the stream goes on
            reply = await stream.next("init_reply")
            assert reply.status.code == 3
            await stream.send(HEARTBEAT)
            await trainer.barrier()
        else:
            assert await stream.ended() == code
    assert peak(served[0]) < 700 * MIB


def padded_frame(size: int) -> bytes:
    """An AttachRequest with one Init, of just so many bytes."""
    frame = init("large")
    short = len(services_pb2.AttachRequest(frames=[frame]).SerializeToString())
    frame.init.spec.metadata_json = "x" * (size - short)
    long = services_pb2.AttachRequest(frames=[frame]).ByteSize()
    frame.init.spec.metadata_json = "x" * (size - short - (long - size))
    data = services_pb2.AttachRequest(frames=[frame]).SerializeToString()
    assert len(data) == size
    return data


@pytest.mark.long
@pytest.mark.parametrize("method", ["Init", "GetServerInfo", "StreamEvents", "Attach"])
async def test_a_packed_bomb_is_refused(method):
    """300 MB of zeros in 300 KB: unpacked no further than the limit."""
    with server_process(*CALCULATOR) as (process, address):
        before = peak(process.pid)
        packed = {"options": OPTIONS, "compression": grpc.Compression.Gzip}
        async with grpc.aio.insecure_channel(address, **packed) as channel:
            kind = {"StreamEvents": "unary_stream", "Attach": "stream_stream"}.get(method, "unary_unary")
            call = getattr(channel, kind)(f"{SERVICE}/{method}")
            bomb = b"\0" * 300_000_000
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                if kind == "stream_stream":
                    stream = call()
                    await stream.write(bomb)
                    await stream.read()
                elif kind == "unary_stream":
                    await call(bomb).read()
                else:
                    await call(bomb)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert peak(process.pid) - before < 2 * MAX_MESSAGE_BYTES
        await a_rollout(address, f"after-{method}")


TOO_MUCH = {
    "a reply of more than 32 MiB": lambda: reply("x" * (MAX_REPLY_BYTES + 1)),
    "a million tool calls": lambda: _with_calls(1_000_000),
    "lengths that do not agree": lambda: _with_tokens(3, 2),
    "an infinite logprob": lambda: _with_tokens(2, 2, float("inf")),
    "a prompt longer than its prefix": lambda: _with_tokens(2, 2, prefix=9),
}
"""Chat answers over an attachment."""


def _with_calls(count: int):
    answer = reply("")
    answer.message.tool_calls.add(id="c", type="function").function.name = "add"
    answer.message.tool_calls.extend([answer.message.tool_calls[0]] * (count - 1))
    return answer


def _with_tokens(ids: int, logprobs: int, value: float = -1.0, prefix: int = 0):
    answer = reply("x")
    answer.tokens.ids.extend(range(ids))
    answer.tokens.logprobs.extend([value] * logprobs)
    answer.prompt_prefix = prefix
    return answer


@pytest.mark.long
@pytest.mark.parametrize("name", TOO_MUCH)
async def test_a_hostile_trainers_answer_harms_its_own_rollout_alone(served, name):
    pid, address = served
    async with RawTrainer(address) as trainer:
        stream = await trainer.attach()
        rollout_id = name.replace(" ", "-")
        start = init(rollout_id)
        start.init.spec.agent_loop = ""
        await stream.send(start)
        while True:
            await stream.until(lambda: stream.fresh("chat") or stream.fresh("complete") or stream.over is not None)
            if stream.over is not None:
                assert stream.over == "RESOURCE_EXHAUSTED", stream.details
                break
            if stream.fresh("complete"):
                break
            await stream.send(chat_reply(await trainer.chat(), response=TOO_MUCH[name]()))
    await a_rollout(address, f"after-{rollout_id}")
    assert peak(pid) < 1500 * MIB
