"""JSON values survive with their type and value, and equality is that of JSON values."""

import json

import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.types.conversation_tree import Conversation
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import chat_reply, reply
from tests.server.attached import plays

SPELLED = [
    ("1", 1),
    ("1.0", 1.0),
    ("1e0", 1.0),
    ("-0", 0),
    ("100", 100),
    ("1e2", 100.0),
    ("1E-2", 0.01),
    ("0.1", 0.1),
    ("9007199254740993", 2**53 + 1),
    ("9223372036854775807", 2**63 - 1),
    ("-9223372036854775808", -(2**63)),
    ("18446744073709551615", 2**64 - 1),
    ("true", True),
    ("false", False),
    ("null", None),
    ('"1"', "1"),
    ('"\\u00e9 \\ud83d\\ude00"', "é 😀"),
    ("[]", []),
    ("{}", {}),
    ("[1, 1.0, true, [null], { }]", [1, 1.0, True, [None], {}]),
    ('{"b": 1, "a": {"d": [2.5], "c": ""}}', {"b": 1, "a": {"d": [2.5], "c": ""}}),
]


async def copies(ctx):
    """Sends the trainer's values back in a chat, and then the reply's values in the outcome."""
    metadata, message = ctx.request.metadata, ctx.request.messages[-1]
    answer = await ctx.chat([{**message, "metadata": metadata["values"]}])
    return ctx.complete([message, answer.message], extra_fields={"values": answer.message["values"]})


def exact(value):
    """A text that tells 1, 1.0 and true apart."""
    return repr(value)


async def test_values_survive_the_way_to_the_agent_and_back(serve):
    server = await serve(plays(copies))
    wanted = exact([value for _, value in SPELLED])
    text = '{"values": [' + " ,\n".join(spelling for spelling, _ in SPELLED) + "]}"
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        messages = [message_pb2.Message(role="user", text="hello", extra_json=text)]
        await trainer.start("r", messages=messages, metadata_json=text)
        chat = await trainer.chat()
        (message,) = chat.full.messages
        extra = json.loads(message.extra_json)
        assert exact(extra["values"]) == exact(extra["metadata"]) == wanted
        response = reply("fine")
        response.message.extra_json = text
        await trainer.send(chat_reply(chat, response=response))
        outcome = await trainer.settled()
        assert exact(json.loads(outcome.extra_json)["values"]) == wanted
        (sample,) = outcome.samples
        assert [exact(json.loads(m.extra_json)["values"]) for m in sample.messages] == [wanted] * 2


EQUAL = [("1", "1.0"), ("1", "1e0"), ("100", "1e2"), ("0", "-0.0"), ("[1,{}]", " [ 1.00 , { } ] ")]
EQUAL += [('{"a":1,"b":2}', '{ "b": 2.0, "a": 1 }'), ('"é"', '"\\u00e9"'), ("0.5", "5e-1")]
DIFFERENT = [("1", "true"), ("0", "false"), ("1", '"1"'), ("null", "0"), ("[1,2]", "[2,1]"), ("{}", "[]")]
DIFFERENT += [("9223372036854775807", "9223372036854775806"), ("9007199254740993", "9007199254740992.0")]


@pytest.mark.parametrize(("one", "other", "equal"), [(*p, True) for p in EQUAL] + [(*p, False) for p in DIFFERENT])
def test_equality_is_that_of_json_values(one, other, equal):
    values = [jsontext.parse(text, "text") for text in (one, other)]
    assert (jsontext.canonical(values[0]) == jsontext.canonical(values[1])) is equal
    tree = Conversation()
    nodes = {id(tree.insert([{"role": "user", "content": "a", "vendor": [value]}]).node) for value in values}
    assert (len(nodes) == 1) is equal
