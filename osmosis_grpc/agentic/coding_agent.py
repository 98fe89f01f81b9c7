"""The coding agent: explores a repository in a sandbox, edits it, and runs its tests."""

from osmosis_grpc.agentic.built_in_agent import BuiltInAgent
from osmosis_grpc.agentic.reply_formats import FORMATS


class CodingAgent(BuiltInAgent):
    """Needs a model that calls tools."""

    agent_type = "coding"
    reply_format = FORMATS["native"]
