import asyncio
from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig
from osmosis_grpc.agentic import Trajectory, TrajectoryStep, StepType

# Create configuration
config = AgenticRolloutConfig(
    agent_type="react",
    max_steps=10,
    max_tokens_per_step=512,
    temperature=0.7
)

# Define your LLM function (OpenAI SDK compatible)
async def llm_generate_func(messages, max_tokens=512, temperature=0.7, **kwargs):
    # Your LLM implementation here
    # Works with OpenAI, Claude, or any compatible API
    pass

# Create rollout instance
rollout = AgenticRollout(config=config, llm_generate_func=llm_generate_func)

# Run trajectory
prompt_data = {"content": "Solve this math problem: What is 15 * 24?"}
trajectory = await rollout.agent.run_trajectory(
    prompt=prompt_data,
    llm_generate_func=llm_generate_func,
    request_id="math_example"
)

print(f"Final response: {trajectory.get_final_response()}")
print(f"Total steps: {len(trajectory.steps)}")
