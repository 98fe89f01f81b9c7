"""The demo: eight rollouts over real sockets, every reward and every token recomputed here."""

import json
import re
import zlib

import numpy as np

from tests.processes import run


def formula(text, count):
    """Ids and logprobs as osmosis_grpc.policies.formula documents them, written again."""
    start = zlib.crc32(text.encode())
    ids = [(start + 7919 * i) % 32_000 for i in range(8 + start % 25 if count is None else count)]
    return ids, [float(np.float32(-(i % 1000 + 1) / 1000)) for i in ids]


def reward(messages, label):
    """1.0 when the last answer's number is the label, else 0.0."""
    said = re.search(r"####\s*(\S+)", messages[-1]["content"])
    return float(float(said[1]) == float(label))


def test_records_can_be_recomputed():
    result = run("-m", "osmosis_grpc", "demo", "--json")
    assert result.returncode == 0, result.stderr
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(records) == 8
    assert {record["event"] for record in records} == {"completion"}
    assert len({record["rollout_id"] for record in records}) == 8
    for record in records:
        assert record["status"] == "COMPLETED"
        assert record["finish_reason"] == "stop"
        assert record["reward"] == reward(record["messages"], record["label"])
        check_tokens(record)
    assert {record["reward"] for record in records} == {0.0, 1.0}, "a reward that is always 1 shows nothing"


def check_tokens(record):
    rollout_id, messages = record["rollout_id"], record["messages"]
    prompt, position = [], 0
    chats = record["samples"]["main"]["chats"]
    replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    assert [chat["number"] for chat in chats] == list(range(1, len(replies) + 1))
    for chat, reply in zip(chats, replies, strict=True):
        for new in range(position, reply):
            prompt = prompt + formula(f"{rollout_id}/main/message/{new}", 4)[0]
        ids, logprobs = formula(f"{rollout_id}/main/{chat['number']}", None)
        assert chat["prompt_ids"] == prompt
        assert chat["ids"] == ids
        assert chat["logprobs"] == logprobs
        prompt, position = prompt + ids, reply + 1


def test_the_table_for_people():
    result = run("-m", "osmosis_grpc", "demo")
    assert result.returncode == 0, result.stderr
    assert len(re.findall(r"demo-\d\s+COMPLETED", result.stdout)) == 8
    assert "Next:" in result.stdout
