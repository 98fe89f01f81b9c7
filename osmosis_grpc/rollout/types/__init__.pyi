from osmosis_grpc.agent.error_categories import GraderStatus as GraderStatus, RolloutErrorCategory as RolloutErrorCategory
from osmosis_grpc.agent.grader import RolloutSample as RolloutSample
from osmosis_grpc.agent.workflow import AgentWorkflowConfig as AgentWorkflowConfig, BaseConfig as BaseConfig, ConcurrencyConfig as ConcurrencyConfig, GraderConfig as GraderConfig
from osmosis_grpc.agent.workflow_output import AgentWorkflowOutput as AgentWorkflowOutput
from osmosis_grpc.compat.sdk_schemas import MessageDict as MessageDict, Messages as Messages, RolloutStatus as RolloutStatus
