"""The Claude client under the name of the Agentic Rollout Library."""

import os
from typing import Any

from osmosis_grpc.compat.agentic.llm import AnthropicFunction
from osmosis_grpc.protocol.errors import InvalidArgument

MODEL = "ANTHROPIC_MODEL"


class ClaudeAPIClient(AnthropicFunction):
    """An AnthropicFunction whose model can come from the variable ANTHROPIC_MODEL.

    Raises InvalidArgument without a model.
    """

    def __init__(self, api_key: str | None = None, *, model: str | None = None, **config: Any) -> None:
        chosen = model or os.environ.get(MODEL)
        if not chosen:
            raise InvalidArgument("model", f"is missing; give model, or set {MODEL}")
        super().__init__(model=chosen, api_key=api_key, **config)
