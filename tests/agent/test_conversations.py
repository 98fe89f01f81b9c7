"""Which sample a history belongs to, and which chat has called it."""

import pytest

from osmosis_grpc.agent.conversations import MAX_UNANSWERED, Conversations
from osmosis_grpc.agent.message_keys import History, arguments_object, message_key
from osmosis_grpc.protocol.errors import ResourceExhausted
from osmosis_grpc.protocol.types import ChatRef

USER = {"role": "user", "content": "go"}


def calling(arguments, name="call_0"):
    """A reply that calls a tool. Some servers number the calls of each reply from 0."""
    call = {"id": name, "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(content, name="call_0"):
    return {"role": "tool", "tool_call_id": name, "content": content}


def system(name):
    return [{"role": "system", "content": name}, USER]


class Program:
    """Asks chats. It names new samples as the engine does."""

    def __init__(self):
        self.conversations = Conversations()
        self.chats = {}

    def ask(self, messages, reply):
        """Return the name and the parent of the sample."""
        place = self.conversations.place(History.of(messages))
        sample = place.sample or (f"sample-{len(self.chats) + 1}" if self.chats else "main")
        self.chats[sample] = self.chats.get(sample, 0) + 1
        self.conversations.answered(place, sample, self.chats[sample], reply)
        return sample, place.parent


def test_calls_with_equal_ids_and_other_arguments_are_other_replies():
    program = Program()
    one, two = calling('{"x": 1}'), calling('{"x": 2}')
    assert program.ask([USER], one)[0] == "main"
    assert program.ask([USER], two)[0] == "sample-2"
    place = program.conversations.place(History.of([USER, calling('{"x":  1}'), result("1")]))
    assert place.sample == "main"
    assert place.messages[1] is one
    assert program.conversations.place(History.of([USER, two, result("1")])).sample == "sample-2"


@pytest.mark.parametrize("arguments", ["", "no json", "[1]", '{"a": 1.0}'])
def test_a_call_whose_arguments_were_written_as_an_object_is_the_same_call(arguments):
    written = f'{{"arguments": "{arguments}"}}' if arguments in ("no json", "[1]") else arguments or "{}"
    assert message_key(calling(arguments))[0] == message_key(calling(written))[0]
    assert isinstance(arguments_object(arguments), dict)


def test_a_call_that_is_never_answered_is_no_parent_after_its_conversation_has_gone_on():
    program = Program()
    submit = calling("{}", "submit")
    program.ask(system("first"), submit)
    assert program.ask(system("second"), {"role": "assistant", "content": "hi"})[1] == ChatRef("main", 1), "a guess"
    program.ask([*system("first"), submit, USER], {"role": "assistant", "content": "fine"})
    assert program.ask(system("third"), {"role": "assistant", "content": "hi"})[1] is None


def test_the_calls_of_a_subagent_are_over_when_its_caller_goes_on():
    program = Program()
    ask = calling("{}", "ask")
    program.ask(system("planner"), ask)
    assert program.ask(system("helper"), calling("{}", "submit")) == ("sample-2", ChatRef("main", 1))
    program.ask([*system("planner"), ask, result("done", "ask")], {"role": "assistant", "content": "fine"})
    assert program.ask(system("critic"), {"role": "assistant", "content": "hi"}) == ("sample-3", None)


def test_a_history_without_a_reply_keeps_its_sample_and_no_messages():
    conversations = Conversations(max_bytes=1000)
    for number in range(MAX_UNANSWERED + 1):
        place = conversations.place(History.of([{"role": "user", "content": f"{number}" + "x" * 900}]))
        conversations.failed(place, f"sample-{number}")
    kept = [
        conversations.place(History.of([{"role": "user", "content": f"{number}" + "x" * 900}])).sample
        for number in (0, 1, MAX_UNANSWERED)
    ]
    assert kept == ["", "sample-1", f"sample-{MAX_UNANSWERED}"]


def test_the_messages_of_a_rollout_have_a_limit():
    conversations = Conversations(max_bytes=1000)
    first = History.of([{"role": "user", "content": "x" * 900}])
    conversations.answered(conversations.place(first), "main", 1, {"role": "assistant", "content": "y" * 50})
    assert conversations.place(first).sample == ""
    with pytest.raises(ResourceExhausted, match="too many bytes"):
        conversations.place(History.of([*first.messages, {"role": "user", "content": "z" * 900}]))


@pytest.mark.row("SDK 54")
def test_a_reply_keeps_its_spelling_after_the_messages_before_it_are_left_out():
    program = Program()
    reply = calling('{"x":   1}') | {"reasoning_content": "hm"}
    program.ask([*system("s"), {"role": "user", "content": "one"}], reply)
    rewritten = {**calling('{"x": 1}'), "content": ""}
    place = program.conversations.place(History.of([USER, rewritten, result("1")]), "main")
    assert place.messages == [USER, reply, result("1")]


@pytest.mark.row("SDK 17")
def test_the_beginning_of_a_history_keeps_its_spelling():
    conversations = Conversations()
    named = {"role": "user", "content": "go", "name": "bob"}
    conversations.begin([named], [USER])
    assert conversations.place(History.of([USER])).messages == [named]
