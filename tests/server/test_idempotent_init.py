"""One execution, however often and however concurrently an Init arrives."""

import asyncio
from collections import Counter

import grpc
import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2, rollout_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import RolloutServiceStub
from osmosis_grpc.testing.calculator import CalculatorAgent


class CountingAgent(CalculatorAgent):
    """Counts how often it is asked for tools and how often it runs."""

    def __init__(self):
        self.tools_asked = self.runs = 0
        self.finish = asyncio.Event()

    async def get_tools(self, request):
        self.tools_asked += 1
        await asyncio.sleep(0.05)  # get_tools takes a moment
        return super().get_tools(request)

    async def run(self, ctx):
        self.runs += 1
        await self.finish.wait()
        return await super().run(ctx)


def init_request(trainer, question="What is 1 + 1?"):
    message = message_pb2.Message(role="user", text=question)
    callback = rollout_pb2.Callback(target=trainer.address, credential=trainer.callback().credential)
    return rollout_pb2.InitRequest(rollout_id="same", spec={"messages": [message], "label": "2"}, callback=callback)


async def answer(stub, request):
    """An Init's answer as something that can be counted."""
    try:
        response = await stub.Init(request, timeout=30)
    except grpc.aio.AioRpcError as error:
        return error.code().name, None
    created, response.created = response.created, False
    return response.SerializeToString(), created


async def connections(stack, address, count=10):
    """So many channels, each with a connection of its own."""
    own = (("grpc.use_local_subchannel_pool", 1),)
    channels = [await stack.enter_async_context(grpc.aio.insecure_channel(address, options=own)) for _ in range(count)]
    return [RolloutServiceStub(channel) for channel in channels]


@pytest.mark.slow
async def test_after_a_first_one_was_accepted(serve, train, stack):
    agent = CountingAgent()
    server, trainer = await serve(agent), await train(ToolCallingMock())
    stubs = await connections(stack, server.address)
    first = await answer(stubs[0], init_request(trainer))
    assert first[1] is True
    same = [answer(stubs[i % 10], init_request(trainer)) for i in range(999)]
    changed = answer(stubs[3], init_request(trainer, "What is 1 + 2?"))
    *answers, other = await asyncio.gather(*same, changed)
    assert Counter(answers) == {(first[0], False): 999}
    assert other == ("ALREADY_EXISTS", None)
    agent.finish.set()
    assert (await asyncio.wait_for(trainer.outcome("same"), 10)).reward == 1.0
    assert agent.runs == 1
    assert agent.tools_asked == 2, "once for GetServerInfo, once for the rollout"


@pytest.mark.slow
async def test_all_in_flight_at_once(serve, train, stack):
    agent = CountingAgent()
    server, trainer = await serve(agent), await train(ToolCallingMock())
    stubs = await connections(stack, server.address)
    requests = [init_request(trainer, "What is 1 + 2?" if i % 100 == 50 else "What is 1 + 1?") for i in range(1000)]
    answers = await asyncio.gather(*(answer(stubs[i % 10], request) for i, request in enumerate(requests)))
    refused = [i for i, (body, _) in enumerate(answers) if body == "ALREADY_EXISTS"]
    won = [i for i in range(1000) if i not in set(refused)]
    assert len({requests[i].SerializeToString() for i in won}) == 1, "one body wins"
    assert len({requests[i].SerializeToString() for i in refused}) == 1
    assert len(refused) in (10, 990)
    assert sum(created is True for _, created in answers) == 1
    assert len({body for body, _ in answers if body != "ALREADY_EXISTS"}) == 1, "equal answers"
    agent.finish.set()
    await asyncio.wait_for(trainer.outcome("same"), 10)
    assert agent.runs == 1
