"""Labels and notes that a person adds on the page of a rollout: in a folder, and on a server."""

import asyncio

import pytest

from osmosis_grpc.network.http.bounded_json import Bounds
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.viewer import annotations
from osmosis_grpc.viewer.annotations import MOST_BYTES
from tests.viewer.conftest import MARKUP, browsing, calling

FORM = {"labels": "wrong tool, look again,", "author": "Ada", "note": f"first line\r\nsecond {MARKUP}"}
PATH = "/rollout/annotate?id=good&attempt=1"


def form_of(client, **given):
    return {"data": given, "headers": {"origin": str(client.base_url), "hx-request": "true"}}


async def add_and_read(client):
    """Add a remark and return the part of the page and the whole page after it."""
    assert (await client.get("/rollout?id=good")).status_code == 200  # the viewer has read it
    part = await client.post(PATH, **form_of(client, **FORM))
    assert part.status_code == 200, part.text
    return part.text, (await client.get("/rollout?id=good")).text


def check(part, page):
    for text in (part, page):
        assert '<span class="label">wrong tool</span> <span class="label">look again</span>' in text
        assert "first line\nsecond &lt;img" in text
        assert "Ada" in text
    assert "<html" not in part


async def test_a_remark_is_in_the_folder_after_the_viewer_has_stopped(folder_of_one):
    async with browsing(FolderSource(folder_of_one)) as client:
        check(*(await add_and_read(client)))
    async with browsing(FolderSource(folder_of_one)) as client:
        record = (await client.get("/rollout.json?id=good")).json()
        assert record["annotations"][-1]["labels"] == ["wrong tool", "look again"]


async def test_a_remark_is_stored_by_the_server(following):
    server, client = following
    check(*(await add_and_read(client)))
    async with calling(server) as caller:
        info = await caller.get("good")
        found = [event async for event in caller.events("good", after=info.last_event_number - 1)]
        assert found[-1].kind.annotation.note == f"first line\nsecond {MARKUP}"


@pytest.mark.parametrize(
    ("form", "status", "words"),
    [
        ({"labels": " , ", "note": "  "}, 400, "there is nothing to add; write a label or a note"),
        ({"labels": "x" * 300}, 400, "has 300 characters, more than 256"),
        ({"note": "x" * 70_000}, 400, "has 70000 characters, more than 65536"),
        ({"note": "x" * MOST_BYTES}, 413, "shorten the note"),
    ],
)
async def test_a_wrong_form_says_what_to_write(viewer, form, status, words):
    answer = await viewer.post(PATH, **form_of(viewer, **form))
    assert (answer.status_code, words in answer.text) == (status, True), answer.text


async def test_a_remark_needs_a_rollout_and_the_viewers_own_page(viewer):
    missing = await viewer.post("/rollout/annotate?id=none&attempt=1", **form_of(viewer, note="x"))
    assert missing.status_code == 404
    for headers in ({}, {"origin": "http://evil.example"}, {"origin": "null"}):
        assert (await viewer.post(PATH, data=FORM, headers=headers)).status_code == 403
    assert ">wrong tool<" not in (await viewer.get("/rollout?id=good")).text


async def test_a_folder_that_a_server_uses_is_not_written(following, tmp_path):
    async with browsing(FolderSource(tmp_path)) as client:
        answer = await client.post(PATH, **form_of(client, **FORM))
        assert answer.status_code == 503
        assert "name the server that uses it with --from" in answer.text


async def test_slow_forms_are_given_up_and_keep_no_page_from_being_shown(viewer, monkeypatch):
    monkeypatch.setattr(annotations, "FORM", Bounds(size=MOST_BYTES, seconds=0.3))
    url = viewer.base_url
    head = f"POST {PATH} HTTP/1.1\r\nhost: {url.netloc.decode()}\r\norigin: {str(url).rstrip('/')}\r\n"
    head += "content-type: application/x-www-form-urlencoded\r\ncontent-length: 1000\r\n\r\nnote="
    opened = [await asyncio.open_connection(url.host, url.port) for _ in range(64)]
    for _, writer in opened:
        writer.write(head.encode())
    assert (await viewer.get("/rollout?id=good")).status_code == 200
    answers = [await reader.readline() for reader, _ in opened]
    assert {answer.split()[1] for answer in answers} == {b"408", b"503"}
    assert (await viewer.get("/rollout?id=good")).status_code == 200
    for _, writer in opened:
        writer.close()
