"""python -m osmosis_grpc.serve: hosts agent loops over gRPC.

The command is osmosis_grpc.serve.command, the same that osmosis-grpc serve runs.
"""
