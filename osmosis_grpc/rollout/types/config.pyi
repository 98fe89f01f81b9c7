from osmosis_grpc.agent.workflow import AgentWorkflowConfig as AgentWorkflowConfig
from osmosis_grpc.agent.workflow import BaseConfig as BaseConfig
from osmosis_grpc.agent.workflow import ConcurrencyConfig as ConcurrencyConfig
from osmosis_grpc.agent.workflow import GraderConfig as GraderConfig
