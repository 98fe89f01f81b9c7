"""Programs that use only the openai or the anthropic package are trained as they are, through `serve --command`."""

import json
import os
import sys
from pathlib import Path

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import ChatRef, OutcomeStatus
from osmosis_grpc.trainer import Trainer
from tests.processes import ROOT, serving

pytestmark = pytest.mark.adapters
PATH = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def calls(*named):
    """A reply that calls tools, each given as its name and arguments."""
    made = [
        {"id": f"c{n}-{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(named)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def served(example):
    return serving("--command", "python agent.py", cwd=ROOT / "examples" / example, env=os.environ | PATH)


async def outcomes(address, policy, question, labels):
    async with Trainer([address], policy) as trainer:
        messages = [{"role": "user", "content": question}]
        return [
            await trainer.rollout(rollout_id=f"r{n}", messages=messages, label=label) for n, label in enumerate(labels)
        ]


@pytest.mark.parametrize("again", [1, 2])
async def test_the_openai_agent_runs_two_tools_at_once(again):
    def policy(request):
        results = [message["content"] for message in request.messages if message["role"] == "tool"]
        if not results:
            return answer(request, calls(("list_orders", {"status": "late"})), tokens=7)
        if len(results) == 1:
            return answer(request, calls(*(("get_price", {"id": order}) for order in json.loads(results[0]))), tokens=5)
        return answer(request, str(sum(map(int, results[1:]))), tokens=3)

    with served("openai_agent") as (_, ready):
        right, wrong = await outcomes(ready["grpc"], policy, "What do the late orders cost?", ["25", "26"])
    for outcome, reward in ((right, 1.0), (wrong, 0.0)):
        assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, reward), outcome.failure
        assert outcome.extra_fields == {"answer": "25"}
        (segment,) = outcome.samples["main"].segments
        assert (segment.chats, segment.sampled) == ((1, 2, 3), 15)
        roles = [message["role"] for message in outcome.samples["main"].messages]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "tool", "assistant"]


@pytest.mark.parametrize("again", [1, 2])
async def test_the_anthropic_agent_has_a_sample_for_its_helper(again):
    def policy(request):
        results = [message["content"] for message in request.messages if message["role"] == "tool"]
        if request.messages[0]["content"].startswith("You plan"):
            asks = calls(("find", {"request": "Oslo to Lisbon, by Paris?"}))
            return answer(request, results[0] if results else asks, tokens=7)
        ways = [{"start": "Oslo", "end": "Paris"}, {"start": "Paris", "end": "Lisbon"}]
        found = str(sum(map(int, results))) if results else calls(*(("price", way) for way in ways))
        return answer(request, found, tokens=5)

    with served("anthropic_agent") as (_, ready):
        (outcome,) = await outcomes(ready["grpc"], policy, "From Oslo to Lisbon, cheap.", ["210"])
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0), outcome.failure
    parents = {name: sample.parent for name, sample in outcome.samples.items()}
    assert parents == {"main": None, "sample-2": ChatRef("main", 1)}
    assert [[segment.sampled for segment in sample.segments] for sample in outcome.samples.values()] == [[14], [10]]
