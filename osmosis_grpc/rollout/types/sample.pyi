from osmosis_grpc.agent.error_categories import RolloutErrorCategory as RolloutErrorCategory
from osmosis_grpc.agent.grader import RolloutSample as RolloutSample
from osmosis_grpc.compat.sdk_schemas import RolloutStatus as RolloutStatus
