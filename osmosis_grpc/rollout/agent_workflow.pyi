from osmosis_grpc.agent.workflow import AgentWorkflow as AgentWorkflow
