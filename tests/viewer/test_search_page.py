"""The search in the messages of all rollouts: hits with their turns, bounds, and text that stays text."""

import re

from osmosis_grpc.protocol.types import RolloutFilter
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.viewer.search import MOST_HITS, search
from tests.viewer.conftest import MARKUP, TURNS


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
