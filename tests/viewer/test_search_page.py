"""The pages of runs and of the search in messages."""

import html
import os
import re

import pytest

from osmosis_grpc.protocol.types import RolloutFilter
from osmosis_grpc.records.evaluate import RunFolder
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.viewer.search import MOST_HITS, search
from tests.viewer.conftest import MARKUP, TURNS, browsing

NONE = "\N{EN DASH}"
INPUTS = {"dataset": {"file": "sha256:1"}, "model": {"model": "one"}}


def hits(text):
    """Return the addresses of the hits."""
    return sorted(re.findall(r'<th scope="row"><a href="/rollout\?id=([^"]+)"', text))


async def test_a_hit_links_to_its_turn(viewer):
    text = (await viewer.get("/search?text=atlantis")).text
    assert hits(text) == ["bad&amp;attempt=1#turn=1"]
    assert "<mark>Atlantis</mark>" in text
    last = (await viewer.get("/search?text=It is sunny")).text
    assert "good&amp;attempt=1#turn=3" in hits(last)
    assert "long&amp;attempt=1#turn=120" in hits(last)
    assert len(hits((await viewer.get("/search?text=how is it?")).text)) == len(TURNS)


async def test_a_result_of_a_tool_is_in_the_turn_of_its_call(viewer):
    text = (await viewer.get("/search?text=no such city")).text
    assert hits(text) == ["bad&amp;attempt=1#turn=1"]


async def test_filters_narrow_a_search(viewer):
    assert hits((await viewer.get("/search?text=how is it?&state=failed")).text) == ["bad&amp;attempt=1#turn=1"]
    nothing = (await viewer.get("/search?text=assistant")).text
    assert "No message of these rollouts has this text." in nothing
    assert f"searched {len(TURNS)} rollouts" in nothing
    wrong = await viewer.get("/search?text=a&colour=red")
    assert wrong.status_code == 400
    assert "there is no such filter" in wrong.text
    long = await viewer.get(f"/search?text={'a' * 501}")
    assert long.status_code == 400
    assert "search for at most 500" in long.text


async def test_the_text_stays_text(viewer):
    page = await viewer.get("/search", params={"text": MARKUP})
    assert len(hits(page.text)) == len(TURNS)
    assert MARKUP not in page.text
    rollouts = (await viewer.get("/", params={"q": MARKUP})).text
    assert MARKUP not in rollouts
    assert 'href="/search?text=%3Cimg' in rollouts


async def test_a_search_stops_after_its_most_hits(folder):
    source = FolderSource(folder)
    rows, _ = await source.page(RolloutFilter())
    info = next(info for info in rows if info.rollout_id == "good")
    found = await search(source, [info] * (MOST_HITS + 20), "sunny")
    assert (len(found.hits), found.searched) == (MOST_HITS, MOST_HITS)


def write_run(path, scores, *, finish="stop", model="one", dataset="sha256:1"):
    """Write a run with one rollout for each score; None is a rollout that failed."""
    inputs = INPUTS | {"model": {"model": model}, "dataset": {"file": dataset}}
    about = {"command": "eval", "agent_loop": MARKUP, "model": model, "inputs": inputs, "eval_fns": ["exact"]}
    run = RunFolder.create(path, about | {"pass_threshold": 1.0})
    for row, score in enumerate(scores):
        status = "FAILED" if score is None else "COMPLETED"
        run.add(
            {
                "row_index": row,
                "line": row + 1,
                "rollout_id": f"eval-{path.name}-{row}",
                "status": status,
                "reward": score,
                "scores": {} if score is None else {"exact": score},
                "finish_reason": finish,
                "duration_ms": 250.0,
                "token_usage": {"completion_tokens": 10},
            }
        )
    run.end("finished", {"total": len(scores), "failed": scores.count(None)})
    run.unlock()


@pytest.fixture
async def runs(tmp_path):
    """A client of a viewer of run `c`, beside others."""
    write_run(tmp_path / "a", [0.0, 1.0, 0.0, 0.0])
    write_run(tmp_path / "b", [1.0, 1.0, 1.0, 0.0], finish="length")
    write_run(tmp_path / "c", [1.0, 0.0, 1.0, None], model="two")
    write_run(tmp_path / "other", [1.0], dataset="sha256:2")
    async with browsing(FolderSource(tmp_path / "c")) as client:
        yield client


def rows(text):
    """Return the rows of the last table: the text of each cell."""
    table = text[text.rindex("<tbody>") :]
    return [re.findall(r"<t[hd][^>]*>(?:<a[^>]*>)?([^<]*)", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]


async def test_the_runs_are_listed_and_the_newest_two_are_chosen(runs):
    text = (await runs.get("/runs")).text
    assert re.findall(r'name="run" value="([^"]+)"', text) == ["a", "b", "c", "other"]
    assert MARKUP not in text
    assert html.escape(MARKUP) in text


async def test_three_runs_are_compared_with_the_first_one(runs):
    text = (await runs.get("/compare?run=a&run=b&run=c")).text
    assert rows(text) == [
        ["0", "0", "1", "1", "1"],
        ["1", "1", "1", "0", "1"],
        ["2", "0", "1", "1", "1"],
        ["3", "0", "0", NONE, ""],
    ]
    assert re.search(r"<b>0\.25</b>.*<b>0\.75</b>.*\+0\.5", text)
    assert "model" in text[text.index("other inputs than A") :]
    assert "4 <small>100 %" in text[text.index(">truncated<") :]
    assert 'href="/compare/row?run=a&run=b&run=c&row=0"' in text
    assert "2 better" in text


async def test_a_wrong_choice_says_what_to_choose(runs):
    for query, words in {
        "run=a": "2 to 4 different runs",
        "run=a&run=a": "2 to 4 different runs",
        "run=a&run=../c": "there is no run",
        "run=a&run=b&score=speed": "these runs have no score",
        "run=a&run=other": "different datasets",
    }.items():
        page = await runs.get(f"/compare?{query}")
        assert page.status_code == 400
        assert words in page.text


HOSTILE = {
    "pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path.name),
    "not UTF-8": lambda path: path.write_bytes(b'\xff{"a":'),
}


@pytest.mark.parametrize("name", ["run.json", "results.jsonl"])
@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_run_whose_file_is_something_else_stops_no_page(tmp_path, kind, name):
    write_run(tmp_path / "a", [1.0])
    write_run(tmp_path / "b", [1.0])
    (tmp_path / "b" / name).unlink()
    HOSTILE[kind](tmp_path / "b" / name)
    async with browsing(FolderSource(tmp_path / "a")) as client:
        assert (await client.get("/runs")).status_code == 200
        assert (await client.get("/compare?run=a&run=b")).status_code == 400


@pytest.mark.parametrize("name", [b"a\xff\xfeb", b"line\nbreak", "turned\u202e".encode(), b"<b>&run=a"])
async def test_a_run_with_a_hostile_name_is_listed_and_compared(tmp_path, name):
    write_run(tmp_path / "a", [1.0])
    write_run(tmp_path / os.fsdecode(name), [0.0])
    async with browsing(FolderSource(tmp_path / "a")) as client:
        listed = (await client.get("/runs")).text
        (value,) = set(re.findall(r'name="run" value="([^"]*)"', listed)) - {"a"}
        compared = await client.get("/compare", params=[("run", "a"), ("run", html.unescape(value))])
        assert compared.status_code == 200
        assert "<b>&" not in listed + compared.text


async def test_a_state_folder_has_no_runs(viewer):
    assert (await viewer.get("/runs")).status_code == 404
    assert 'href="/runs"' not in (await viewer.get("/")).text
