"""The ReAct agent: thoughts, actions and observations as text."""

from osmosis_grpc.compat.agentic.built_in_agent import BuiltInAgent


class ReActAgent(BuiltInAgent):
    """Works with any model that writes text. Several actions of a reply run at once, at most `max_parallel_calls`.

    The rollout ends after `max_parse_errors` replies in a row without an action and without an answer. `system_prompt`
    stands before the prompt that describes the tools. ToolAgent has the same arguments.
    """

    agent_type = "react"
    replayable = True
