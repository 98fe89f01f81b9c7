"""The example with pictures: they reach the model as bytes, and are in the sample's messages afterwards."""

import base64
import json
import struct
import sys
import zlib
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from aiohttp import web

from osmosis_grpc.policies import ChatRenderer, FinishReason, Generated, Modality, OpenAIPolicy, TokenPolicy
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import RolloutRequest, Trainer
from tests.policies.byte_tokenizer import ByteTokenizer
from tests.processes import ROOT

FOLDER = ROOT / "examples" / "image_agent"
PAIR = ["green", "yellow"]


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield __import__("picture")
    sys.modules.pop("picture")


def colours_of(png, known):
    """What a model that sees says: the nearest colour of each square of a PNG."""
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    length = struct.unpack(">I", png[33:37])[0]
    rows = np.frombuffer(zlib.decompress(png[41 : 41 + length]), "uint8").reshape(height, 1 + 3 * width)
    pixels = rows[:, 1:].reshape(height, width // height, height, 3).mean(axis=(0, 2))
    names = list(known)
    near = np.abs(pixels[:, None] - np.array([known[name] for name in names])[None]).sum(-1).argmin(-1)
    return ", ".join(names[index] for index in near)


def request(example):
    return RolloutRequest(
        rollout_id="r",
        messages=[{"role": "system", "content": "You name colours."}],
        metadata={"colours": PAIR, "seed": 3},
        completion_params={"max_tokens": 16},
    )


def pictures_of(messages):
    return [part["image_url"]["url"] for m in messages if isinstance(m["content"], list) for part in m["content"][1:]]


def expected(example):
    pngs = [example.picture(PAIR, 3), example.picture(PAIR[:1], 4)]
    return pngs, [example.part(png)["image_url"]["url"] for png in pngs]


@asynccontextmanager
async def model_server(example, asked):
    """An OpenAI-compatible server whose model sees."""

    async def handle(http_request):
        body = await http_request.json()
        asked.append(body)
        png = base64.b64decode(pictures_of(body["messages"])[-1].partition(",")[2])
        text = colours_of(png, example.COLOURS)
        ids = list(text.encode())
        known = list(json.dumps(body["messages"]).encode())
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        choice |= {"token_ids": ids, "logprobs": {"content": [{"logprob": -0.5}] * len(ids)}}
        return web.json_response({"choices": [choice], "prompt_token_ids": known})

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_pictures_reach_an_openai_compatible_server_and_come_back(example, forked, tmp_path, capsys):
    _, urls = expected(example)
    assert min(map(len, urls)) > 1024, "so they travel as blobs"
    asked = []
    arguments = "-m", "agent:agent_loop", "--state-dir", str(tmp_path)
    with forked.serving(*arguments, cwd=FOLDER) as address:
        async with model_server(example, asked) as url, Trainer([address], OpenAIPolicy(url, "m")) as trainer:
            outcome = await trainer.rollout(request(example))
            await __import__("trainer").main(address, url, "m")
    sys.modules.pop("trainer")
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0), outcome.failure
    assert [pictures_of(body["messages"]) for body in asked[:2]] == [urls[:1], urls]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines] == ["COMPLETED  reward 1.0"] * 12
    assert pictures_of(outcome.samples["main"].messages) == urls
    assert outcome.samples["main"].trainable


@dataclass
class Seeing:
    """A generator whose model sees."""

    colours: dict
    tokenizer: ByteTokenizer
    media: list = field(default_factory=list)

    async def generate(self, asked):
        self.media.append([medium.data for medium in asked.media])
        assert {(medium.modality, medium.mime_type) for medium in asked.media} == {(Modality.IMAGE, "image/png")}
        ids = np.array(self.tokenizer.reply(colours_of(self.media[-1][-1], self.colours)), dtype="<u4")
        logprobs = np.full(len(ids), -0.5, dtype="<f4")
        return Generated(token_ids=ids, logprobs=logprobs, finish_reason=FinishReason.STOP)

    async def abort(self, request_id):
        raise AssertionError("nothing is aborted")


async def test_pictures_reach_a_generator_as_bytes(example, forked, tmp_path):
    class Pictures(ByteTokenizer):
        def apply_chat_template(self, messages, **options):
            flat = [
                m
                if isinstance(m["content"], str)
                else {**m, "content": "".join(part.get("text", "<image>") for part in m["content"])}
                for m in messages
            ]
            return super().apply_chat_template(flat, **options)

    pngs, urls = expected(example)
    tokenizer = Pictures()
    generator = Seeing(example.COLOURS, tokenizer)
    arguments = "-m", "agent:agent_loop", "--state-dir", str(tmp_path)
    with forked.serving(*arguments, cwd=FOLDER) as address:
        async with Trainer([address], TokenPolicy(ChatRenderer(tokenizer), generator)) as trainer:
            outcome = await trainer.rollout(request(example))
    assert outcome.reward == 1.0, outcome.failure
    assert generator.media == [pngs[:1], pngs]
    sample = outcome.samples["main"]
    assert pictures_of(sample.messages) == urls
    (segment,) = sample.segments
    assert (segment.chats, segment.drift_index) == ((1, 2), None)
