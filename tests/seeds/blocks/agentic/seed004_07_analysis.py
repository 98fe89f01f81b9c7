# Analyze trajectory performance
trajectory = await agent.run_trajectory(...)

# Get trajectory statistics
print(f"Total steps: {len(trajectory.steps)}")
print(f"Tool calls: {len(trajectory.get_tool_calls())}")
print(f"Final reward: {trajectory.get_total_reward()}")

# Export trajectory
trajectory_dict = trajectory.to_dict()
with open("trajectory.json", "w") as f:
    json.dump(trajectory_dict, f, indent=2)
