from osmosis_grpc.agent.error_categories import GraderStatus as GraderStatus
