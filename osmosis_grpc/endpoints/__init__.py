"""Base URLs: an HTTP address for each rollout, where unmodified OpenAI or Anthropic programs get the trainer's replies.

Processes that run rollouts import this package, so that agents can ask for the base URL of their rollout.
"""

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from osmosis_grpc.agent.rollout_scope import provide_base_urls


def _open(context: Any, loop: asyncio.AbstractEventLoop) -> AbstractContextManager[Any]:
    """Open an endpoint. Imports the HTTP server only when the first agent needs it."""
    from osmosis_grpc.endpoints.lazy_endpoint import lazy_endpoint

    return lazy_endpoint(context, loop)


provide_base_urls(_open)
