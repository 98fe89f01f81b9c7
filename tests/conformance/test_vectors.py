"""This project's own functions agree with the language-neutral vectors."""

import re

import pytest
from google.protobuf import json_format

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2
from osmosis_grpc.protocol.stream.stream_machine import StreamMachine
from osmosis_grpc.protocol.types import ChatPurpose, ChatResponse, TokenBlock, jsontext
from osmosis_grpc.protocol.types.segment_builder import SegmentBuilder
from osmosis_grpc.testing.conformance import patterns, server_steps, trainer_steps
from osmosis_grpc.testing.conformance.cases import load, pairs, vector
from osmosis_grpc.testing.conformance.patterns import differences, json_equal
from osmosis_grpc.testing.conformance.protobuf_data import code_name
from osmosis_grpc.testing.conformance.server_session import KINDS
from osmosis_grpc.testing.conformance.server_session import KINDS as SERVER
from osmosis_grpc.testing.conformance.trainer_session import KINDS as TRAINER
from tests.conformance.mutants import faults
from tests.docs.pages import Reader, blocks_of
from tests.processes import ROOT

PAGE = ROOT / "docs" / "conformance.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("one", "other", "equal"), list(pairs({"vector": "json_equality"})))
def test_json_equality(one, other, equal):
    left, right = jsontext.parse_object(one, "one"), jsontext.parse_object(other, "other")
    assert (jsontext.canonical(left) == jsontext.canonical(right)) is equal
    assert json_equal(left, right) is equal


ROLLOUTS = [case for case in load("server", KINDS) if case.kind == "rollout" and "segments" in case.body]


@pytest.mark.parametrize("case", ROLLOUTS, ids=lambda case: case.name)
def test_segments_of_one_sample(case):
    if any("sample" in step for step in case.body["script"]):
        pytest.skip("has several samples")
    assembler, parent, number = SegmentBuilder(), 0, 0
    for step in case.body["script"]:
        if "back_to" in step:
            parent = step["back_to"]
        elif "chat" in step:
            reply = case.body["replies"][number]
            number += 1
            ids = reply.get("tokens")
            tokens = None if ids is None else TokenBlock.of(ids, reply.get("logprobs", [-0.5] * len(ids)))
            prompt = TokenBlock.of(reply["prompt"]).ids if "prompt" in reply else None
            response = ChatResponse(
                message={"role": "assistant", "content": "ok"},
                tokens=tokens,
                prompt_ids=prompt,
                prompt_prefix=reply.get("prefix", 0),
            )
            assembler.add(number, parent, response, ChatPurpose.POLICY)
            parent = number
    got = [
        {"ids": segment.ids.tolist(), "mask_runs": list(segment.mask_runs), "chats": list(segment.chats)}
        | ({"drift_index": segment.drift_index} if segment.drift_index is not None else {})
        | {"logprobs": segment.logprobs.tolist(), "sample": "main"}
        for segment in assembler.segments()
    ]
    assert not list(differences(case.body["segments"], got, {}))


HELLO = {"server": {"attachment_id": "attachment of a test"}, "trainer": {"journal_id": "journal"}}
ACCEPTED = {"server": {"init", "chat_reply", "heartbeat", "goodbye"}, "trainer": {"init_reply", "chat", "heartbeat"}}
MESSAGES = {
    "server": (services_pb2.AttachRequest, services_pb2.AttachResponse),
    "trainer": (services_pb2.AttachResponse, services_pb2.AttachRequest),
}
OUTPUTS = "handles", "writes", "ended"


@pytest.mark.parametrize("script", vector("transcripts"), ids=lambda script: script["name"])
def test_a_stream_does_what_its_transcript_says(script):
    side = script["side"]
    received, sent = MESSAGES[side]
    beat = json_format.ParseDict({"frames": [{"heartbeat": {}}]}, sent()).SerializeToString()
    machine = StreamMachine(beat, waits=side == "trainer", half_closes=side == "trainer", now=0.0)
    machine.expect_hello(0.0, alone=side == "server")
    for step in script["steps"]:
        now, got = float(step["at"]), {"handles": [], "writes": []}
        if "gets" in step:
            names = step["gets"] * step.get("times", 1)
            frames = [{name: HELLO[side] if name == "hello" else {}} for name in names]
            message = json_format.ParseDict({"frames": frames}, received())
            machine.receive(message, message.ByteSize(), now)
            while frames := machine.next_frames(ACCEPTED[side]):
                got["handles"] += [kind for kind, _ in frames]
        elif "sends" in step:
            machine.send(json_format.ParseDict({"frames": [{step["sends"]: {}}]}, sent()).SerializeToString())
        elif "gets_end" in step:
            machine.received_end()
        elif "ends" in step:
            machine.end(None, now)
        else:
            machine.tick(now)
        while (data := machine.next_message(now)) is not None:
            got["writes"] += [frame.WhichOneof("frame") for frame in sent.FromString(data).frames]
            machine.written(now)
        if machine.state.value == "ended":
            error = machine.failure or machine.error
            got["ended"] = "OK" if error is None else code_name(error.code)
        assert {name: value for name, value in got.items() if value} == {
            name: step[name] for name in OUTPUTS if name in step
        }


def test_the_page_names_every_kind_step_and_operator():
    names = {*SERVER, *TRAINER, *server_steps.VERBS, *trainer_steps.VERBS}
    assert not sorted(name for name in names if f"`{name}`" not in TEXT)
    assert not sorted(name for name in patterns.OPERATORS if f"{{{name}:" not in TEXT)


def test_the_page_has_the_number_of_faults():
    assert f"plants {len(faults.SERVER) + len(faults.TRAINER)} faults" in TEXT


def test_a_trainers_author_finds_the_cases_that_the_page_names():
    page = (ROOT / "docs" / "write-a-trainer.md").read_text(encoding="utf-8")
    table = page[page.index("| rule of this page | case |") :]
    named = set(re.findall(r"`([a-z0-9-]+-[a-z0-9-]+|goodbye)`", table))
    assert len(named) > 25
    assert not named - {case.name for case in load("trainer", TRAINER)}


@pytest.mark.conformance
@pytest.mark.timeout(120)
async def test_the_commands_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Reader(tmp_path) as reader:
        for block in blocks_of(PAGE):
            await reader.run(block, timeout=60)
    printed = "".join(reader.output)
    assert "1 case in" in printed
    assert "3 cases in" in printed
