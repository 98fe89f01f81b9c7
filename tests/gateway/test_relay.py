"""Relay: held chats, who joins whom, silence, and what is left when it closes."""

import asyncio
import gc
from typing import Any

import pytest

from osmosis_gateway.http_bodies import CompletedBody
from osmosis_gateway.relay import LegacyAgentLost, Relay
from osmosis_grpc.agent import RolloutContext
from osmosis_grpc.agent.tool_runs import CallOrigins
from osmosis_grpc.protocol.errors import RolloutEndedError, Unavailable
from osmosis_grpc.protocol.types import ChatResponse, RolloutRequest
from tests.waiting import turns

QUESTION = [{"role": "user", "content": "hi"}]
DONE = CompletedBody(rollout_id="r1", status="COMPLETED")


class Session:
    """The port behind a RolloutContext: answers chats once `gate` is open."""

    def __init__(self) -> None:
        self.chats: list[Any] = []
        self.stopped = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.faults: list[Exception] = []
        self.calls = CallOrigins()

    async def chat(self, messages: Any, **more: Any) -> tuple[int, ChatResponse]:
        self.chats.append((messages, more["params"]))
        number = len(self.chats)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        if self.faults:
            raise self.faults.pop(0)
        return number, ChatResponse(message={"role": "assistant", "content": str(number)}, finish_reason="stop")

    def check_open(self) -> None:
        """It always is."""


class Asker:
    """Somebody who asks, and may hang up."""

    def __init__(self, relay: Relay, messages: Any = QUESTION, **params: Any) -> None:
        self.away = False
        self.task = asyncio.create_task(relay.chat(messages, params, self.gone))

    async def gone(self) -> bool:
        await asyncio.sleep(0)
        return self.away

    async def reply(self) -> str:
        return (await asyncio.wait_for(self.task, 2)).message["content"]


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def context(session: Session) -> RolloutContext:
    return RolloutContext(request=RolloutRequest(rollout_id="r1"), tools=[], session=session)


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
async def relay():
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    relay = Relay()
    yield relay
    relay.close()
    del relay
    await turns(20)
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
    assert not [name for name in names if name.startswith(("Relay.", "Asker."))]


async def test_closed_with_an_open_chat(relay, session, context):
    session.gate.clear()
    relay.begin(context)
    asker = Asker(relay)
    await turns(20)
    relay.close()
    with pytest.raises(RolloutEndedError):
        await asker.reply()
    assert (len(session.chats), session.stopped, relay.pending) == (1, 1, [])


async def test_closed_after_the_caller_of_a_chat_has_left(relay, session, context):
    session.gate.clear()
    relay.begin(context)
    asker = Asker(relay)
    await turns(20)
    asker.away = True
    relay.close()
    with pytest.raises(RolloutEndedError):
        await asker.reply()
    assert session.stopped == 1


async def test_a_closed_relay_asks_nothing(relay, session, context):
    relay.begin(context)
    relay.close()
    with pytest.raises(RolloutEndedError):
        await Asker(relay).reply()
    assert session.chats == []


async def test_who_still_waits_is_not_joined(relay, session, context):
    session.gate.clear()
    relay.begin(context)
    askers = [Asker(relay) for _ in range(3)]
    await turns(20)
    session.gate.set()
    assert sorted([await asker.reply() for asker in askers]) == ["1", "2", "3"]
    assert relay.pending == []


async def test_two_at_once_do_not_both_join(relay, session, context):
    """One who hung up is one retry's; the other asks for itself."""
    session.gate.clear()
    relay.begin(context)
    first = Asker(relay)
    await turns(20)
    first.away = True
    askers = [Asker(relay), Asker(relay)]
    await turns(20)
    session.gate.set()
    assert sorted([await asker.reply() for asker in askers]) == ["1", "2"]
    await first.task


async def test_other_messages_or_parameters_are_another_chat(relay, session, context):
    session.gate.clear()
    relay.begin(context)
    first = Asker(relay, temperature=1.0)
    await turns(20)
    first.away = True
    others = [Asker(relay, temperature=0.9), Asker(relay), Asker(relay, [*QUESTION, *QUESTION], temperature=1.0)]
    await turns(20)
    session.gate.set()
    assert sorted([await asker.reply() for asker in others]) == ["2", "3", "4"]
    await first.task
    assert len(relay.pending) == 1, "kept for a retry"
    assert await Asker(relay, temperature=1.0).reply() == "1"
    assert relay.pending == []


async def test_a_failure_is_reported_once(relay, session, context):
    session.faults.append(Unavailable("away"))
    relay.begin(context)
    with pytest.raises(Unavailable):
        await Asker(relay).reply()
    assert relay.pending == []
    assert await Asker(relay).reply() == "2"


async def test_a_failure_without_a_receiver_is_not_kept(relay, session, context):
    session.gate.clear()
    session.faults.append(Unavailable("away"))
    relay.begin(context)
    first = Asker(relay)
    await turns(20)
    first.away = True
    session.gate.set()
    with pytest.raises(Unavailable):
        await first.reply()
    assert await Asker(relay).reply() == "2"


async def test_an_open_chat_is_no_silence(relay, session, context):
    session.gate.clear()
    relay.begin(context)
    waiting = asyncio.create_task(relay.completed(0.1))
    await asyncio.sleep(0.05)  # part of the silence
    asker = Asker(relay)
    await asyncio.sleep(0.2)  # longer than the silence
    assert not waiting.done()
    session.gate.set()
    await asker.reply()
    await asyncio.sleep(0.06)  # with the part before the chat, longer than the silence
    assert not waiting.done(), "it counts from the chat's end"
    with pytest.raises(LegacyAgentLost):
        await waiting


@pytest.mark.slow
async def test_a_chat_that_begins_as_the_same_one_ends_is_no_silence(relay, session, context):
    """The open chat is seen whatever the order in which the two are noticed."""
    relay.begin(context)
    waiting = asyncio.create_task(relay.completed(0.15))
    await turns(20)
    for cycles in range(12):
        session.gate.clear()
        first = Asker(relay)
        await turns(20)
        session.gate.set()
        for _ in range(cycles):
            await asyncio.sleep(0)
        second_gate = session.gate = asyncio.Event()
        second = Asker(relay)
        await turns(20)
        await first.reply()
        await asyncio.sleep(0.2 if not second.task.done() else 0)  # longer than the silence
        assert not waiting.done(), f"after {cycles} cycles"
        second_gate.set()
        await second.reply()
    relay.complete(DONE)
    assert await waiting is DONE


async def test_an_outcome_ends_the_wait_beside_an_open_chat(relay, session, context):
    session.gate.clear()
    relay.begin(context)
    asker = Asker(relay)
    waiting = asyncio.create_task(relay.completed(5))
    await turns(20)
    relay.complete(DONE)
    assert await waiting is DONE
    relay.close()
    with pytest.raises(RolloutEndedError):
        await asker.reply()
