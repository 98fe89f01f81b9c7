"""Sets variables that gRPC reads at its import, so import this module before grpc. It restores the environment.

- GRPC_ENABLE_FORK_SUPPORT: gRPC's fork handlers crash some of the children that are forked while a channel is open,
  also children that use no gRPC.
- GRPC_VERBOSITY: gRPC Core's INFO lines stay off stderr, because this package raises the same errors itself. GRPC_TRACE
  needs these lines.

Variables that the user has set stay as they are. If grpc was imported before, nothing is changed.
"""

import os

_wanted = {"GRPC_ENABLE_FORK_SUPPORT": "0"} | ({} if "GRPC_TRACE" in os.environ else {"GRPC_VERBOSITY": "ERROR"})
_set = {name: value for name, value in _wanted.items() if name not in os.environ}
os.environ.update(_set)
try:
    import grpc  # noqa: F401
finally:
    for _name in _set:
        del os.environ[_name]
