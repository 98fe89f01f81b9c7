# In VERL environment
from osmosis_grpc.agentic import AgenticRollout

# Use in VERL training pipeline
rollout_config = {
    "rollout_type": "agentic",
    "agent_config": {
        "agent_type": "react",
        "max_steps": 10
    }
}
