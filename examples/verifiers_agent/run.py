"""A task of verifiers whose agent is the calculator of an agent server. Needs the extra `verifiers`.

python examples/verifiers_agent/run.py 127.0.0.1:50051 http://127.0.0.1:8000/v1 MODEL

The model server is OpenAI-compatible. For training, use vf.TrainClientConfig, which asks vLLM for tokens.
"""

import asyncio
import sys

import verifiers.v1 as vf


class Question(vf.TaskData):
    """A question with its answer, which the agent server gets as the label."""

    answer: str


async def main(server: str, base_url: str, model: str) -> None:
    config = vf.AgentConfig(
        harness={"id": "osmosis_agent", "servers": [server]},
        runtime={"type": "subprocess"},
        model=model,
        client=vf.EvalClientConfig(base_url=base_url, api_key_var="OPENAI_API_KEY"),
    )
    task = vf.Task(Question(prompt="What is 2 + 3?", answer="5"), vf.TaskConfig())
    trace = await vf.Agent(config).run(task)
    for node in trace.nodes:
        print(node.message.role, getattr(node.message, "content", None) or node.message)
    print("reward", trace.reward, *(error.message for error in trace.errors))


asyncio.run(main(*sys.argv[1:]))
