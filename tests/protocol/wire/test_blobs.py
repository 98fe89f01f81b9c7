"""Data URLs of content parts travel as bytes, and are the same text at the other end."""

import copy
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest, RolloutOutcome, Sample, TrajectoryEvent, events
from osmosis_grpc.protocol.types.outcome import OutcomeStatus
from osmosis_grpc.protocol.wire.attach import complete_frame
from osmosis_grpc.protocol.wire.blobs import MAX_MIME_CHARS, MIN_URL_CHARS
from osmosis_grpc.protocol.wire.chat import chat_bytes, chat_from_wire, reply_from_wire
from osmosis_grpc.protocol.wire.event import event_from_wire, event_to_wire, kind_from_bytes, kind_to_bytes
from osmosis_grpc.protocol.wire.message import (
    MAX_ITEMS,
    frozen_bytes,
    message_from_wire,
    message_to_wire,
    messages_from_wire,
)
from tests.protocol.wire.test_event import INIT, RESPONSE

IMAGE = bytes(range(256)) * 12


def url(data: bytes = IMAGE, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{b64encode(data).decode()}"


def image(value: str, **more) -> dict:
    return {"type": "image_url", "image_url": {"url": value, **more}}


def message(*parts, role: str = "user") -> dict:
    return {"role": role, "content": list(parts)}


def sent(value: dict) -> pb.Message:
    """Returns a message as it arrives at a peer with the feature. The value that was sent does not change."""
    before = copy.deepcopy(value)
    wire = pb.Message.FromString(message_to_wire(value, blobs=True).SerializeToString())
    assert value == before
    return wire


def blobs(value: dict) -> list[pb.Blob]:
    """Returns the blobs of a message. The message is the same at the other end."""
    wire = sent(value)
    assert message_from_wire(wire, "message") == value
    return [blob for part in wire.parts.parts for blob in part.blobs]


def test_an_image_travels_as_bytes():
    (blob,) = blobs(message({"type": "text", "text": "look"}, image(url(), detail="low")))
    assert (blob.path, blob.mime_type, blob.data) == ("/image_url/url", "image/png", IMAGE)
    assert blob.sha256 == sha256(IMAGE).digest()
    (part,) = sent(message(image(url()))).parts.parts
    assert part.extra_json == '{"image_url":{}}'


def test_a_peer_without_the_feature_gets_text():
    wire = message_to_wire(message(image(url())))
    assert not wire.parts.parts[0].blobs
    assert url() in wire.parts.parts[0].extra_json
    assert message_from_wire(wire, "message") == message(image(url()))


def test_blobs_save_a_quarter_of_the_bytes():
    value = message(image(url(IMAGE * 100)))
    as_text, as_blob = (len(frozen_bytes([value], blobs=blobs)[0]) for blobs in (False, True))
    assert as_text / as_blob == pytest.approx(4 / 3, rel=0.01)


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"type": "image_url", "image_url": url()}, "/image_url"),
        ({"type": "a", "files": [{"b": 1}, {"x": [{"u": url()}]}]}, "/files/1/x/0/u"),
        ({"type": "a", "a/b": {"c~d": url(), "e": 1}}, "/a~1b/c~0d"),
        ({"type": "a", "": {"": url()}}, "//"),
        ({"type": "a", "audio": {"data": url(mime="audio/wav;rate=8000")}}, "/audio/data"),
        ({"type": "a", "nested": {"type": url()}}, "/nested/type"),
    ],
)
def test_a_blob_is_found_by_its_pointer(part, path):
    (blob,) = blobs(message(part))
    assert blob.path == path


def test_a_part_may_have_several_blobs():
    found = blobs(
        message({"type": "video", "frames": [{"url": url(bytes([n]) * 2000)} for n in range(3)], "last": url()})
    )
    assert [blob.path for blob in found] == ["/frames/0/url", "/frames/1/url", "/frames/2/url", "/last"]


AS_TEXT = {
    "short": image(url(IMAGE[:700])),
    "an address": image("https://example.com/" + "x" * 2000),
    "not base64": image(url()[:-3] + "!!!"),
    "white space": image(url()[:200] + "\n" + url()[200:]),
    "no padding": image(url(IMAGE[:2999]).rstrip("=")),
    "bits after the end": image(url(IMAGE[:2999])[:-2] + "B="),
    "too much padding": image(url() + "="),
    "not ASCII": image(url() + "é"),
    "no media type": image(url(mime="")),
    "half a media type": image(url(mime="png")),
    "a media type with a space": image(url(mime="image/png; a=b")),
    "a media type with a comma": image(url(mime='text/plain;a="b,c"')),
    "a long media type": image(url(mime="image/" + "x" * MAX_MIME_CHARS)),
    "not encoded": image("data:text/plain," + "x" * 2000),
    "upper case": image(url().replace("data:", "DATA:")),
    "another mark": image(url().replace(";base64,", ";BASE64,")),
    "an element of a list": {"type": "a", "urls": [url(), url()]},
    "the text of a text part": {"type": "text", "text": url()},
    "the type of a part": {"type": url()},
    "a key": {"type": "a", url(): 1},
    "audio without a data URL": {
        "type": "input_audio",
        "input_audio": {"data": b64encode(IMAGE).decode(), "format": "wav"},
    },
}


@pytest.mark.parametrize("part", AS_TEXT.values(), ids=AS_TEXT)
def test_what_would_not_be_the_same_text_stays_text(part):
    assert blobs(message(part)) == []


def test_only_parts_have_blobs():
    wire = sent({"role": "user", "content": url(), "image": url(), "metadata": {"url": url()}})
    assert wire.text == url()
    assert message_from_wire(wire, "message") == {
        "role": "user",
        "content": url(),
        "image": url(),
        "metadata": {"url": url()},
    }


def test_the_shortest_blob():
    prefix = len(url(b""))
    size = -(-(MIN_URL_CHARS - prefix) // 4) * 3
    assert len(blobs(message(image(url(bytes(size)))))) == 1
    assert len(blobs(message(image(url(bytes(size - 3)))))) == 0


def received(*found: pb.Blob, extra_json: str = '{"image_url":{}}', **fields) -> pb.Message:
    part = pb.ContentPart(type="image_url", extra_json=extra_json, blobs=found, **fields)
    return pb.Message(role="user", parts=pb.ContentParts(parts=[part]))


def blob(**fields) -> pb.Blob:
    return pb.Blob(**({"path": "/image_url/url", "mime_type": "image/png", "data": IMAGE} | fields))


@pytest.mark.parametrize(
    ("found", "value"),
    [
        (blob(), url()),
        (blob(data=b"", mime_type="a/b"), "data:a/b;base64,"),
        (blob(data=b"x", sha256=sha256(b"x").digest()), "data:image/png;base64,eA=="),
        (pb.Blob(path="/image_url/url", uri="https://example.com/a.png"), "https://example.com/a.png"),
        (pb.Blob(path="/image_url/url", uri="s3://a", mime_type="image/png", sha256=bytes(32)), "s3://a"),
    ],
)
def test_a_blob_becomes_its_value(found, value):
    assert message_from_wire(received(found), "m") == message(image(value))


BAD = {
    "path": [
        received(blob(path="")),
        received(blob(path="image_url/url")),
        received(blob(path="/image_url/url/x")),
        received(blob(path="/other/url")),
        received(blob(path="/image_url/~2")),
        received(blob(path="/image_url/a~")),
        received(blob(path="/type")),
        received(blob(path="/text")),
        received(blob(path="/image_url")),
        received(blob(), extra_json='{"image_url":{"url":"x"}}'),
        received(blob(), extra_json=""),
        received(blob(), extra_json='{"image_url":[]}'),
        received(blob(path="/a/0"), extra_json='{"a":[1]}'),
        received(blob(path="/a/00/u"), extra_json='{"a":[{}]}'),
        received(blob(path="/a/-1/u"), extra_json='{"a":[{}]}'),
        received(blob(path="/a/1/u"), extra_json='{"a":[{}]}'),
        received(blob(path="/a/\u0660/u"), extra_json='{"a":[{}]}'),
        received(blob(path=f"/a/{'9' * 5000}/u"), extra_json='{"a":[{}]}'),
        received(blob(path="/a" * 100_000), extra_json='{"a":{}}'),
    ],
    "mime_type": [
        received(blob(mime_type=mime))
        for mime in ("", "image", "image/png,", "image/p ng", "image/é", "a/\n", "/", "a/" + "b" * MAX_MIME_CHARS)
    ],
    "sha256": [
        received(blob(sha256=bytes(32))),
        received(blob(sha256=sha256(IMAGE).digest()[:31])),
        received(blob(uri="x", sha256=b"1")),
    ],
    "data": [received(pb.Blob(path="/image_url/url", mime_type="image/png"))],
}


@pytest.mark.parametrize(("field", "bad"), [(field, bad) for field, all_bad in BAD.items() for bad in all_bad])
def test_a_bad_blob_is_refused_by_name(field, bad):
    with pytest.raises(InvalidArgument) as refusal:
        message_from_wire(pb.Message.FromString(bad.SerializeToString()), "m")
    assert refusal.value.violations[0][0] == f"m.parts.parts[0].blobs[0].{field}"


def test_two_blobs_for_one_key_are_refused():
    with pytest.raises(InvalidArgument) as refusal:
        message_from_wire(received(blob(), blob()), "m")
    assert refusal.value.violations[0][0] == "m.parts.parts[0].blobs[1].path"


def test_the_number_of_blobs_is_bounded():
    many = received(*[pb.Blob(path=f"/{n}", uri="x") for n in range(MAX_ITEMS)])
    reads = {"m": lambda: messages_from_wire([many], "m"), "m.parts.parts": lambda: message_from_wire(many, "m")}
    for field, read in reads.items():
        with pytest.raises(InvalidArgument) as refusal:
            read()
        assert refusal.value.violations[0][0] == field


DATA = st.binary(max_size=40).map(lambda data: data * 60)
URLS = st.builds(url, DATA, st.sampled_from(["image/png", "a/b;c=d"]))
KEYS = st.text(alphabet="a/~0é", max_size=3)
VALUES = st.recursive(
    URLS | st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
PARTS = st.dictionaries(st.sampled_from(["type", "text", "image_url", "x", "~1", ""]), VALUES, max_size=4)


@given(st.lists(PARTS, max_size=3))
@example([{"~1": {"/": url()}}])
def test_any_part_is_the_same_at_the_other_end(parts):
    for each in blobs(message(*parts)):
        assert len(each.data) > 0


@given(st.text(alphabet="/~01ax", max_size=8), st.sampled_from(['{"a":{"x":[{}]}}', "", '{"a":[[{}]],"0":{}}']))
def test_any_pointer_names_a_new_key_or_is_refused(path, extra_json):
    wire = received(pb.Blob(path=path, uri="here"), extra_json=extra_json)
    try:
        read = message_from_wire(wire, "m")
    except InvalidArgument:
        return
    assert str(read["content"]).count("here") == 1
    before = message_from_wire(received(extra_json=extra_json), "m")
    assert str(read).replace("'here'", "").count("'") == str(before).count("'") + 2, "one more key"


# What a journal and the peers get.

PICTURE = message({"type": "text", "text": "what is it?"}, image(url()))
ANSWER = message(image(url()), role="assistant")
CHAT = ChatRequest(rollout_id="r", messages=[PICTURE])
OUTCOME = RolloutOutcome(rollout_id="r", status=OutcomeStatus.CANCELLED, samples={"main": Sample(messages=[PICTURE])})


def test_a_chat_has_blobs_only_for_peers_with_the_feature():
    text, with_blobs = chat_bytes(CHAT), chat_bytes(CHAT, blobs=True)
    assert (IMAGE in text, IMAGE in with_blobs) == (False, True)
    for data in (text, with_blobs):
        assert chat_from_wire(chat_pb2.ChatRequest.FromString(data)).messages == [PICTURE]


def test_an_outcome_has_blobs_only_for_peers_with_the_feature():
    assert IMAGE in complete_frame(OUTCOME, blobs=True)
    assert IMAGE not in complete_frame(OUTCOME)
    assert IMAGE in complete_frame(OUTCOME, blobs=True)


KINDS = [
    events.Accepted(replace(INIT, request=replace(INIT.request, messages=[PICTURE])), []),
    events.ChatRequested(sample="main", chat_number=1, messages=[PICTURE]),
    events.ToolReturned(tool_call_id="c", name="look", message=message(image(url()), role="tool")),
    events.Ended(OUTCOME),
    events.ChatAnswered(sample="main", chat_number=1, response=replace(RESPONSE, message=ANSWER)),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_a_journal_stores_bytes_and_an_event_stream_has_text(kind):
    number, body = kind_to_bytes(kind)
    read = kind_from_bytes(number, body)
    assert (IMAGE in body) is not isinstance(kind, events.ChatAnswered)
    shown = event_to_wire(TrajectoryEvent("r", 1, 1, 0.0, read))
    assert IMAGE not in shown.SerializeToString()
    for again in (read, event_from_wire(shown).kind):
        if not isinstance(kind, events.Ended):
            assert url() in repr(again)


def test_a_reply_that_came_with_blobs_is_shown_as_text():
    wire = chat_pb2.ChatResponse(message=sent(ANSWER))
    response = reply_from_wire(wire, keep=True)
    assert IMAGE in response.wire
    event = TrajectoryEvent("r", 1, 1, 0.0, events.ChatAnswered(sample="main", chat_number=1, response=response))
    assert IMAGE not in event_to_wire(event).SerializeToString()
    assert event_from_wire(event_to_wire(event)).kind.response.message == ANSWER
