"""LLM functions of the tests: they give fixed replies and note what they were asked."""

import asyncio
import json

from osmosis_grpc.protocol.types import ChatResponse, TokenBlock


class Script:
    """Gives reply n to the n-th reply of a conversation, so that rollouts at once do not disturb each other."""

    def __init__(self, *replies, seconds=0.0, tokens=False):
        self.replies, self.seconds, self.tokens = replies, seconds, tokens
        self.asked, self.params = [], []
        self.running = self.most = 0

    async def __call__(self, messages, **params):
        self.asked.append(messages)
        self.params.append(params)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)  # the model takes time
        finally:
            self.running -= 1
        turn = sum(message["role"] == "assistant" for message in messages)
        reply = self.replies[min(turn, len(self.replies) - 1)]
        if isinstance(reply, Exception):
            raise reply
        return self._with_tokens(reply, turn) if self.tokens else reply

    def _with_tokens(self, reply, turn):
        """The reply with 3 tokens for each turn; the prompt has those of the turns before it."""
        prompt = [1, 2] + [token for n in range(turn) for token in (10 * n + 11, 10 * n + 12, 10 * n + 13, 7)]
        message = {"role": "assistant", "content": reply} if isinstance(reply, str) else reply
        return ChatResponse(
            message=message,
            tokens=TokenBlock.of([10 * turn + 11, 10 * turn + 12, 10 * turn + 13], [-0.1, -0.2, -0.3]),
            prompt_ids=TokenBlock.of(prompt).ids,
            usage={"prompt_tokens": len(prompt), "completion_tokens": 3, "total_tokens": len(prompt) + 3},
        )


def calls(*named, text=None):
    """An assistant message with tool calls: calls(("add", {"a": 1}), ...)."""
    made = [
        {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(named, 1)
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}


def kinds(trajectory):
    return [step.step_type.value for step in trajectory.steps]
