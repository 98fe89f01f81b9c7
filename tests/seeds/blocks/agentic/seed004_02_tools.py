from osmosis_grpc.agentic import BaseAgent
from osmosis_grpc.agentic import Trajectory, TrajectoryStep, StepType

class CalculatorTool:
    async def execute(self, expression: str):
        # Safe evaluation of mathematical expressions
        return {"result": eval(expression), "expression": expression}

# Create agent with tools
config = AgenticRolloutConfig(agent_type="react", max_steps=5)
rollout = AgenticRollout(config=config, llm_generate_func=your_llm_func)

# Add tools
rollout.tools = {"calculator": CalculatorTool()}
rollout.agent.set_tools(rollout.tools)

# Run with tool usage
result = await rollout.agent.run_trajectory(
    prompt={"content": "Calculate the square root of 144"},
    llm_generate_func=your_llm_func,
    request_id="calc_example"
)
