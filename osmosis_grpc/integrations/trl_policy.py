"""The policy of a GRPOTrainer: its own model, in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from osmosis_grpc.policies import ChatRenderer, TokenPolicy
from osmosis_grpc.policies.transformers import TransformersGenerator
from osmosis_grpc.protocol.errors import FailedPrecondition

if TYPE_CHECKING:
    from trl import GRPOTrainer

BATCH = 64
"""The most chats that the model answers together."""
_NEUTRAL = {"top_k": 0, "min_p": None, "repetition_penalty": 1.0}
"""Sampling parameters of TRL with the values that change nothing."""


def sampling_params(trainer: "GRPOTrainer") -> dict[str, Any]:
    """Return the sampling parameters of a GRPOConfig, under the names of OpenAI and vLLM.

    A reply may have as many tokens as a completion.
    """
    params = {"temperature": trainer.temperature, "top_p": trainer.top_p, "max_tokens": trainer.max_completion_length}
    return params | {
        name: value for name, neutral in _NEUTRAL.items() if (value := getattr(trainer, name)) not in (neutral, None)
    }


def model_policy(trainer: "GRPOTrainer") -> TokenPolicy:
    """Return a policy that samples from the model of the trainer. Raises FailedPrecondition if the model is split."""
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or trainer.use_vllm:
        raise FailedPrecondition(
            "the model of the trainer is not whole in this process (FSDP, DeepSpeed or use_vllm); "
            "pass policy=, for example OpenAIPolicy(URL, MODEL) or a TokenPolicy"
        )
    model = trainer.accelerator.unwrap_model(trainer.model)
    return TokenPolicy(
        ChatRenderer(trainer.processing_class), TransformersGenerator(model, trainer.processing_class, batch=BATCH)
    )


@contextmanager
def sampling_mode(trainer: "GRPOTrainer") -> Iterator[None]:
    """Put the model into evaluation mode: without dropout, and without gradient checkpointing, which has no cache."""
    model = trainer.model
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
