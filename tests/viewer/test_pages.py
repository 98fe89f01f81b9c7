"""The pages of the viewer, over HTTP: rollouts, one rollout with its turns, and the source."""

import re
from contextlib import AsyncExitStack

import pytest

from osmosis_grpc.policies.scripted import answer
from tests.callback_trainer import CallbackTrainer
from tests.viewer.conftest import TURNS, browsing, calling, serving, source_of


def ids(text):
    """Return the ids in the rows of the table."""
    return re.findall(r'<tr data-id="([^ "]+) 1">', text)


async def test_the_table_has_the_filters_of_list_in_its_address(viewer):
    page = await viewer.get("/")
    assert page.status_code == 200
    assert set(ids(page.text)) >= {"good", "bad", "hostile", "long"}
    assert ids((await viewer.get("/?state=failed")).text) == ["bad"]
    assert ids((await viewer.get("/?reason=agent-exception&agent=traveller")).text) == ["bad"]
    assert ids((await viewer.get("/?max-reward=0.4")).text) == []
    assert ids((await viewer.get("/?q=goo")).text) == ["good"]
    assert "osmosis-grpc list --state failed" in (await viewer.get("/?state=failed")).text


async def test_a_wrong_filter_says_what_to_name_instead(viewer):
    for query, words in {
        "state=finished": "is not a state; the states are",
        "min-reward=high": "is not a number",
        "colour=red": "there is no such filter; the filters are",
        "since=yesterday": "is not a time; name one such as 5s",
    }.items():
        page = await viewer.get(f"/?{query}")
        assert page.status_code == 400
        assert words in page.text


async def test_a_click_on_a_reward_filters_by_exactly_this_reward(viewer):
    text = (await viewer.get("/?min-reward=0.1")).text
    address = re.search(r'data-label="reward"><a class="plain" href="([^"]+)"', text)[1].replace("&amp;", "&")
    assert address == "/?min-reward=0.5&max-reward=0.5"
    assert set(ids((await viewer.get(address)).text)) >= {"good", "long"}


async def test_a_click_on_a_finish_reason_filters_and_tokens_are_those_of_prompts_and_replies(viewer):
    text = (await viewer.get("/?state=failed")).text
    address = re.search(r'class="finish"><a class="plain" href="([^"]+)"', text)[1].replace("&amp;", "&")
    assert address == "/?state=failed&finish-reason=error"
    found = (await viewer.get("/?finish-reason=error")).text
    assert ids(found) == ["bad"]
    assert "osmosis-grpc list --finish-reason error" in found
    metrics = (await viewer.get("/rollout.json?id=bad")).json()["metrics"]
    assert f"{metrics['prompt_tokens']:,} / {metrics['response_tokens']:,}</td>" in found


async def test_older_rollouts_are_on_further_pages(viewer):
    seen, address = [], "/?limit=2"
    while address:
        text = (await viewer.get(address)).text
        seen += re.findall(r'<tr data-id="([^"]+) 1">', text)
        older = re.search(r'href="([^"]+)">Older', text)
        address = older[1].replace("&amp;", "&") if older else ""
    assert len(seen) == len(set(seen)) == len(TURNS)


async def test_the_rows_follow_a_server(following):
    server, client = following

    async def reply(request):
        return answer(request, "Done.")

    async with client.stream("GET", "/stream") as stream:
        lines = stream.aiter_lines()
        async for line in lines:
            if "good" in line:
                break
        async with CallbackTrainer(reply) as trainer, calling(server) as rollouts:
            messages = [{"role": "user", "content": "Hi"}]
            await rollouts.init(rollout_id="newest", messages=messages, callback=trainer.callback())
            async for line in lines:
                if '"newest 1"' in line:
                    break
            else:
                raise AssertionError("the stream has ended")


async def test_the_link_of_a_failed_rollout_opens_the_turn_whose_tool_raised(viewer):
    links = re.findall(r'href="([^"]+)#failed"', (await viewer.get("/")).text)
    assert links == ["/rollout?id=bad&amp;attempt=1"]
    text = (await viewer.get("/rollout?id=bad")).text
    assert "AGENT_EXCEPTION" in text
    assert 'href="#turn=1">Turn 1, whose tool raised' in text
    assert 'data-failing="main/1"' in text
    assert text.count("tool raised</em>") == 1
    assert "conftest.py:" in text
    assert "in Traveller.run" in text


async def test_a_turn_pairs_tools_with_results_and_is_loaded_by_itself(viewer):
    page = (await viewer.get("/rollout?id=good")).text
    assert "It is sunny" in page  # the row has the beginning of the reply
    assert "thought" not in page
    turn = (await viewer.get("/turn?id=good&turn=1", headers={"hx-request": "true"})).text
    assert "<html" not in turn
    assert "thought" in turn
    assert turn.index("weather") < turn.index("Paris") < turn.index("result") < turn.index("sunny")
    raised = (await viewer.get("/turn?id=bad&turn=1", headers={"hx-request": "true"})).text
    assert "raised" in raised
    assert "no such city" in raised
    record = (await viewer.get("/turn.json?id=good&turn=1")).json()
    assert record["reply"]["message"]["tool_calls"][0]["function"]["name"] == "weather"


async def test_every_part_of_a_bar_can_be_seen(viewer):
    for name in ("bad", "long"):
        text = (await viewer.get(f"/rollout?id={name}")).text
        widths = [float(width) for width in re.findall(r'<rect class="(?:model|tools)"[^>]* width="([^"]+)"', text)]
        assert widths
        assert min(widths) > 8


async def test_a_long_rollout_has_windows(viewer):
    text = (await viewer.get("/rollout?id=long")).text
    assert text.count('<section class="window"') == 3
    assert text.count('<details class="turn ') == 50
    part = (await viewer.get("/rollout/turns?id=long&first=100")).text
    assert part.count('<details class="turn ') == 20
    assert (await viewer.get("/turn?id=long&turn=121")).status_code == 404
    assert (await viewer.get("/rollout?id=nothing")).status_code == 404


async def test_the_page_of_a_folder_and_of_a_server(viewer, following):
    assert "NOT IN USE" in (await viewer.get("/server")).text
    text = (await following[1].get("/server")).text
    assert "SERVING" in text
    assert "max concurrent" in text
    assert "traveller" in text


async def test_open_streams_end_with_the_viewer(following):
    _, client = following
    async with client.stream("GET", "/stream") as stream:
        async for line in stream.aiter_lines():
            if "rows" in line:
                break  # the viewer stops while this stream is open; a stop that waits for it runs into the time limit


async def test_a_server_that_has_gone_is_named(tmp_path):
    async with AsyncExitStack() as viewer:
        async with serving(tmp_path, {"good": 1}) as server:
            client = await viewer.enter_async_context(browsing(source_of(server)))
            assert (await client.get("/server")).status_code == 200
        page = await client.get("/server")
        assert page.status_code == 503
        assert server.address in page.text


OF_ROLLOUTS = ("", "/turns", "/image", ".json", "/tokens", "/tokens.json", "/tokens.bin")


@pytest.mark.parametrize("missing", ["id=none", "id=good&attempt=7", "id=good&attempt=-1", f"id=good&attempt={10**12}"])
@pytest.mark.parametrize("path", [*(f"/rollout{end}" for end in OF_ROLLOUTS), "/turn", "/turn.json", "/messages.json"])
async def test_what_does_not_exist_is_not_found(viewer, path, missing):
    assert (await viewer.get(f"{path}?{missing}&turn=1&image=x")).status_code == 404


@pytest.mark.parametrize(
    "address",
    [
        "/turn?id=good&turn=99",
        "/turn.json?id=good&turn=1&sample=none",
        "/messages.json?id=good&sample=none",
        "/rollout/tokens.bin?id=good&sample=none",
        "/rollout/image?id=good&image=none",
        "/group?id=none",
    ],
)
async def test_what_a_rollout_does_not_have_is_not_found(viewer, address):
    assert (await viewer.get(address)).status_code == 404
