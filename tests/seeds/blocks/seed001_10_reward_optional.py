async def run(self, ctx: RolloutContext) -> RolloutResult:
    # ... agent loop logic ...
    
    # No reward computation needed
    return ctx.complete(messages, finish_reason=finish_reason, reward=None)
