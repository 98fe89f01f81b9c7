"""The Osmosis SDK's osmosis_ai.rollout.testing, looked up when first used: it needs the extra "server"."""

from typing import TYPE_CHECKING, Any

from osmosis_grpc.rollout._lazy import lookup

if TYPE_CHECKING:
    from osmosis_gateway.mock_trainer import RolloutCompletionTracker as RolloutCompletionTracker
    from osmosis_gateway.mock_trainer import create_mock_trainer_app as create_mock_trainer_app
    from osmosis_gateway.mock_trainer import fake_prompt_token_ids as fake_prompt_token_ids
    from osmosis_gateway.mock_trainer import fake_token_ids as fake_token_ids

__all__ = ["RolloutCompletionTracker", "create_mock_trainer_app", "fake_prompt_token_ids", "fake_token_ids"]
_WHERE = {"osmosis_gateway.mock_trainer": __all__}


def __getattr__(name: str) -> Any:
    return lookup(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
