from osmosis_grpc.compat.backends import HarborBackend as HarborBackend, TaskMode as TaskMode
