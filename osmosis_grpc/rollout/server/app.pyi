from osmosis_gateway.app import create_app as create_app
