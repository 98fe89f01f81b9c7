"""The names of the Agentic Rollout Library: agents, their configuration, and the trajectories that they make.

`__init__.pyi` lists the names, for this module and for type checkers. `react`, `tool` and `coding` are the agents for
`serve -m osmosis_grpc.agentic:NAME`.
"""

from osmosis_grpc.compat import older_paths

globals().update(older_paths.contents("agentic"))
globals().update({name: older_paths.get("agentic", name) for name in older_paths.names_of("agentic")})
