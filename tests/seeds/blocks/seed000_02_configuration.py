app = create_app(
    agent_loop,
    max_concurrent=100,      # Max concurrent rollouts
    record_ttl_seconds=3600, # How long to keep completed records
)
