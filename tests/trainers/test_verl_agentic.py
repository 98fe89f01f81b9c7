"""AgenticRollout in verl: a DataProto in, and a DataProto out."""

import numpy as np
import pytest

from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatResponse, TokenBlock

pytestmark = pytest.mark.trainers
verl = pytest.importorskip("verl")


class Tokenizer:
    pad_token_id = 9


def prompts(count, **meta):
    rows = np.empty(count, dtype=object)
    for number in range(count):
        rows[number] = [{"role": "user", "content": f"question {number}"}]
    uids = np.array([f"u{number}" for number in range(count)], dtype=object)
    return verl.DataProto.from_dict(non_tensors={"raw_prompt": rows, "uid": uids}, meta_info=meta)


def llm_with(tokens):
    async def llm(messages, **params):
        number = int(messages[-1]["content"].split()[-1])
        ids = [100 + number, 101 + number]
        return ChatResponse(
            message={"role": "assistant", "content": "Final Answer: 2"},
            finish_reason="stop",
            tokens=TokenBlock.of(ids, [-0.5, -0.25]) if tokens else None,
            prompt_ids=TokenBlock.of([1] * (number + 1)).ids if tokens else None,
        )

    return llm


def rollout(tokens=True):
    interactions = {"check_answer": {"expected": "2"}}
    config = AgenticRolloutConfig(interactions_config=interactions, max_steps=1)
    return AgenticRollout(config, llm_with(tokens), Tokenizer())


@pytest.mark.row("ARL 57")
async def test_a_data_proto_has_the_tokens_and_rewards_in_the_order_of_its_prompts():
    made = await rollout().generate_sequences(prompts(3, prompt_length=4, response_length=5, global_steps=7))
    assert isinstance(made, verl.DataProto)
    made.check_consistency()
    assert made.batch["prompts"].tolist() == [[9, 9, 9, 1], [9, 9, 1, 1], [9, 1, 1, 1]]
    assert made.batch["responses"][1].tolist() == [101, 102, 9, 9, 9]
    assert made.batch["response_mask"].tolist() == [[1, 1, 0, 0, 0]] * 3
    assert made.batch["rm_scores"].sum(dim=1).tolist() == [1.0] * 3
    assert made.non_tensor_batch["uid"].tolist() == ["u0", "u1", "u2"]
    assert (made.meta_info["global_steps"], made.meta_info["timing"]) == (7, {})
    assert len(verl.DataProto.concat(made.chunk(3))) == 3


async def test_a_model_without_tokens_is_refused():
    with pytest.raises(InvalidArgument, match="cannot be trained on"):
        await rollout(tokens=False).generate_sequences(prompts(1))
