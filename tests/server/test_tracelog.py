"""--log: one .jsonl per rollout; the id names the file but never is its name."""

import json

import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.server.tracelog import TraceLog, new_folder
from osmosis_grpc.trainer import RolloutClient
from tests.waiting import ended


@pytest.mark.parametrize("rollout_id", ["rollout-abc123", "..hidden", "ü" * 200, "CON", "a b:c*d"])
async def test_one_file_per_rollout(serve, train, tmp_path, rollout_id):
    trace = TraceLog(new_folder(tmp_path))
    server, trainer = await serve(), await train(ToolCallingMock(), tokens="s3cret")
    server.engine.log.add_sink(trace)
    messages = [{"role": "user", "content": "What is 1 + 2?"}]
    async with RolloutClient(server.address) as client:
        callback = trainer.callback(credential="s3cret", state=b"state")
        await client.init(rollout_id=rollout_id, messages=messages, callback=callback)
        await trainer.outcome(rollout_id)
        await ended(client, rollout_id)
    path = trace.path(rollout_id)
    (folder,) = tmp_path.iterdir()
    assert path.parent == folder
    assert folder.name.isdecimal()
    assert path.name.isascii()
    assert len(path.name) < 100
    assert rollout_id not in path.name.split(".jsonl")[0] or rollout_id + "-" in path.name
    text = path.read_text()
    assert "s3cret" not in text
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0]["event"] == "accepted"
    assert "ended" in {row["event"] for row in rows}
    answered = next(row for row in rows if row["event"] == "chat_answered")
    assert (
        len(answered["data"]["response"]["tokens"]["ids"])
        == len(answered["data"]["response"]["tokens"]["logprobs"])
        > 0
    )
