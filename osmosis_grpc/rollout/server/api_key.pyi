from osmosis_grpc.compat.sdk_functions import API_KEY_PREFIX as API_KEY_PREFIX, generate_api_key as generate_api_key, validate_api_key as validate_api_key
