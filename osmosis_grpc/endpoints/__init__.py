"""Base URLs: an HTTP address for each rollout, at which an unmodified program gets the trainer's replies.

The program may use an API of OpenAI, Anthropic or Gemini. Processes that run rollouts import this package, so that
agents can ask for the base URL of their rollout.
"""

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from osmosis_grpc.agent.rollout_scope import provide_base_urls


def _open(context: Any, loop: asyncio.AbstractEventLoop) -> AbstractContextManager[Any]:
    """Open an endpoint. Import the HTTP server only now, when the first agent needs it."""
    from osmosis_grpc.endpoints.lazy_endpoint import lazy_endpoint

    return lazy_endpoint(context, loop)


provide_base_urls(_open)
