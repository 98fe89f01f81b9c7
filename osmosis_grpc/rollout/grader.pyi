from osmosis_grpc.agent.grader import Grader as Grader
from osmosis_grpc.agent.grader import GraderContext as GraderContext
