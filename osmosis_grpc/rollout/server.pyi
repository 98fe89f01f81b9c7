from osmosis_gateway.app import create_app as create_app
from osmosis_gateway.app import serve_agent_loop as serve_agent_loop

__all__ = ["create_app", "serve_agent_loop"]
