"""This project's own functions agree with the language-neutral vectors."""

import pytest

from osmosis_grpc.protocol.types import ChatPurpose, ChatResponse, TokenBlock, jsontext
from osmosis_grpc.protocol.types.segment_assembly import Assembler
from osmosis_grpc.testing.conformance.cases import load
from osmosis_grpc.testing.conformance.patterns import differences, json_equal
from osmosis_grpc.testing.conformance.server_kinds import KINDS
from osmosis_grpc.testing.conformance.vectors import pairs


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
    assembler, parent, number = Assembler(), 0, 0
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


def test_the_transcripts_are_those_of_the_stream():
    import subprocess
    import sys

    from tests.processes import ROOT

    done = subprocess.run([sys.executable, "scripts/conformance_transcripts.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0
