"""Keeps gRPC Core's INFO lines off a trainer's stderr, because this package raises the same errors itself.

Core reads GRPC_VERBOSITY when grpc is imported, so import this module before grpc. This module restores the
environment. It does nothing if the user has set GRPC_VERBOSITY or GRPC_TRACE, or if grpc was imported before.
"""

import os

if "GRPC_VERBOSITY" not in os.environ and "GRPC_TRACE" not in os.environ:
    os.environ["GRPC_VERBOSITY"] = "ERROR"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ["GRPC_VERBOSITY"]
