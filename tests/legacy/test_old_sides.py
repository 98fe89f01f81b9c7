"""The old sides against each other, with nothing of ours between them: they speak the contract.

Two scenarios differ there, and the gateway mends both: the old client gives up at a 429, and
an old report of an exception has neither messages nor tool calls.
"""

import asyncio
import dataclasses

import pytest

from tests.legacy.agent import SCHEMAS, Agent
from tests.legacy.old_agent_server import OldAgentServer
from tests.legacy.old_trainer import OldTrainer
from tests.legacy.scenarios import BY_NAME, SCENARIOS

GIVES_UP = "trainer-busy"
TELLS_LITTLE = "agent-exception"


async def play(scenario):
    """Both old sides and the outcome."""
    async with OldAgentServer(Agent()) as server, OldTrainer(scenario) as trainer:
        outcome, error = await trainer.play(server.address)
        await asyncio.sleep(0.05)  # for the acknowledgement to arrive
    return outcome, error, server, trainer


@pytest.mark.parametrize(
    "scenario",
    [scenario for scenario in SCENARIOS if scenario.name not in (GIVES_UP, TELLS_LITTLE)],
    ids=lambda scenario: scenario.name,
)
async def test_they_give_the_scenarios_outcome(scenario):
    outcome, error, server, trainer = await play(scenario)
    assert outcome == scenario.outcome
    assert scenario.error in error
    assert trainer.tools == SCHEMAS
    assert server.agent.runs == {scenario.name: 1}
    assert server.acks == {scenario.name: [200]}
    assert len(trainer.outcomes) == 1


async def test_an_exception_tells_neither_messages_nor_tool_calls():
    scenario = BY_NAME[TELLS_LITTLE]
    outcome, error, _, _ = await play(scenario)
    assert outcome == dataclasses.replace(scenario.outcome, messages=[], num_tool_calls=0)
    assert error == scenario.error


async def test_the_old_client_gives_up_at_429():
    outcome, error, server, _ = await play(BY_NAME[GIVES_UP])
    assert (outcome.status, outcome.messages, server.chat_statuses) == ("ERROR", [], {GIVES_UP: [429]})
    assert "HTTP 429" in error
