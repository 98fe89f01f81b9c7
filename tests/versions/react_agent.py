"""Runs the ReAct agent over gRPC, in an environment that has the wheel with its extra `server` and nothing else."""

import asyncio
from importlib.util import find_spec

from osmosis_grpc.agentic import AgenticRolloutConfig, ReActAgent, agent_runnable
from osmosis_grpc.policies import ScriptedPolicy
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer

ABSENT = ("verl", "kodo", "torch", "openai", "yaml", "pytest")


async def main():
    assert not list(filter(find_spec, ABSENT))
    agent = ReActAgent(tools_config={"calculator": {}})
    policy = ScriptedPolicy(["Action: calculator(expression='6*7')", "Final Answer: 42"])
    async with AgentServer([agent_runnable(agent)], port=0) as server, Trainer([server.address], policy) as trainer:
        outcome = await trainer.rollout(rollout_id="r", messages=[{"role": "user", "content": "6*7?"}])
    assert outcome.finish_reason == "final_answer", outcome
    assert "Observation: " in outcome.messages[3]["content"], outcome.messages
    assert "42" in outcome.messages[3]["content"], outcome.messages
    try:
        AgenticRolloutConfig.from_yaml("{}")
    except MissingExtraError as error:
        print(error)


asyncio.run(main())
