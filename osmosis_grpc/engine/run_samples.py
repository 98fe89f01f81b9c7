"""All samples of one run, with the rewards and the final messages that the agent set."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from osmosis_grpc.engine.running_sample import ConversationStart, RunningSample, insert
from osmosis_grpc.protocol.types import ChatReward, Message, Sample
from osmosis_grpc.protocol.types.conversation_tree import Node, answered_call

MAX_COMPONENTS = 64
"""The largest number of named reward components of a sample, of a chat, or of the whole rollout."""
MAX_NAME_CHARS = 64
"""The largest number of characters in such a name."""

MAX_REWARDS = 16_384
"""The largest number of rewards and components of one rollout. With the longest names, they take less than 5 MiB."""

_Parts = dict[str, float]
"""The rewards of a sample or a chat by the name of the component. The reward itself has the name ""."""


@dataclass(frozen=True, slots=True)
class Graded:
    """The rewards of a rollout that completed."""

    samples: dict[str, Sample]
    """The samples with their rewards."""
    reward: float | None = None
    """The reward of the whole rollout."""
    components: Mapping[str, float] = field(default_factory=dict)


class Rewards:
    """The rewards of one run. A reward that is set again replaces the earlier one."""

    __slots__ = ("_names", "_set")

    def __init__(self) -> None:
        self._set: dict[tuple[str, int, str], float] = {}
        """The rewards by sample, chat number and component, in the order in which they were set."""
        self._names: dict[tuple[str, int], int] = {}

    def set(self, value: float, sample: str, chat: int = 0, name: str = "") -> None:
        """Set a reward. Raises ValueError for an invalid component name, and for too many names.

        `sample` is empty for the whole rollout, and `chat` is 0 for a whole sample. `name` is empty for the reward
        itself.
        """
        known = (sample, chat, name) in self._set
        if not known and len(self._set) >= MAX_REWARDS:
            raise ValueError(f"a rollout has at most {MAX_REWARDS} rewards and components")
        if name != "":
            check_name(name)
            names = self._names.get((sample, chat), 0)
            if not known and names >= MAX_COMPONENTS:
                raise ValueError(f"name: {name!r} is too many; a reward has at most {MAX_COMPONENTS} components")
            self._names[sample, chat] = names + (not known)
        self._set.pop((sample, chat, name), None)
        self._set[sample, chat, name] = value

    def grade(self, samples: Mapping[str, Sample]) -> Graded:
        """Return the samples with their rewards, and the rewards of the rollout.

        A single sample and its rollout have the same reward: the one that was set last.
        """
        only = next(iter(samples)) if len(samples) == 1 else ""
        found: dict[str, dict[int, _Parts]] = {}
        for (sample, chat, name), value in self._set.items():
            found.setdefault(sample or only, {}).setdefault(chat, {})[name] = value
        graded = {name: _graded(sample, found.get(name, {})) for name, sample in samples.items()}
        reward, components = _split(found.get(only, {}).get(0, {}))
        return Graded(graded, reward, components)


def check_name(name: object) -> None:
    """Raise ValueError unless the name of a component is a str of at most 64 printable characters."""
    if not isinstance(name, str):
        raise ValueError(f"name: is a {type(name).__name__}, not a str")
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(f"name: has {len(name)} characters, more than {MAX_NAME_CHARS}")
    if not name.isprintable():
        raise ValueError(f"name: {name!r} has a character that cannot be printed")


def _graded(sample: Sample, found: Mapping[int, _Parts]) -> Sample:
    reward, components = _split(found.get(0, {}))
    chats = []
    for number in sorted(found.keys() - {0}):
        own, parts = _split(found[number])
        chats.append(ChatReward(chat_number=number, reward=own, reward_components=parts))
    return replace(sample, reward=reward, reward_components=components, chat_rewards=tuple(chats))


def _split(parts: _Parts) -> tuple[float | None, _Parts]:
    return parts.get(""), {name: value for name, value in parts.items() if name}


class Samples(dict[str, RunningSample]):
    """The samples of one run by name, in the order in which they began."""

    __slots__ = ("_end", "_final", "_unsampled", "any_role", "rewards")

    def __init__(self, any_role: bool = False) -> None:
        self.any_role = any_role
        """Whether the trainer accepts messages with any role."""
        self.rewards = Rewards()
        """The rewards that the agent has set."""
        self._final: tuple[str, ConversationStart] | None = None
        """The agent's final messages, and the sample that they belong to."""
        self._end: Node | None = None
        """The last of the final messages."""
        self._unsampled: RunningSample | None = None
        """The final messages of a run without a sample."""

    def check_ref(self, sample: Any, chat: Any, fields: tuple[str, str]) -> None:
        """Raise ValueError unless the sample has begun, and the chat is 0 or an answered chat of the sample.

        `fields` are the names of the two arguments for the error.
        """
        if not isinstance(sample, str) or sample not in self:
            names = ", ".join(map(repr, self)) or "none yet"
            raise ValueError(f"{fields[0]}: the rollout has no sample named {sample!r}; its samples: {names}")
        if isinstance(chat, bool) or not isinstance(chat, int) or chat < 0:
            raise ValueError(f"{fields[1]}: {chat!r} is not the number of a chat")
        if chat and self[sample].conversation.reply(chat) is None:
            problem = "has no reply" if chat <= self[sample].chats else "does not exist"
            raise ValueError(f"{fields[1]}: chat {chat} of sample {sample!r} {problem}")

    def conclude(self, messages: Sequence[Any], field: str) -> None:
        """Use copies of the agent's final messages as the conversation of the sample to which they belong.

        That sample is `main`. Without `main`, it is the sample that shares most of the messages, or else the first one.
        Raises InvalidArgument.
        """
        name = self.main
        if "main" not in self and len(self) > 1 and all(isinstance(message, dict) for message in messages):
            name = max(self, key=lambda sample: self[sample].conversation.shares(messages))
        state = self.get(name)
        if state is None:
            state = self._unsampled = RunningSample(any_role=self.any_role)
        position = insert(state.conversation, messages, field)
        begins = state.begins(name, position.parent_chat, position.prefix_len)
        self._final = name, (state.conversation.messages(position.node), begins)
        self._end = position.node if messages else None

    @property
    def main(self) -> str:
        """The name of the sample to which the agent's final messages belong."""
        if self._final is not None:
            return self._final[0]
        return "main" if "main" in self or not self else next(iter(self))

    def end_reason(self) -> str:
        """Return why the main conversation was cut: the finish reason of its last reply, or a limit.

        Return "" if it ended by itself.
        """
        state = self.get(self.main)
        return "" if state is None else state.last_reason(self._end) or state.limit

    def release(self) -> None:
        """Free all conversations. See Conversation.release()."""
        for state in (*self.values(), self._unsampled):
            if state is not None:
                state.conversation.release()

    def turns(self) -> int:
        """Return the largest number of chats in one sample."""
        return max((state.chats for state in self.values()), default=0)

    def tool_messages(self, given: Sequence[Message]) -> Mapping[str, int]:
        """Return how many tool messages answer each call id. Tool messages in `given` do not count.

        `given` has the messages of the request.
        """
        most: dict[str, int] = {}
        for state in (*self.values(), self._unsampled):
            for call_id, count in state.conversation.tool_messages.items() if state else ():
                most[call_id] = max(count, most.get(call_id, 0))
        before = Counter(map(answered_call, given)) if most else {}
        return {call_id: max(0, count - before.get(call_id, 0)) for call_id, count in most.items()}

    def assembled(self, *, refer: bool) -> dict[str, Sample]:
        """Return the samples that have a reply of the policy.

        If the agent's final messages belong to no such sample, add a sample for them that has no segments.
        """
        concluded, final = self._final or ("", None)
        made = {}
        for name, state in self.items():
            if state.newest is not None:
                ends = final if final and name == concluded else state.up_to_newest(name)
                made[name] = state.assembled(ends, self._end if name == concluded else None, refer=refer)
        if final and final[0] and concluded not in made:
            made[concluded] = (self.get(concluded) or RunningSample()).unsampled(final[0])
        return made
