"""`serve --workers N`: a supervisor starts N server processes. It imports neither gRPC nor the code of agents."""

VARIABLE = "OSMOSIS_WORKER_DESCRIPTOR"
"""The environment variable with the file descriptor of a worker's connection to the supervisor."""
