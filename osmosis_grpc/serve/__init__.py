"""`python -m osmosis_grpc.serve`: hosts agent loops over gRPC.

It runs the same command as `osmosis-grpc serve`, which is in osmosis_grpc.serve.command.
"""
