"""RunningSample: the conversation of one sample while its agent runs, with its tokens and its chats."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from osmosis_grpc.agent.message_keys import same_meaning
from osmosis_grpc.protocol.errors import InvalidArgument, ReplyUnreadable
from osmosis_grpc.protocol.types import ChatPurpose, ChatRef, ChatResponse, Ids, Message, PrefixChat, Sample, jsontext
from osmosis_grpc.protocol.types.conversation_tree import Conversation, Node, Position, path
from osmosis_grpc.protocol.types.dropped_chats import dropped_chats
from osmosis_grpc.protocol.types.json_values import readable
from osmosis_grpc.protocol.types.messages import dump_model
from osmosis_grpc.protocol.types.samples import CUTS, NATURAL
from osmosis_grpc.protocol.types.segment_builder import SegmentBuilder

_PLAIN = {dict}
"""The types of the messages that need no conversion."""

ConversationStart = tuple[list[Message], PrefixChat | None]
"""A conversation, and a reference to the answered chat with which it begins."""


@dataclass(slots=True, eq=False)
class RunningSample:
    """One sample while its agent runs. For `policy`, `parent` and `train`, see Sample."""

    policy: str = ""
    parent: ChatRef | None = None
    train: bool | None = None
    any_role: InitVar[bool] = False
    conversation: Conversation = field(init=False)
    chats: int = 0
    """The number of the newest chat."""
    dropped: frozenset[int] = frozenset()
    """The chats whose replies the agent dropped with ctx.drop()."""
    forked: frozenset[int] = frozenset()
    """The chats whose replies were recorded in the original of a fork."""
    newest: Node | None = None
    """The policy's reply to the newest answered chat."""
    limit: str = ""
    """The limit that cut the conversation after its newest chat, or "" if none did. See Sample.cut."""
    _assembler: SegmentBuilder = field(default_factory=SegmentBuilder)
    _refers: bool = False
    """Whether logprobs, extras and ids of earlier chats are dropped here, because the trainer has them."""
    _keeps: bool = False
    """Whether all of these are kept, because a chat needed ids that had been dropped."""
    _reasons: dict[int, str] = field(default_factory=dict)
    """The finish reasons of the replies that did not end by themselves, by the number of the chat."""
    _forms: dict[int, Hashable] = field(default_factory=dict)
    """For each chat, its parameters about the form of the reply, if it has any. See dropped_chats()."""
    _open: dict[int, Node] = field(default_factory=dict)
    """The open chats, each with the last message of its history."""
    _beside: dict[int, list[int]] = field(default_factory=dict)
    """For each chat, the chats with the same history that were open when it was sent, if there were any."""
    _removed: list[Message] = field(default_factory=list)
    """The messages before `newest` that the agent has removed from its history, for example to shorten it."""
    _skipped: int = 0
    """`_removed` replaces this many messages at the beginning of the newest history."""

    def __post_init__(self, any_role: bool) -> None:
        self.conversation = Conversation(any_role, same_meaning)

    def known_ids(self, parent_chat: int) -> Ids | None:
        """Return the tokens of the chat with the number `parent_chat`, or None if they are not kept here."""
        if self._assembler.lacks(parent_chat):
            return None
        ids = self._assembler.tokens(parent_chat)
        return ids if len(ids) else None

    def known_reply(self, parent_chat: int) -> int:
        """Return how many of the last ids of known_ids() belong to the reply of the chat; 0 if that is unknown."""
        prompt, known = self._assembler.prompt(parent_chat), self.known_ids(parent_chat)
        return 0 if prompt is None or known is None else len(known) - len(prompt)

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

    def restore(self, assembler: SegmentBuilder) -> None:
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
        """Add the tokens of a reply. Return the length of the prompt. For `forked`, see SegmentBuilder.add().

        With `refer`, the outcome will refer to the chat, so the logprobs and extras of the reply are not kept here, and
        neither are the ids of earlier chats, unless `keep_ids` is set. If lacks_ids(parent_chat, response), the sample
        is not trainable. Raises ReplyUnreadable if the tokens do not fit the earlier chats.
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

    def ask(self, number: int, asked: Node, form: Hashable, open_before: Collection[int] = ()) -> None:
        """Record the start of a chat. `form` is a hash of its parameters about the form of the reply, or None.

        If the chat was already sent before a restart, `open_before` has the chats that were open then. They may be
        answered by now.
        """
        self.limit = ""
        if form is not None:
            self._forms[number] = form
        beside = [other for other, node in self._open.items() if node is asked]
        replies = self.conversation.replies
        beside += [other for other in open_before if other in replies and replies[other].parent is asked]
        if beside:
            self._beside[number] = beside
        self._open[number] = asked

    def over(self, number: int) -> None:
        """Record that a chat is answered, or gets no reply."""
        self._open.pop(number, None)

    def answer(self, asked: Node, response: ChatResponse, number: int, purpose: ChatPurpose) -> None:
        """Add a reply to the conversation. A judge's reply or a late reply does not become `newest`."""
        reply = self.conversation.answer(asked, response.message, number)
        if purpose is not ChatPurpose.POLICY:
            return
        if response.finish_reason not in NATURAL:
            self._reasons[number] = response.finish_reason
        if self.newest is None or self.newest.chat <= number:
            self._keep_removed(reply)
            self.newest = reply

    def last_reason(self, end: Node | None = None) -> str:
        """Return the finish reason of the conversation's last reply, or "" if the reply ended by itself.

        `end` is the last of the agent's final messages. It does not matter if the agent edited the last reply. If the
        final messages contain no reply, the newest reply counts.
        """
        node, chat = end, 0
        while node is not None and node.parent is not None and not chat:
            if node.message.get("role") == "assistant":
                chat = node.chat or max(sibling.chat for sibling in node.parent.children)
            node = node.parent
        chat = chat or (0 if self.newest is None else self.newest.chat)
        return self._reasons.get(chat, "")

    def _drop(self, end: Node | None) -> None:
        """Move the replies that the agent dropped to their own segments. For `end`, see last_reason()."""
        last = self.newest if end is None else end
        if last is not None:
            undecided = self._beside.get(last.chat, ()) if end is None else ()
            found = dropped_chats(self.conversation, last, self._forms, undecided)
            self._assembler.drop(found | self.dropped)

    def _keep_removed(self, reply: Node) -> None:
        """If a new history contains the newest reply but lacks messages before it, keep these messages."""
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

        It includes the messages that the agent has removed from its history.
        """
        if self.newest is None:
            return [], None
        messages = path(self.newest)
        if self._removed:
            return [*self._removed, *messages[self._skipped :]], None
        return messages, self.begins(name, self.newest.chat, len(messages))

    def begins(self, name: str, chat: int, prefix_len: int) -> PrefixChat | None:
        """Return a reference to an answered chat; None if the trainer may not have answered it."""
        return None if not chat or chat in self.forked else PrefixChat(name, chat, prefix_len)

    def assembled(self, conversation: ConversationStart, end: Node | None = None, *, refer: bool) -> Sample:
        """Return the sample with these messages. With `refer`, its segments refer to chats and have no tokens.

        `end` is the last of the agent's final messages, if they belong to this sample.

        The segments also refer to chats if tokens are not kept here. Before such an outcome is sent to a trainer that
        does not have these chats, the tokens are read from the journal.
        """
        messages, begins = conversation
        reason = self._assembler.reason
        refer = refer or self._refers
        self._drop(end)
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
            cut=CUTS.get(self.last_reason(end), self.limit),
        )

    def unsampled(self, messages: list[Message]) -> Sample:
        """Return a sample that has messages but no tokens."""
        return Sample(
            messages=messages,
            not_trainable_reason="the policy answered no chat of this sample",
            policy=self.policy,
            parent=self.parent,
            train=self.train,
        )


def _common(one: Node, other: Node) -> int:
    while one is not other:
        if one.depth >= other.depth and one.parent is not None:
            one = one.parent
        elif other.parent is not None:
            other = other.parent
    return one.depth


def insert(conversation: Conversation, messages: Any, field: str) -> Position:
    """Return the position of an agent's messages. Values that are not JSON and invalid text are converted if possible.

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


def form_of(tools: Sequence[Mapping[str, Any]] | None, params: Mapping[str, Any], purpose: ChatPurpose) -> Hashable:
    """Return a hash of a chat's parameters about the form of its reply, or None if there are none."""
    functions = (tool.get("function") for tool in tools or ())
    names = [str(function.get("name")) for function in functions if isinstance(function, Mapping)]
    wanted = [jsontext.canonical({name: params[name]}) for name in _FORM if name in params]
    form = (*names, *wanted, *([purpose] if purpose is ChatPurpose.JUDGE else []))
    return hash(form) if form else None


_FORM = ("response_format", "tool_choice")
"""The sampling parameters that determine the form of a reply."""
