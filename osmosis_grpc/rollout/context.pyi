from osmosis_grpc.agent.context import RolloutContext as RolloutContext, get_rollout_context as get_rollout_context
from osmosis_grpc.agent.grader import GraderContext as GraderContext, RolloutSample as RolloutSample
from osmosis_grpc.agent.workflow import AgentWorkflowContext as AgentWorkflowContext
from osmosis_grpc.agent.workflow_output import SampleSource as SampleSource
