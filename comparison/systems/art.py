"""ART: the agent runs in the trainer's process, and a trajectory records what its HTTP client sends and gets.

The rows are those that ART's backends train on: the histories of a trajectory, where a sampled token is trained in the
first that has it. They refuse ids that the engine did not give. ART's vLLM answers every request with logprobs and ids.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import art
from art.trajectories import TokenFlag
from openai import AsyncOpenAI
from transformers import AutoTokenizer

from comparison import agents, cases
from comparison.adapter import Delivered, Place, Rollout, Row

AS_ITS_ENGINE = {"logprobs": True, "extra_body": {"return_token_ids": True, "return_tokens_as_token_ids": True}}


@asynccontextmanager
async def open_system(place: Place) -> AsyncIterator[Rollout]:
    """Open a client of the engine."""
    tokenizer = AutoTokenizer.from_pretrained(place.model)
    async with AsyncOpenAI(base_url=place.engine, api_key="none", max_retries=0) as client:
        ask = agents.openai_chat(client, "mock", None)

        async def chat(messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
            return await ask(messages, **options, **AS_ITS_ENGINE)

        async def run(case: str, key: str) -> None:
            agent, ended = None, False
            try:
                agent, ended = await cases.run(case, key, chat), True
            except BaseException as error:
                agent = getattr(error, "agent", None)
                raise
            finally:
                with Path(place.agents_log).open("a") as log:
                    agents.record(log, agent, ended)

        async def rollout(case: str, key: str, limit: float) -> Delivered:
            try:
                trajectory = await asyncio.wait_for(art.trajectory(run(case, key)), limit)
            except Exception as error:  # ART leaves such a trajectory out of its group
                return Delivered([], f"agent: {type(error).__name__}: {error}"[:300])
            tokenized = trajectory.tokenize(
                multi_history=True, model="mock", base_model=place.model, tokenizer=tokenizer
            )
            masks = tokenized.first_occurrence_masks(where=TokenFlag.SAMPLED)
            rows = [_row(history, mask) for history, mask in zip(tokenized.histories, masks, strict=True) if any(mask)]
            exact = all(flag & TokenFlag.EXACT for history in tokenized.histories for flag in history.flags)
            bare = any(math.isnan(p) for row in rows for p, on in zip(row.logprobs or [], row.mask, strict=True) if on)
            if not exact or bare:
                return Delivered([], f"its backend refuses the trajectory: exact ids {exact}, logprobs {not bare}")
            return Delivered(rows)

        yield rollout


def _row(history: Any, mask: Any) -> Row:
    logprobs = [logprob if trained else 0.0 for logprob, trained in zip(history.logprobs, mask, strict=True)]
    return Row(list(history.tokens), [int(trained) for trained in mask], logprobs)
