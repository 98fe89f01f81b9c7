# Process multiple prompts concurrently
prompts = [
    {"content": "Solve math problem: 15 * 24"},
    {"content": "Write Python code to sort a list"},
    {"content": "Explain quantum computing"}
]

config = AgenticRolloutConfig(concurrent_requests=3)
rollout = AgenticRollout(config=config, llm_generate_func=llm_func)

# Process batch
trajectories = []
for i, prompt in enumerate(prompts):
    trajectory = await rollout.agent.run_trajectory(
        prompt=prompt,
        llm_generate_func=llm_func,
        request_id=f"batch_{i}"
    )
    trajectories.append(trajectory)
