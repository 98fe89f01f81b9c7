"""A small Llama-like model in torch: embeddings, rotary attention, gated layers. About 100,000 weights."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Cache = list[tuple[Tensor, Tensor]]
"""The keys and values of each layer."""


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, cached: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Any]:
        rows, length, width = x.shape
        query, key, value = self.inputs(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = rotated(query, rotation), rotated(key, rotation)
        if cached is not None:
            key, value = torch.cat([cached[0], key], dim=2), torch.cat([cached[1], value], dim=2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=cached is None)
        return self.output(mixed.transpose(1, 2).reshape(rows, length, width)), (key, value)


class Layer(nn.Module):
    """Attention and a gated feed-forward part, each with its norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.attention = Attention(width, heads)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, cached: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Any]:
        mixed, cached = self.attention(self.norms[0](x), rotation, cached)
        x = x + mixed
        inner = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(inner)) * self.up(inner)), cached


class Model(nn.Module):
    """Returns the logits of the next token at each position."""

    def __init__(self, tokens: int, *, width: int = 64, heads: int = 4, layers: int = 2, context: int = 512) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(tokens, width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.5)
        size = width // heads
        angles = torch.outer(torch.arange(context), 100.0 ** -(torch.arange(0, size, 2) / size))
        self.register_buffer("rotations", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, ids: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Return the logits, shape (rows, length, tokens), and the cache for the tokens that follow.

        Without a cache, `ids` are whole rows. With a cache, `ids` are the one token that follows in each row.
        """
        first = 0 if cache is None else cache[0][0].shape[2]
        rotation = self.rotations[first : first + ids.shape[1]]
        x, kept = self.embedding(ids), []
        for number, layer in enumerate(self.layers):
            x, cached = layer(x, rotation, None if cache is None else cache[number])
            kept.append(cached)
        return self.head(self.norm(x)), kept


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """Return the vectors, each pair of their numbers rotated by its position."""
    pairs = torch.view_as_complex(x.float().contiguous().view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).flatten(-2)


def token_logprobs(model: Model, ids: Tensor) -> Tensor:
    """Return the logprob of each token, shape (rows, length). The first token of a row has 0.0."""
    logits, _ = model(ids[:, :-1])
    scores = torch.log_softmax(logits, dim=-1)
    return functional.pad(scores.gather(2, ids[:, 1:, None]).squeeze(2), (1, 0))
