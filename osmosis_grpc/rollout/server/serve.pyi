from osmosis_gateway.app import DEFAULT_HOST as DEFAULT_HOST
from osmosis_gateway.app import DEFAULT_PORT as DEFAULT_PORT
from osmosis_gateway.app import ServeError as ServeError
from osmosis_gateway.app import serve_agent_loop as serve_agent_loop
from osmosis_grpc.compat.sdk_validation import validate_and_report as validate_and_report
