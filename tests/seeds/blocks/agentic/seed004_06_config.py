config = AgenticRolloutConfig(
    # Agent settings
    agent_type="react",                    # Agent type: "react", "coding", "tool"
    max_steps=10,                         # Maximum trajectory steps
    max_tokens_per_step=512,              # Max tokens per generation
    temperature=0.7,                      # LLM sampling temperature
    
    # Tool configuration
    tools_config={                        # Tool-specific settings
        "calculator": {"precision": 10},
        "search": {"max_results": 5}
    },
    
    # Performance settings
    batch_size=1,                         # Batch processing size
    concurrent_requests=4,                # Concurrent request limit
    
    # Output settings
    include_trajectory_in_output=True,    # Include full trajectory
    save_trajectories=True,               # Save to disk
    trajectory_save_path="./trajectories" # Save location
)
