from osmosis_grpc.agent.context import RolloutContext as RolloutContext
from osmosis_grpc.agent.loop import RolloutAgentLoop as RolloutAgentLoop
from osmosis_grpc.agent.results import RolloutResult as RolloutResult
