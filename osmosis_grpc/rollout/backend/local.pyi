from osmosis_grpc.compat.backends import LocalBackend as LocalBackend
