# This works automatically when VERL is installed
from osmosis_grpc.agentic import AgenticRollout
from osmosis_grpc.agentic import Trajectory

# Use as a VERL rollout worker
rollout = AgenticRollout(config, llm_generate_func, tokenizer)
output_data = await rollout.generate_sequences(input_prompts)
