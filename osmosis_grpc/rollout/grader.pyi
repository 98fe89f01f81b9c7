from osmosis_grpc.agent.grader import Grader as Grader, GraderContext as GraderContext
