from osmosis_grpc.compat.backends import HarborBackend as HarborBackend
from osmosis_grpc.compat.backends import TaskMode as TaskMode
