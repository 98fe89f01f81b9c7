from osmosis_gateway.app import DEFAULT_HOST as DEFAULT_HOST
from osmosis_gateway.app import DEFAULT_PORT as DEFAULT_PORT
from osmosis_gateway.app import ServeError as ServeError
from osmosis_gateway.app import create_app as create_app
from osmosis_gateway.app import serve_agent_loop as serve_agent_loop
from osmosis_gateway.rollout_server import create_rollout_server as create_rollout_server
from osmosis_grpc.compat.sdk_validation import validate_and_report as validate_and_report
