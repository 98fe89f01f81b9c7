"""The ReAct agent: thoughts, actions and observations as text."""

from osmosis_grpc.agentic.built_in_agent import BuiltInAgent


class ReActAgent(BuiltInAgent):
    """Works with any model that writes text. Several actions of a reply run at once."""

    agent_type = "react"
    replayable = True
