"""The scenarios: what is asked, what the model says, and what the trainer must get in the end.

A scenario tells the whole conversation. `messages` is what the rollout starts from, `added`
what follows: its assistant messages are the model's script, in order, and everything between
them is what the agent must have made of them. So the expected counters are counted from the
conversation, by nobody's code but this file's.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

Message = dict[str, Any]

MESSAGE_TOKENS = 4
"""Tokens of a message that no model sampled, as osmosis_grpc.policies.formula makes them."""
REPLY_TOKENS = 12
"""Tokens of every reply, as both trainers make them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What the trainer answers instead of a reply, once."""

    kind: Literal["unavailable", "busy", "broken"]
    """Away (500; UNAVAILABLE), busy (429; RESOURCE_EXHAUSTED), or broken (500; INTERNAL)."""
    retry_after: float | None = None
    """Seconds, a whole number: HTTP's header knows no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An outcome, as either kind of trainer got it, without its latencies."""

    status: Literal["COMPLETED", "ERROR"]
    finish_reason: str
    messages: list[Message]
    reward: float | None
    num_llm_calls: int
    num_tool_calls: int
    prompt_tokens: int
    response_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One rollout."""

    name: str
    messages: list[Message]
    added: list[Message]
    """The conversation that follows, as far as the outcome tells it."""

    status: Literal["COMPLETED", "ERROR"] = "COMPLETED"
    finish_reason: str = "stop"
    """The outcome's."""
    reward: float | None = None
    error: str = ""
    """What the outcome's error text must contain."""

    last_reply: str = "stop"
    """Why the sampler stopped at a reply without tool calls."""
    tells_tokens: bool = True
    """Whether the trainer tells token ids and logprobs, or only their counts."""
    params: dict[str, Any] = field(default_factory=dict)
    max_turns: int = 10
    max_tokens_total: int = 8192
    metadata: dict[str, Any] = field(default_factory=dict)
    """Instructions for the agent: see agent.py. The reward is one."""
    faults: tuple[Fault, ...] = ()
    """What the first tries of the first chat meet."""
    latency: float = 0.0
    """Seconds that every reply takes."""
    inits: int = 1
    """How often the Init is sent, all at once."""

    def __post_init__(self) -> None:
        if self.reward is not None:
            object.__setattr__(self, "metadata", {"reward": self.reward, **self.metadata})

    @property
    def script(self) -> list[tuple[Message, str]]:
        """The model's replies, each with its finish reason."""
        replies = [message for message in self.added if message["role"] == "assistant"]
        return [(reply, "tool_calls" if reply.get("tool_calls") else self.last_reply) for reply in replies]

    @property
    def histories(self) -> list[list[Message]]:
        """What the model is asked with, reply by reply."""
        whole = self.messages + self.added
        return [whole[:at] for at in range(len(self.messages), len(whole)) if whole[at]["role"] == "assistant"]

    @property
    def outcome(self) -> Outcome:
        """What the trainer must get."""
        prompt_tokens, so_far = 0, MESSAGE_TOKENS * len(self.messages)
        for message in self.added:
            if message["role"] == "assistant":
                prompt_tokens += so_far
                so_far += REPLY_TOKENS
            else:
                so_far += MESSAGE_TOKENS
        calls = len(self.script)
        return Outcome(
            status=self.status,
            finish_reason=self.finish_reason,
            messages=self.messages + self.added,
            reward=self.reward,
            num_llm_calls=calls,
            num_tool_calls=sum(message["role"] == "tool" for message in self.added),
            prompt_tokens=prompt_tokens,
            response_tokens=REPLY_TOKENS * calls,
        )


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def says(content: Any) -> Message:
    return {"role": "assistant", "content": content}


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*tool_calls: dict[str, Any], content: Any = "") -> Message:
    return {"role": "assistant", "content": content, "tool_calls": list(tool_calls)}


def tool(call_id: str, content: str) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": call_id}


ASK = [{"role": "system", "content": "Use the tools."}, user("What is 2 + 3?")]
ADD = calls(call("c1", "add", '{"a": 2, "b": 3}'))
PARTS = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": "data:,x", "detail": None}},
]
NON_ASCII = "größer als 2 Ω? 日本語 \u2028 👩‍👧 \x00 \U0010ffff"

SCENARIOS = [
    Scenario(name="plain-answer", messages=ASK, added=[says("5")], reward=1.0),
    Scenario(
        name="one-tool",
        messages=ASK,
        added=[ADD, tool("c1", "5"), says("It is 5.")],
        reward=0.5,
        params={"temperature": 0.5, "top_p": 0.9, "max_tokens": 64, "stop": ["\n\n"]},
    ),
    Scenario(
        name="parallel-tools",
        messages=ASK,
        reward=-1.5,
        added=[
            calls(
                call("c1", "add", '{"a": 2, "b": 3}'),
                call("c2", "add", '{"a": 20, "b": 30}'),
                call("c3", "echo", '{"text": "three"}'),
            ),
            tool("c1", "5"),
            tool("c2", "50"),
            tool("c3", "three"),
            says("5, 50 and three"),
        ],
    ),
    Scenario(
        name="tool-error",
        messages=ASK,
        reward=1.0,
        added=[
            calls(call("c1", "divide", '{"a": 2, "b": 0}')),
            tool("c1", "Error: division by zero"),
            says("That cannot be divided."),
        ],
    ),
    Scenario(
        name="unknown-tool",
        messages=ASK,
        reward=1.0,
        added=[
            calls(call("c1", "teleport", "{}"), call("c2", "add", '{"a": 2, "b": 3}')),
            tool("c1", "Error: Unknown tool: teleport"),
            tool("c2", "5"),
            says("5"),
        ],
    ),
    Scenario(
        name="bad-tool-arguments",
        messages=ASK,
        reward=1.0,
        added=[
            calls(
                call("c1", "add", '{"a": 2, '),
                call("c2", "add", "[2, 3]"),
                call("c3", "add", '{"a": 2, "c": 3}'),
                call("c4", "echo", ""),
            ),
            tool("c1", "Error: bad arguments"),
            tool("c2", "Error: bad arguments"),
            tool("c3", "Error: bad arguments"),
            tool("c4", "Error: bad arguments"),
            says("I give up."),
        ],
    ),
    Scenario(
        name="max-turns",
        messages=ASK,
        max_turns=2,
        finish_reason="max_turns",
        reward=0.25,
        added=[ADD, tool("c1", "5"), calls(call("c2", "echo", '{"text": "again"}')), tool("c2", "again")],
    ),
    Scenario(
        name="max-tokens",
        messages=ASK,
        max_tokens_total=2 * REPLY_TOKENS,
        finish_reason="max_tokens",
        added=[ADD, tool("c1", "5"), calls(call("c2", "add", '{"a": 1, "b": 1}'))],
        reward=0.25,
    ),
    Scenario(
        name="agent-exception",
        messages=ASK,
        status="ERROR",
        finish_reason="error",
        error="the environment broke: größer",
        added=[ADD, tool("c1", "5"), says("It is 5.")],
        metadata={"reward": 1.0, "raise": "the environment broke: größer", "at_turn": 2},
    ),
    Scenario(
        name="agent-error",
        messages=ASK,
        status="ERROR",
        finish_reason="error",
        error="I cannot go on",
        added=[ADD, tool("c1", "5"), says("It is 5.")],
        metadata={"reward": 1.0, "error": "I cannot go on", "at_turn": 2},
    ),
    Scenario(name="reward-absent", messages=ASK, added=[says("5")], reward=None),
    Scenario(name="reward-zero", messages=ASK, added=[says("6")], reward=0.0),
    Scenario(
        name="non-ascii",
        messages=[user(NON_ASCII)],
        reward=1.0,
        metadata={"größe": NON_ASCII},
        added=[
            calls(call("ç1", "echo", '{"text": "naïve ' + "\\" + "ud83d" + "\\" + 'ude00"}'), content=NON_ASCII),
            tool("ç1", "naïve 😀"),
            {"role": "assistant", "content": NON_ASCII, "größe": {"日本": NON_ASCII}},
        ],
    ),
    Scenario(
        name="null-content",
        reward=1.0,
        last_reply="length",
        finish_reason="length",
        messages=[user("Be quiet."), says(None), user("What is 2 + 3?")],
        added=[ADD | {"content": None, "refusal": None}, tool("c1", "5"), says(None)],
    ),
    Scenario(
        name="list-content",
        reward=1.0,
        messages=[{"role": "system", "content": [{"type": "text", "text": "Look."}]}, user(PARTS)],
        added=[
            calls(call("c1", "add", '{"a": 2, "b": 3}'), content=[]),
            tool("c1", "5"),
            says([{"type": "text", "text": "A picture"}, {"type": "text", "text": " of 5."}]),
        ],
    ),
    Scenario(
        name="500-messages",
        reward=1.0,
        messages=[(says if i % 2 else user)(f"{i}: " + "word " * 40) for i in range(499)] + [user("What is 2 + 3?")],
        added=[ADD, tool("c1", "5"), says("5")],
    ),
    Scenario(
        name="trainer-unavailable",
        messages=ASK,
        added=[ADD, tool("c1", "5"), says("5")],
        reward=1.0,
        faults=(Fault("unavailable"), Fault("unavailable")),
    ),
    Scenario(
        name="trainer-busy", messages=ASK, added=[says("5")], reward=1.0, faults=(Fault("busy", 0), Fault("busy", 0.2))
    ),
    Scenario(name="slow-trainer", messages=ASK, added=[ADD, tool("c1", "5"), says("5")], reward=1.0, latency=0.1),
    Scenario(
        name="duplicate-init", messages=ASK, added=[ADD, tool("c1", "5"), says("5")], reward=1.0, inits=2, latency=0.05
    ),
]

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
