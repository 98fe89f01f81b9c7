"""What the agents do, and what is expected of each case, said before any system runs.

A case is a coroutine over an `Agent`. `kept` are the steps of the engine's script that the agent keeps in a
history, and `dropped` those that it asked for and left out. `rows` is the fewest rows that hold each kept reply with
its own context, and the most that are right: where the template or the agent writes a past reply in another way, a new
row is right, and a row that goes on with the sampled ids is right, too. A third row would split what nobody changed.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = dict[str, Any]


class Chat(Protocol):
    """Asks the system under test, and returns {"message": {...}, "finish_reason": ...}."""

    def __call__(self, messages: list[Message], **options: Any) -> Awaitable[Message]: ...


def tool(name: str, argument: str) -> Message:
    """Describe a function to the model."""
    parameters = {"type": "object", "properties": {argument: {"type": "number"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": f"Runs {name}.", "parameters": parameters}}


ADD, ASK = [tool("add", "a")], [tool("ask", "q")]


def user(text: str) -> Message:
    """Write a message of the user."""
    return {"role": "user", "content": text}


def said(message: Message) -> Message:
    """Return a reply as an agent keeps it: what a client of OpenAI's API sends back."""
    calls = message.get("tool_calls")
    out: Message = {"role": "assistant", "content": message.get("content") or (None if calls else "")}
    if calls:
        functions = [{"name": c["function"]["name"], "arguments": c["function"]["arguments"]} for c in calls]
        out["tool_calls"] = [
            {"id": c["id"], "type": "function", "function": f} for c, f in zip(calls, functions, strict=True)
        ]
    if message.get("reasoning_content"):
        out["reasoning_content"] = message["reasoning_content"]
    return out


def results(message: Message) -> list[Message]:
    """Run the tools that a reply calls."""
    calls = message.get("tool_calls") or []
    return [{"role": "tool", "tool_call_id": call["id"], "content": "tool says 3"} for call in calls]


@dataclass
class Agent:
    """One conversation; `requests` are what the judge holds against the engine's log."""

    case: str
    key: str
    chat: Chat
    history: list[Message] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def mark(self) -> str:
        """What tells the engine which script to follow."""
        return f"CASE={self.case} ID={self.key}."

    async def ask(self, messages: list[Message], **options: Any) -> Message:
        """Ask for a reply to any history; return the message, which is not kept."""
        request = {"messages": [dict(message) for message in messages], "tools": options.get("tools"), "got": None}
        self.requests.append(request)
        answer = await self.chat(messages, **options)
        message = said(answer["message"])
        if answer.get("finish_reason") != "abort":
            request["got"] = dict(message)
        return {**message, "finish_reason": answer.get("finish_reason")}

    async def say(self, **options: Any) -> Message:
        """Ask for a reply to the history, and keep it."""
        message = await self.ask(self.history, **options)
        message.pop("finish_reason")
        self.history.append(message)
        return message

    async def turns(self, count: int, **options: Any) -> None:
        """Take turns of a reply and a message of the user."""
        for turn in range(count):
            await self.say(**options)
            self.history.append(user(f"Go on {turn}."))

    async def steps(self, count: int, change: Callable[[Message], Message] = lambda m: m, **options: Any) -> None:
        """Take turns of a reply and the results of its tools; `change` is how the agent keeps a reply."""
        for _ in range(count):
            message = change(await self.say(tools=ADD, **options))
            self.history[-1] = message
            self.history += results(message)


async def _compaction(agent: Agent) -> None:
    await agent.turns(2)
    agent.history = [user(f"{agent.mark} Summary of the talk: two replies. Go on.")]
    await agent.turns(2)


async def _branch(agent: Agent) -> None:
    await agent.turns(1)
    await agent.ask(agent.history)
    await agent.turns(2)


async def _branch_first(agent: Agent) -> None:
    await agent.turns(1)
    kept = await agent.ask(agent.history)
    await agent.ask(agent.history)
    kept.pop("finish_reason")
    agent.history += [kept, user("Go on again.")]
    await agent.say()


async def _retry(agent: Agent, **first: Any) -> None:
    await agent.turns(1)
    for attempt in range(4):
        try:
            message = await agent.ask(agent.history, **(first if not attempt else {}))
        except Exception:  # whatever the client of the system raises
            await asyncio.sleep(0.2)
            continue
        if message.pop("finish_reason") != "abort":
            agent.history += [message, user("Go on again.")]
            await agent.say()
            return
    raise RuntimeError("four attempts failed")


async def _best_of(agent: Agent) -> None:
    await agent.turns(1)
    first, _ = await asyncio.gather(agent.ask(agent.history), agent.ask(agent.history))
    first.pop("finish_reason")
    agent.history += [first, user("Go on again.")]
    await agent.say()


async def _concurrent(agent: Agent) -> None:
    await agent.say()
    left, right = [*agent.history, user("Go left.")], [*agent.history, user("Go right.")]
    one, other = await asyncio.gather(agent.ask(left), agent.ask(right))
    one.pop("finish_reason")
    agent.history = [*left, one, user("The other said: " + other["content"])]
    await agent.say()


async def _edited(agent: Agent) -> None:
    message = await agent.say()
    agent.history[-1] = {**message, "content": message["content"].replace("ORIGINAL", "EDITED")}
    agent.history.append(user("Go on."))
    await agent.turns(2)


async def _subagent(agent: Agent) -> None:
    message = await agent.say(tools=ASK)
    helper = Agent(agent.case, agent.key, agent.chat, requests=agent.requests)
    helper.history = [{"role": "system", "content": f"You are a helper. {agent.mark}"}, user("What?")]
    await helper.turns(2)
    agent.history += results(message)
    await agent.say(tools=ASK)


async def _reason_tool(agent: Agent) -> None:
    await agent.steps(1)
    await agent.say(tools=ADD)
    agent.history.append(user("Go on."))
    await agent.say(tools=ADD)


async def _parts(agent: Agent) -> None:
    for turn in range(3):
        message = await agent.say()
        agent.history[-1] = {**message, "content": [{"type": "text", "text": message["content"]}]}
        agent.history.append(user(f"Go on {turn}."))


async def _shorten(agent: Agent) -> None:
    await agent.steps(2)
    agent.history = [
        {**m, "content": "[cut]"} if m["role"] == "tool" and n < 3 else m for n, m in enumerate(agent.history)
    ]
    await agent.say(tools=ADD)


async def _window(agent: Agent) -> None:
    for turn in range(4):
        await agent.say()
        agent.history.append(user(f"Go on {turn}."))
        agent.history = [agent.history[0], *agent.history[1:][-4:]]


async def _new_tools(agent: Agent) -> None:
    await agent.turns(1)
    await agent.steps(2)


async def _system(agent: Agent) -> None:
    agent.history.insert(0, {"role": "system", "content": "Be short."})
    await agent.turns(1)
    agent.history[0] = {"role": "system", "content": "Be long."}
    await agent.turns(2)


async def _long(agent: Agent) -> None:
    agent.history.append(user("The page: " + "a line of the page that has to be read; " * 1640))
    await agent.turns(3)


async def _two_choices(agent: Agent) -> None:
    await agent.turns(1)
    await agent.say(n=2)
    agent.history.append(user("Go on again."))
    await agent.say()


async def _swapped(agent: Agent) -> None:
    message = await agent.say(tools=ADD)
    calls = enumerate(message.get("tool_calls") or [])
    answers = [{"role": "tool", "tool_call_id": call["id"], "content": f"tool says {n}"} for n, call in calls]
    agent.history += reversed(answers)
    await agent.say(tools=ADD)


async def _result_parts(agent: Agent) -> None:
    for _ in range(2):
        for result in results(await agent.say(tools=ADD)):
            parts = [{"type": "text", "text": "tool "}, {"type": "text", "text": "says 3"}]
            agent.history.append({**result, "content": parts})
    await agent.say(tools=ADD)


async def _reminder(agent: Agent) -> None:
    await agent.turns(1)
    agent.history.append({"role": "system", "content": "Two turns are left."})
    await agent.turns(2)


def _serialized(message: Message) -> Message:
    calls = message.get("tool_calls") or []
    if not calls:
        return message
    again = [json.dumps(json.loads(c["function"]["arguments"]), separators=(",", ":")) for c in calls]
    functions = [{**c["function"], "arguments": a} for c, a in zip(calls, again, strict=True)]
    return {**message, "tool_calls": [{**c, "function": f} for c, f in zip(calls, functions, strict=True)]}


def _unreasoned(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


GOT = "got"
"""A system may answer a repeated request with the reply to the first one, so the script cannot say which are kept."""


@dataclass(frozen=True)
class Case:
    """A case and what is expected of it. `kept` is None if every reply is kept, and GOT if those that the agent got."""

    run: Callable[[Agent], Awaitable[None]]
    rows: tuple[int, int]
    why: str
    kept: Sequence[int] | str | None = None
    dropped: Sequence[int] = ()


CASES: dict[str, Case] = {
    "plain": Case(lambda a: a.turns(3), (1, 1), "Three turns of text."),
    "nonround": Case(lambda a: a.turns(3), (1, 3), "The sampled ids are not those that encoding the text gives."),
    "toolplain": Case(lambda a: a.steps(2), (1, 1), "A tool call, written as the template writes it."),
    "tooljson": Case(
        lambda a: a.steps(2), (1, 2), "A tool call whose JSON (1e0, \\u00e9, no blanks) renders otherwise."
    ),
    "parallel": Case(lambda a: a.steps(2), (1, 1), "Two tool calls in one reply."),
    "tooltwice": Case(lambda a: a.steps(3), (1, 1), "Two turns with tools."),
    "brokencall": Case(lambda a: a.turns(3), (1, 1), "A tool call whose JSON is broken stays text."),
    "newtools": Case(_new_tools, (2, 2), "The tools change, so the head of the prompt changes."),
    "reasoning": Case(lambda a: a.turns(3), (1, 3), "Reasoning, which one template drops from earlier turns."),
    "reasontool": Case(
        _reason_tool, (1, 2), "Reasoning with tools, then a new question, at which the template drops it."
    ),
    "dropreason": Case(
        lambda a: a.steps(3, _unreasoned), (1, 3), "The agent sends replies back without their reasoning."
    ),
    "reserial": Case(
        lambda a: a.steps(3, _serialized), (1, 1), "The agent writes the arguments again, with other blanks."
    ),
    "parts": Case(_parts, (1, 1), "The agent sends contents back as lists of parts."),
    "blanks": Case(lambda a: a.turns(3), (1, 3), "Replies that begin and end with blanks, which a template trims."),
    "splitglyph": Case(lambda a: a.turns(3), (1, 1), "Glyphs of several tokens."),
    "stopstring": Case(
        lambda a: a.turns(3, stop=["Observation:"]), (1, 3), "A stop string: sampled, but not in the text."
    ),
    "length": Case(lambda a: a.turns(3), (1, 3), "A reply that the token limit cuts."),
    "empty": Case(lambda a: a.turns(3), (1, 2), "A reply of no tokens at all."),
    "eosonly": Case(lambda a: a.turns(3), (1, 1), "A reply that only ends its turn."),
    "stream": Case(lambda a: a.turns(3, stream=True), (1, 1), "Streamed replies."),
    "streamtool": Case(lambda a: a.steps(3, stream=True), (1, 1), "Streamed replies with tool calls."),
    "streamcut": Case(
        lambda a: _retry(a, stream=True, timeout=0.5), (1, 2), "The agent leaves a stream and asks again.", GOT
    ),
    "compaction": Case(_compaction, (2, 2), "The agent goes on from a summary."),
    "shorten": Case(_shorten, (2, 2), "The agent shortens an old result of a tool."),
    "window": Case(_window, (2, 2), "The agent drops its oldest turns."),
    "system": Case(_system, (2, 2), "The system message changes."),
    "edited": Case(_edited, (2, 2), "The agent changes a reply: the model must see the change."),
    "branch": Case(_branch, (1, 2), "The agent asks twice and keeps the second reply.", (0, 2, 3), (1,)),
    "branchfirst": Case(_branch_first, (1, 2), "The agent asks twice and keeps the first reply.", (0, 1, 3), (2,)),
    "bestof": Case(_best_of, (1, 2), "Two requests at once for one history; one reply is kept."),
    "concurrent": Case(_concurrent, (2, 2), "Two branches at once, and then one goes on."),
    "subagent": Case(_subagent, (2, 2), "A conversation inside a conversation."),
    "error500": Case(_retry, (1, 1), "The engine fails once, and the agent asks again.", (0, 2, 3)),
    "timeout": Case(lambda a: _retry(a, timeout=0.8), (1, 2), "The agent's client gives up, and asks again.", GOT),
    "abort": Case(_retry, (1, 2), "The engine aborts a reply, as for new weights.", (0, 2, 3), (1,)),
    "versions": Case(lambda a: a.turns(3), (1, 1), "The weights change between turns."),
    "long": Case(_long, (1, 1), "A message of 64 KB."),
    "twochoices": Case(_two_choices, (1, 2), "A request for two choices: n=2. The agent keeps the first.", GOT),
    "swapped": Case(_swapped, (1, 1), "Two tool calls, whose results the agent sends in the other order."),
    "resultparts": Case(_result_parts, (1, 1), "The agent sends the results of tools as lists of two parts."),
    "reminder": Case(_reminder, (1, 1), "A system message in the middle of the conversation."),
    "cancel": Case(lambda a: a.turns(2), (0, 1), "The trainer ends the rollout in its second turn.", (0,)),
}
MEASURED: dict[str, Case] = {
    "bench": Case(lambda a: a.steps(9), (1, 1), "Nine turns of 256 tokens; eight call a tool."),
    "bench36": Case(lambda a: a.steps(36), (1, 1), "36 turns of 256 tokens; all call a tool."),
    "open": Case(lambda a: a.turns(2, stream=True), (1, 1), "A stream that stays open for five seconds."),
}
NATIVE_HAS_NO = {"stream", "streamtool", "streamcut", "twochoices"}
"""Cases about options of HTTP clients."""


async def run(case: str, key: str, chat: Chat, prefix: Sequence[Message] = ()) -> Agent:
    """Run a case; return its agent. An error of the agent has the agent as `error.agent`."""
    agent = Agent(case, key, chat)
    agent.history = [*prefix, user(f"{agent.mark} Please begin.")]
    try:
        await {**CASES, **MEASURED}[case].run(agent)
    except BaseException as error:
        error.agent = agent  # type: ignore[attr-defined]
        raise
    return agent
