"""Images of messages are shown from the rollout itself, and a batch has a lane for each rollout."""

import base64
import html
import re

import pytest

from osmosis_grpc.cli.view_demo import FLAG
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer
from osmosis_grpc.viewer.images import parts_of
from tests.viewer.conftest import MARKUP, TURNS, Traveller, browsing

BYTES = base64.b64decode(FLAG.partition(",")[2])
SVG = f"data:image/svg+xml;base64,{base64.b64encode(b'<svg onload=alert(1)/>').decode()}"


def test_only_pictures_without_scripts_are_images():
    content = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": FLAG}},
        {"type": "image_url", "image_url": {"url": SVG}},
        {"type": "image_url", "image_url": {"url": "https://elsewhere.example/picture.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": FLAG.partition(",")[2]}},
    ]
    assert [bool(part.url) for part in parts_of(content)] == [False, True, False, True]
    assert parts_of("words")[0].text == "words"
    assert parts_of(None) == []


@pytest.fixture
async def pictured(tmp_path):
    """A client of a viewer of a rollout whose prompt has an image."""

    async def policy(request):
        return answer(request, "A flag.")

    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": FLAG}}]
    async with (
        AgentServer([Traveller()], port=0, state_dir=tmp_path) as server,
        Trainer([server.address], policy) as trainer,
    ):
        await trainer.rollout(rollout_id="seen", messages=[{"role": "user", "content": content}])
    async with browsing(FolderSource(tmp_path)) as client:
        yield client


async def test_an_image_of_a_prompt_is_served_by_the_viewer(pictured):
    text = (await pictured.get("/turn?id=seen&turn=1")).text
    address = html.unescape(re.search(r'<img [^>]*src="([^"]+)"', text)[1])
    assert address.startswith("/rollout/image?")
    image = await pictured.get(address)
    assert (image.content, image.headers["content-type"]) == (BYTES, "image/png")
    assert image.headers["x-content-type-options"] == "nosniff"
    assert (await pictured.get("/rollout/image?id=seen&image=unknown")).status_code == 404


async def test_a_batch_has_a_lane_for_each_rollout_that_the_filters_select(viewer):
    text = (await viewer.get("/batch")).text
    assert len(re.findall(r"<tr data-id=", text)) == len(TURNS)
    assert MARKUP not in text
    failed = (await viewer.get("/batch?state=failed")).text
    assert re.findall(r'<tr data-id="(\S+) 1"', failed) == ["bad"]
    assert "No rollout matches" in (await viewer.get("/batch?agent=nobody")).text
    assert (await viewer.get("/batch?colour=red")).status_code == 400
