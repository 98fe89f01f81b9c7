from osmosis_grpc.agent.workflow import AgentWorkflowConfig as AgentWorkflowConfig, BaseConfig as BaseConfig, ConcurrencyConfig as ConcurrencyConfig, GraderConfig as GraderConfig
