"""The names that page 004 uses in its blocks without defining them there. Each block runs in a fresh copy."""
# ruff: noqa: F401 - the blocks use the imports

import json
from types import SimpleNamespace

from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig, BaseAgent, StepType, Trajectory, TrajectoryStep


async def your_llm_func(messages, **kwargs):
    """Calls a tool if the prompt has one, and then answers."""
    if "calculator" in str(messages[0]["content"]) and messages[-1]["role"] == "user" and len(messages) == 2:
        return "Thought: calculate\nAction: calculator(expression='144 ** 0.5')"
    return "Final Answer: 12"


llm_generate_func = llm_func = your_llm_func
tokenizer = None
config = AgenticRolloutConfig()
rollout = AgenticRollout(config, llm_func)
input_prompts = SimpleNamespace(non_tensor_batch={"raw_prompt": [[{"role": "user", "content": "144?"}]]})


class Asked(BaseAgent):
    async def run_trajectory(self, prompt, llm_generate_func=your_llm_func, request_id="", **kwargs):
        assert prompt is ..., "the page writes run_trajectory(...)"
        step = TrajectoryStep(step_type=StepType.FINAL_ANSWER, content="12", reward_score=1.0)
        return Trajectory(request_id="page", steps=[step])


agent = Asked()
