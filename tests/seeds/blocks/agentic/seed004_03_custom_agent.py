from osmosis_grpc.agentic import BaseAgent

class CustomReasoningAgent(BaseAgent):
    async def run_trajectory(self, prompt, llm_generate_func, request_id, **kwargs):
        trajectory = Trajectory(request_id=request_id)
        
        # Add initial observation
        obs_step = TrajectoryStep(
            step_type=StepType.OBSERVATION,
            content=str(prompt.get('content', prompt))
        )
        trajectory.add_step(obs_step)
        
        # Custom reasoning logic
        while self.should_continue(trajectory):
            # Generate LLM response
            messages = self.format_messages_for_llm(trajectory)
            response = await llm_generate_func(messages)
            
            # Parse and add step
            step = self.parse_llm_output(response)
            trajectory.add_step(step)
            
            # Handle tool calls if needed
            if step.tool_name:
                result_step = await self.execute_tool_call(
                    step.tool_name, step.tool_args, trajectory
                )
                trajectory.add_step(result_step)
        
        self.finalize_trajectory(trajectory)
        return trajectory

# Use custom agent
agent = CustomReasoningAgent(max_steps=8)
