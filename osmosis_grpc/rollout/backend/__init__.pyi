from osmosis_grpc.compat.backends import ExecutionBackend as ExecutionBackend
from osmosis_grpc.compat.backends import LocalBackend as LocalBackend
