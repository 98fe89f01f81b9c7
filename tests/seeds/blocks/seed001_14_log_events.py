async def run(self, ctx: RolloutContext) -> RolloutResult:
    ctx.log_event("agent_start", 
                  num_messages=len(ctx.request.messages))
    
    # ... agent logic ...
    
    ctx.log_event("llm_response",
                  has_tools=result.has_tool_calls,
                  tokens=result.usage.get("total_tokens"))
    
    ctx.log_event("agent_complete",
                  finish_reason=finish_reason,
                  reward=reward)
