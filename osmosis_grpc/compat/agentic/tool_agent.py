"""The tool agent: calls tools as the model's API has them, several in one reply."""

from osmosis_grpc.compat.agentic.built_in_agent import BuiltInAgent
from osmosis_grpc.compat.agentic.reply_formats import FORMATS


class ToolAgent(BuiltInAgent):
    """Needs a model that calls tools. It ends with the first reply that calls none."""

    agent_type = "tool"
    reply_format = FORMATS["native"]
    replayable = True
