async def run(self, ctx: RolloutContext) -> RolloutResult:
    # ... agent loop logic ...
    
    # Compute reward (required if platform expects it)
    reward = compute_reward_from_messages(messages, ctx.request.metadata)
    
    # reward must be a float, not None
    return ctx.complete(messages, finish_reason=finish_reason, reward=reward)
