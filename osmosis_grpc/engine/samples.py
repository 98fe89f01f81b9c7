"""The samples of one run. A sample is a conversation with its tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from osmosis_grpc.agent.message_keys import same_meaning
from osmosis_grpc.engine.rewards import Rewards
from osmosis_grpc.errors import InvalidArgument, ReplyUnreadable
from osmosis_grpc.types import ChatPurpose, ChatRef, ChatResponse, Ids, Message, PrefixChat, Sample, jsontext
from osmosis_grpc.types.conversation_tree import Conversation, Node, Position, count_tool_message, path
from osmosis_grpc.types.json_values import readable
from osmosis_grpc.types.segment_assembly import Assembler
from osmosis_grpc.types.tool_dicts import dump_model

_PLAIN = {dict}
"""The types of the messages that need no conversion."""

_NO_CHATS: frozenset[int] = frozenset()

ConversationStart = tuple[list[Message], PrefixChat | None]
"""A conversation, and a reference to the answered chat that the conversation begins with."""


class SampleState:
    """One sample while its agent runs. `policy`, `parent` and `train` are those of Sample."""

    __slots__ = (
        "_assembler",
        "_keeps",
        "_refers",
        "_removed",
        "_skipped",
        "chats",
        "conversation",
        "forked",
        "newest",
        "parent",
        "policy",
        "train",
    )

    def __init__(
        self, policy: str = "", parent: ChatRef | None = None, train: bool | None = None, any_role: bool = False
    ) -> None:
        self.policy, self.parent, self.train = policy, parent, train
        self.conversation = Conversation(any_role, same_meaning)
        self._assembler = Assembler()
        self._refers = False
        """Whether logprobs, extras and ids of earlier chats are not kept here, because the trainer has them."""
        self._keeps = False
        """Whether all of them are kept, because a chat needed ids that were not."""
        self.chats = 0
        """The number of the newest chat."""
        self.forked = _NO_CHATS
        """The chats that got their recorded replies from the original of a fork."""
        self.newest: Node | None = None
        """The newest reply of the policy."""
        self._removed: list[Message] = []
        """The messages before `newest` that the agent has removed from its history, for example to shorten it."""
        self._skipped = 0
        """The number of messages at the beginning of the newest history that `_removed` takes the place of."""

    def known_ids(self, parent_chat: int) -> Ids | None:
        """Return the tokens of the chat with the number `parent_chat`, or None if it has no tokens here."""
        if self._assembler.lacks(parent_chat):
            return None
        ids = self._assembler.tokens(parent_chat)
        return ids if len(ids) else None

    def lacks_ids(self, parent_chat: int, response: ChatResponse | None = None) -> bool:
        """Return whether ids of the chat `parent_chat` must be read from the journal, and given to restore().

        Without `response`, the caller needs all ids of the chat. With `response`, assemble() needs the ids that the
        prompt of the response repeats.
        """
        if response is None:
            return self._assembler.lacks(parent_chat)
        if response.prompt_ids is None or response.tokens is None:
            return False
        return self._assembler.lacks(parent_chat, response.prompt_prefix)

    def with_tokens(self) -> set[int]:
        """Return the numbers of the answered chats that have tokens."""
        return self._assembler.chats

    def restore(self, assembler: Assembler) -> None:
        """Use an assembler with all tokens, and keep all tokens from now on.

        Do nothing if a chat of this sample is not in the assembler, because it was answered in the meantime.
        """
        if assembler.chats == self._assembler.chats:
            self._assembler, self._keeps, self._refers = assembler, True, False

    def assemble(
        self,
        number: int,
        parent_chat: int,
        response: ChatResponse,
        purpose: ChatPurpose,
        *,
        refer: bool = False,
        keep_ids: bool = False,
        forked: bool = False,
    ) -> int:
        """Add the tokens of a reply. Returns the length of the prompt. `forked` is that of Assembler.add().

        With `refer`, the outcome is going to refer to the chat. The logprobs and extras of the reply are then not kept
        here, and without `keep_ids` neither are the ids of earlier chats. If lacks_ids(parent_chat, response), the
        sample is not trainable. Raises ReplyUnreadable if the tokens do not fit the earlier chats.
        """
        tokens, refer = response.tokens, refer and not self._keeps
        if refer:
            self._refers = True
            if response.prompt_extras or (tokens is not None and tokens.extras):
                bare = None if tokens is None else replace(tokens, extras=jsontext.NOTHING)
                response = replace(response, tokens=bare, prompt_extras=jsontext.NOTHING)
        try:
            length = self._assembler.add(
                number, parent_chat, response, purpose, forked=forked, refer=refer, keep_ids=keep_ids
            )
        except InvalidArgument as error:
            raise ReplyUnreadable(f"the trainer's reply cannot be used: {error}") from None
        if forked:
            self.forked |= {number}
        return length or 0

    def answer(self, asked: Node, response: ChatResponse, number: int, purpose: ChatPurpose) -> None:
        """Add a reply to the conversation. A judge's reply does not become `newest`."""
        reply = self.conversation.answer(asked, response.message, number)
        if purpose is ChatPurpose.POLICY:
            self._keep_removed(reply)
            self.newest = reply

    def _keep_removed(self, reply: Node) -> None:
        """Keep the messages that a new history no longer has, if the history has the newest reply."""
        old, node = self.newest, reply
        if old is None:
            return
        while node.depth > old.depth and node.parent is not None:
            node = node.parent
        if node is old:
            return
        messages = path(reply)[:-1]
        found = next((n for n in reversed(range(len(messages))) if same_meaning(old.message, messages[n])), None)
        if found is None:  # the agent has gone back, or has begun another conversation
            if self._removed and _common(old, node) < self._skipped:
                self._removed, self._skipped = [], 0
        else:
            self._removed += path(old)[self._skipped :]
            self._skipped = found + 1

    def up_to_newest(self, name: str) -> ConversationStart:
        """Return the conversation up to the newest reply. It is empty before the first reply.

        It has the messages that the agent has removed from its history, too.
        """
        if self.newest is None:
            return [], None
        messages = path(self.newest)
        if self._removed:
            return [*self._removed, *messages[self._skipped :]], None
        return messages, self.begins(name, self.newest.chat, len(messages))

    def begins(self, name: str, chat: int, prefix_len: int) -> PrefixChat | None:
        """Return a reference to an answered chat; None if the trainer need not have answered it."""
        return None if not chat or chat in self.forked else PrefixChat(name, chat, prefix_len)

    def assembled(self, conversation: ConversationStart, *, refer: bool) -> Sample:
        """Return the sample with these messages. With `refer`, its segments refer to chats and have no tokens.

        If tokens are not kept here, its segments refer to chats, too. Before the outcome goes to a trainer without
        these chats, the tokens are read from the journal.
        """
        messages, begins = conversation
        reason = self._assembler.reason
        refer = refer or self._refers
        segments = self._assembler.references() if refer else self._assembler.segments()
        if self.forked and not segments and not reason:
            reason = "all its replies are recorded ones of the rollout from which this rollout forks"
        return Sample(
            messages=messages,
            begins=begins,
            segments=segments,
            trainable=not reason,
            not_trainable_reason=reason,
            policy=self.policy,
            parent=self.parent,
            train=self.train,
        )

    def unsampled(self, messages: list[Message]) -> Sample:
        """Return a sample with messages and without tokens."""
        return Sample(
            messages=messages,
            not_trainable_reason="the policy answered no chat of this sample",
            policy=self.policy,
            parent=self.parent,
            train=self.train,
        )


def _common(one: Node, other: Node) -> int:
    """Return how many messages two conversations have in common at their beginning."""
    while one is not other:
        if one.depth >= other.depth and one.parent is not None:
            one = one.parent
        elif other.parent is not None:
            other = other.parent
    return one.depth


class Samples(dict[str, SampleState]):
    """The samples of one run by name, in the order in which they began."""

    __slots__ = ("_final", "_unsampled", "any_role", "finish_reason", "rewards")

    def __init__(self, any_role: bool = False) -> None:
        self.any_role = any_role
        """Whether the trainer accepts messages with any role."""
        self.finish_reason = ""
        """The finish reason of the policy's newest reply in any sample."""
        self.rewards = Rewards()
        """The rewards that the agent has set."""
        self._final: tuple[str, ConversationStart] | None = None
        """The agent's final messages, and the sample that they belong to."""
        self._unsampled: SampleState | None = None
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
        """Make own copies of the agent's final messages the conversation of `main`, or of the first sample.

        Raises InvalidArgument.
        """
        name = "main" if "main" in self or not self else next(iter(self))
        state = self.get(name)
        if state is None:
            state = self._unsampled = SampleState(any_role=self.any_role)
        position = insert(state.conversation, messages, field)
        begins = state.begins(name, position.parent_chat, position.prefix_len)
        self._final = name, (state.conversation.messages(position.node), begins)

    def release(self) -> None:
        """Free all conversations, see Conversation.release()."""
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
            for call_id, count in state.conversation.tool_messages().items() if state else ():
                most[call_id] = max(count, most.get(call_id, 0))
        before: dict[str, int] = {}
        for message in given if most else ():
            count_tool_message(message, before)
        return {call_id: max(0, count - before.get(call_id, 0)) for call_id, count in most.items()}

    def assembled(self, *, refer: bool) -> dict[str, Sample]:
        """Return the samples that have a reply of the policy.

        If the agent's final messages belong to no such sample, they make a sample without segments.
        """
        concluded, final = self._final or ("", None)
        made = {}
        for name, state in self.items():
            if state.newest is not None:
                ends = final if final and name == concluded else state.up_to_newest(name)
                made[name] = state.assembled(ends, refer=refer)
        if final and final[0] and concluded not in made:
            made[concluded] = (self.get(concluded) or SampleState()).unsampled(final[0])
        return made


def insert(conversation: Conversation, messages: Any, field: str) -> Position:
    """Return the position of an agent's messages. Values that are no JSON, and wrong texts, are converted if possible.

    Raises InvalidArgument.
    """
    given = plain(messages, field)
    try:
        return conversation.insert(given, field)
    except InvalidArgument:
        if not all(isinstance(message, dict) for message in given):
            raise
        return conversation.insert(readable(given, field), field)


def plain(messages: Any, field: str) -> list[Any]:
    """Return messages as a list of dicts. A message can be a dict or a pydantic model. Raises InvalidArgument."""
    if not isinstance(messages, list | tuple):
        raise InvalidArgument(field, f"is a {type(messages).__name__}, not a list")
    if {*map(type, messages)} <= _PLAIN:  # a generator would cost a call for each message
        return messages if isinstance(messages, list) else list(messages)
    return [dump_model(message) for message in messages]
