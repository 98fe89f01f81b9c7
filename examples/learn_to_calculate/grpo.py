"""One update of GRPO: a few gradient steps on a batch, with PPO's clipped ratio."""

import torch
from model import Model, token_logprobs

from osmosis_grpc.trainer import Batch

STEPS, CLIP = 2, 0.2
TOLERANCE = 1e-4
"""The greatest difference between a recorded logprob and the same logprob, computed anew."""


class WrongData(Exception):
    """The recomputed logprobs differ from the logprobs that were recorded while the model sampled."""


def check_logprobs(computed: torch.Tensor, recorded: torch.Tensor) -> float:
    """Return the greatest difference. Raises WrongData if it is above TOLERANCE."""
    if not len(recorded):
        raise WrongData("the batch has no sampled tokens")
    difference = float((computed - recorded).abs().max())
    if not difference <= TOLERANCE:
        raise WrongData(f"a logprob differs by {difference:.3g} from the recorded one, and {TOLERANCE:g} is allowed")
    return difference


def train(model: Model, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """Train on a batch with advantages. Returns the greatest difference of check_logprobs() at the first step.

    `batch` is padded on the right. Attention is causal, so padding changes no token before it.
    """
    tensors = batch.torch()
    mask, recorded = tensors.loss_mask, tensors.logprobs[tensors.loss_mask]
    advantage = tensors.advantages[:, None].expand_as(mask)[mask]
    difference = 0.0
    for step in range(STEPS):
        logprobs = token_logprobs(model, tensors.ids)[mask]
        if step == 0:
            difference = check_logprobs(logprobs.detach(), recorded)
        ratio = torch.exp(logprobs - recorded)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        optimizer.zero_grad()
        (-gain.mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return difference
