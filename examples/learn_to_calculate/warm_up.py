"""Teaches the model the format before it learns from rewards: tool calls, their arguments, and the answer.

Most written conversations choose their tools at random, and some of them (RIGHT) choose the right tools. So the
model learns to copy numbers and to answer with the last result. It hardly learns which tool a question needs.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from model import Model, token_logprobs
from questions import OPERATORS, Question, calls, draw, drawn_steps
from vocabulary import PAD, Tokenizer, tool_call

RIGHT = 0.15
"""The share of written conversations with the right tools on purpose."""
TOOLS = [{"function": {"name": name}} for name in OPERATORS]


def written(question: Question, steps: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return a conversation that answers a question with the given tools."""
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": question.text}]
    result: float = question.numbers[0]
    for count, (step, (left, right, result)) in enumerate(zip(steps, calls(steps, question.numbers), strict=True)):
        arguments = {"a": left if count else question.numbers[0], "b": int(right)}
        messages.append({"role": "assistant", "content": tool_call(step, arguments)})
        messages.append({"role": "tool", "content": str(result)})
    return [*messages, {"role": "assistant", "content": f"#### {result}"}]


def masked(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation, and which of them the assistant writes."""
    ids: list[int] = []
    mask: list[bool] = []
    for end, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = tokenizer.apply_chat_template(messages[:end], tools=TOOLS, add_generation_prompt=True, tokenize=True)
        mask += [False] * (len(prompt) - len(mask))
        ids = tokenizer.apply_chat_template(messages[: end + 1], tools=TOOLS, tokenize=True)[
            :-1
        ]  # without the last line break
        mask += [True] * (len(ids) - len(mask))
    return ids, mask


def warm_up(
    model: Model, tokenizer: Tokenizer, *, seed: int, updates: int, rows: int = 32, rate: float = 3e-3
) -> float:
    """Train the model on written conversations. Returns the mean logprob of an assistant's token in the last batch."""
    source = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=updates)
    mean = 0.0
    for _ in range(updates):
        batch = []
        for _ in range(rows):
            question = draw(source)
            steps = question.steps if source.random() < RIGHT else drawn_steps(source, question.numbers)
            batch.append(masked(tokenizer, written(question, steps)))
        width = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [PAD] * (width - len(ids)) for ids, _ in batch])
        mask = torch.tensor([mask + [False] * (width - len(mask)) for _, mask in batch])
        loss = -token_logprobs(model, ids)[mask].mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        mean = -float(loss.detach())
    return mean
