from osmosis_grpc.compat.backends import ExecutionBackend as ExecutionBackend, LocalBackend as LocalBackend
