"""The names of the older systems that osmosis_grpc does not have where programs look for them."""

_AGENTIC = "import {} from osmosis_grpc.agentic"
_REWARD = "compute the reward in the agent and pass it to ctx.complete(messages, reward=...)"
_ADDRESS = "a server is registered nowhere, so it does not look up its own address"
_IP = "use the module ipaddress of the standard library"
_KEY = "make a token, for example with secrets.token_urlsafe(32), and pass it as api_key"

INSTEAD = {
    "AgenticRollout": _AGENTIC,
    "AgenticRolloutConfig": _AGENTIC,
    "BaseAgent": _AGENTIC,
    "BaseAgenticTool": _AGENTIC.format("BaseTool"),
    "StepType": _AGENTIC,
    "Trajectory": _AGENTIC,
    "TrajectoryStep": _AGENTIC,
    "LocalBackend": "serve the workflow with osmosis-grpc serve -m entrypoint.py, or run it with "
    "osmosis_grpc.testing.run_rollout",
    "MissingAPIKeyError": _REWARD,
    "ModelNotFoundError": _REWARD,
    "ProviderRequestError": _REWARD,
    "RubricResult": _REWARD,
    "evaluate_rubric": _REWARD,
    "osmosis_rubric": _REWARD,
    "PublicIPDetectionError": _ADDRESS,
    "detect_from_cloud_metadata": _ADDRESS,
    "detect_from_external_services": _ADDRESS,
    "detect_public_ip": _ADDRESS,
    "is_private_ip": _IP,
    "is_valid_hostname_or_ip": _IP,
    "validate_ipv4": _IP,
    "generate_api_key": _KEY,
    "validate_api_key": _KEY,
    "patch_httpx_for_mock_trainer": "run create_mock_trainer_app() with uvicorn, and pass its URL as server_url",
}
"""What to use instead, by name."""


def missing_name(name: str, module: str) -> str | None:
    """Return the sentence for a name that `module` does not have; None for a name that no older system has."""
    return f"{name} is not in {module}: {INSTEAD[name].format(name)}" if name in INSTEAD else None
