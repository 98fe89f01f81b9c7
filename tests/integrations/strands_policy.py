"""A policy that calls tools, for the tests of Strands agents. It keeps its replies."""

import json

from osmosis_grpc.policies.scripted import answer


def calls(name, *arguments, number=1):
    """Return the message of a reply that calls a tool once for each arguments. An id is unique within a rollout."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"c{number}-{index}",
                "type": "function",
                "function": {"name": name, "arguments": each if isinstance(each, str) else json.dumps(each)},
            }
            for index, each in enumerate(arguments)
        ],
    }


class Replies:
    """Answers chat n of every sample with reply n, and later chats with the last reply. Keeps requests and replies."""

    def __init__(self, *replies, finish_reason=None):
        self.replies = replies
        self.finish_reason = finish_reason
        self.requests = []
        self.given = []

    def __call__(self, request):
        self.requests.append(request)
        reply = self.replies[min(request.chat_number, len(self.replies)) - 1]
        made = answer(request, reply(request) if callable(reply) else reply)
        if self.finish_reason and request.chat_number >= len(self.replies):
            made = type(made)(
                message=made.message,
                finish_reason=self.finish_reason,
                usage=made.usage,
                tokens=made.tokens,
                prompt_ids=made.prompt_ids,
            )
        self.given.append(made)
        return made
