"""Runs one rollout of the example agent examples/calculator, and prints what to train on.

python calculator.py 127.0.0.1:50051
"""

import asyncio
import sys

from gen.osmosis.rollout import v1
from osmosis_trainer import Chat, Reply, Trainer


async def policy(chat: Chat) -> Reply:
    """Calls a tool once, and answers with its result. A real policy samples from a model, token-in, token-out."""
    tokens = [byte for message in chat.messages[chat.known :] for byte in (message.text or "").encode()]  # tokenizer
    call = v1.ToolCall(id="call_1", function=v1.FunctionCall(name="multiply", arguments='{"a": 6, "b": 7}'))
    last = chat.messages[-1]
    if last.role == "tool":
        message = v1.Message(role="assistant", text=f"#### {last.text}")
    else:
        message = v1.Message(role="assistant", text="", tool_calls=[call])
    return Reply(message, prompt=[*chat.parent_ids, *tokens], ids=[300, 301], logprobs=[-0.1, -0.2])


async def main(address: str) -> None:
    spec = v1.RolloutSpec(messages=[v1.Message(role="user", text="What is 6 * 7?")], label="42")
    async with Trainer(address, policy) as trainer:
        outcome = await trainer.rollout(spec)
    print(outcome.status.name, "reward", outcome.reward)
    for segment in outcome.samples[0].segments:  # train on these
        print(len(segment.ids), "tokens, mask runs", segment.mask_runs, "and", len(segment.logprobs), "logprobs")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
