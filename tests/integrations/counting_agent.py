"""An agent with many turns, and a model that plays along, for any template of byte_tokenizer.py."""

import json

from osmosis_grpc.rollout import RolloutAgentLoop
from tests.policies.byte_tokenizer import forgetful

TURNS = 20
EVERY = 5
"""After so many turns, the user says something."""
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}
QUESTION = [{"role": "system", "content": "Count."}, {"role": "user", "content": "Begin."}]


class CountingAgent(RolloutAgentLoop):
    """Calls the model 20 times, runs each call of `add`, and lets the user speak after every fifth."""

    name = "counting"

    def get_tools(self, request):
        return [ADD]

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for turn in range(1, TURNS + 1):
            reply = await ctx.chat(messages)
            messages.append(reply.message)
            for call in reply.message.get("tool_calls") or ():
                arguments = json.loads(call["function"]["arguments"])
                result = str(arguments["a"] + arguments["b"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if turn % EVERY == 0 and turn < TURNS:
                messages.append({"role": "user", "content": f"Go on after {turn}."})
        return ctx.complete(messages, reward=1.0)


def counting_model(tokenizer):
    """Sampled ids for a prompt: reply n calls add(n, 1), in tokens that encode() would not choose.

    If the prompt ends with the first tokens of the reply, only the others.
    """
    template = tokenizer.template
    begin = tokenizer.encode(
        template([{"role": "user", "content": ""}], [], True).removeprefix(
            template([{"role": "user", "content": ""}], [], False)
        )
    )

    def model(prompt):
        starts = [at for at in range(len(prompt)) if prompt[at : at + len(begin)] == begin]
        thought = "<think>Hm.</think>" if template is forgetful else ""
        turn = len(starts)
        reply = tokenizer.reply(thought, [("add", {"a": turn, "b": 1})], sampled_as="bytes" if turn % 2 else "encode")
        return reply[len(prompt) - starts[-1] - len(begin) :]

    return model


def adding_model(tokenizer):
    """Sampled ids for a prompt of a ChatML template: a call of add(2, 3), and then the answer."""

    def model(prompt):
        call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
        answered = "<|im_start|>tool" in tokenizer.decode(prompt)
        return tokenizer.encode(("#### 5" if answered else call) + "<|im_end|>")

    return model
