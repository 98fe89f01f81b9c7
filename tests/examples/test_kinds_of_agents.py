"""The examples of sync agents and of agent frameworks run against a scripted trainer."""

import json

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import ChatRef, OutcomeStatus
from osmosis_grpc.trainer import Trainer
from tests.processes import ROOT, server_process

EXAMPLES = ROOT / "examples"


def calls(*named):
    """A reply that calls tools, each given as its name and arguments."""
    made = [
        {"id": f"c{n}-{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(named)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def results(request):
    return [message["content"] for message in request.messages if message["role"] == "tool"]


async def outcomes(address, policy, question, labels):
    async with Trainer([address], policy) as trainer:
        messages = [{"role": "user", "content": question}]
        return [
            await trainer.rollout(rollout_id=f"r{n}", messages=messages, label=label) for n, label in enumerate(labels)
        ]


async def test_the_sync_agent_queries_its_database(forked, tmp_path):
    def policy(request):
        known = results(request)
        if not known:
            return answer(request, calls(("tables", {}), ("query", {"sql": "select nothing from city"})))
        if len(known) == 2:
            assert known[1].startswith("Error: ")
            return answer(request, calls(("query", {"sql": "select name from city order by people desc"})))
        return answer(request, json.loads(known[2])[0][0])

    arguments = "-m", "agent:agent_loop", "--state-dir", str(tmp_path)
    with forked.serving(*arguments, cwd=EXAMPLES / "sync_agent") as address:
        right, wrong = await outcomes(address, policy, "Which city is the largest?", ["Turin", "Oslo"])
    for outcome, reward in ((right, 1.0), (wrong, 0.0)):
        assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, reward), outcome.failure
        assert outcome.samples["main"].segments[0].chats == (1, 2, 3)
        assert outcome.metrics.num_tool_calls == 3


def test_the_sync_agent_is_valid(forked):
    done = forked.run("-m", "osmosis_grpc", "validate", "--run", "-m", "agent:agent_loop", cwd=EXAMPLES / "sync_agent")
    assert (done.returncode, "1 agent, 0 errors, 0 warnings" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.adapters
async def test_the_agents_of_openais_sdk_have_a_sample_each(tmp_path):
    def policy(request):
        known = results(request)
        if "travellers" in request.messages[0]["content"]:
            return answer(request, known[0] if known else calls(("ask_geographer", {"input": "Is Turin larger?"})))
        both = calls(("people", {"city": "Turin"}), ("people", {"city": "Oslo"}))
        return answer(request, str(max(map(int, known))) if known else both)

    arguments = "-m", "agent:guide_agent", "--state-dir", str(tmp_path)
    with server_process(*arguments, cwd=EXAMPLES / "openai_agents_sdk") as (_, address):
        right, wrong = await outcomes(address, policy, "Which city is the largest?", ["848000", "1"])
    for outcome, reward in ((right, 1.0), (wrong, 0.0)):
        assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, reward), outcome.failure
        assert {name: sample.parent for name, sample in outcome.samples.items()} == {
            "main": None,
            "sample-2": ChatRef("main", 1),
        }
        assert [[segment.chats for segment in sample.segments] for sample in outcome.samples.values()] == [[(1, 2)]] * 2
