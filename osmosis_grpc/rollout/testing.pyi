from osmosis_gateway.mock_trainer import RolloutCompletionTracker as RolloutCompletionTracker
from osmosis_gateway.mock_trainer import create_mock_trainer_app as create_mock_trainer_app
from osmosis_gateway.mock_trainer import fake_prompt_token_ids as fake_prompt_token_ids
from osmosis_gateway.mock_trainer import fake_token_ids as fake_token_ids

__all__ = ["RolloutCompletionTracker", "create_mock_trainer_app", "fake_prompt_token_ids", "fake_token_ids"]
