"""Over HTTP: the example's tool calls are counted, and a failure says where the agent raised."""

import asyncio

import aiohttp
import pytest

from tests.gateway.legacy import LegacyTrainer
from tests.gateway.test_contract import init
from tests.processes import ROOT, serving

RAISES = """
from osmosis_grpc.rollout import RolloutAgentLoop

class Agent(RolloutAgentLoop):
    name = "agent"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        return {}["weather_api_key"]
"""


async def over_http(module, folder):
    """The outcome of one rollout of a module, as its HTTP trainer gets it."""
    context = serving("-m", module, "-p", "0", "--log-level", "error", "--no-journal", cwd=folder)
    _, ready = await asyncio.to_thread(context.__enter__)
    try:
        async with LegacyTrainer() as trainer, aiohttp.ClientSession(f"http://{ready['http']}") as session:
            await init(session, trainer.init_body(question="What is (2 + 3) * (4 + 5)?"))
            return await trainer.completed()
    finally:
        context.__exit__(None, None, None)


@pytest.mark.slow
async def test_the_calculator_example_counts_its_tools_over_http():
    done = await over_http("server:agent_loop", ROOT / "examples" / "calculator")
    assert done["status"] == "COMPLETED"
    assert done["metrics"]["num_tool_calls"] == 3
    assert done["metrics"]["tool_latency_ms"] > 0


@pytest.mark.slow
async def test_a_failure_says_where_the_agent_raised_over_http(tmp_path):
    (tmp_path / "agents.py").write_text(RAISES)
    done = await over_http("agents:Agent", tmp_path)
    assert (done["status"], done["error_message"]) == ("ERROR", "FAILED: KeyError: 'weather_api_key'")
    assert done["extra_fields"]["failure"] == {
        "reason": "AGENT_EXCEPTION",
        "file": "agents.py",
        "line": 11,
        "frames": [{"file": "agents.py", "line": 11, "function": "Agent.run", "code": 'return {}["weather_api_key"]'}],
    }
