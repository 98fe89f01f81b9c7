from osmosis_gateway.app import DEFAULT_HOST as DEFAULT_HOST, DEFAULT_PORT as DEFAULT_PORT, ServeError as ServeError, serve_agent_loop as serve_agent_loop
from osmosis_grpc.compat.sdk_validation import validate_and_report as validate_and_report
