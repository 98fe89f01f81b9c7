"""`serve --workers N`: a supervisor starts N server processes. It imports neither gRPC nor the code of agents."""
