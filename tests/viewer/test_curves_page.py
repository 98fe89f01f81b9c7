"""The page of curves, over HTTP, with 700 rollouts in a journal."""

import asyncio
import html
import json
import re

import pytest

from benchmarks.full_journal import fill

ROLLOUTS = 700


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A state folder with rollouts of four agents, a fifth of which failed."""
    path = tmp_path_factory.mktemp("filled")
    asyncio.run(fill(path, ROLLOUTS, 1, 2))
    return path


async def landed(viewer, address):
    """Return the ids and the rewards of all rollouts of an address, over all its pages."""
    found = {}
    while address:
        text = (await viewer.get(html.unescape(address))).text
        for row in re.findall(r"<tr data-id=.*?</tr>", text, re.DOTALL):
            name = re.search(r'data-id="([^ "]+)', row)[1]
            found[name] = re.search(r'data-label="reward">(?:<a[^>]*>)?([^<]*)', row)[1]
        older = re.search(r'href="([^"]+)">Older', text)
        address = older[1] if older else ""
    return found


def table(text):
    """Return the cells of the histogram: the address and the count of each, by row."""
    heat = re.search(r'<table class="heat">.*?</table>', text, re.DOTALL)[0]
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</th>(.*?)</tr>", heat, re.DOTALL)
    cells = [(name, re.findall(r'<a href="([^"]+)">([\d,]+)</a>', cells)) for name, cells in rows]
    return {name: [(address, int(count.replace(",", ""))) for address, count in row] for name, row in cells}


async def test_a_bin_leads_to_exactly_its_rollouts(viewer):
    bins = table((await viewer.get("/curves?steps=3")).text)
    bins.pop("no reward")
    assert len(bins) == 12
    everything, in_steps = {}, {}
    for (address, count), *steps in bins.values():
        found = await landed(viewer, address)
        assert len(found) == count
        assert not everything.keys() & found.keys()
        everything |= found
        for step_address, step_count in steps:
            part = await landed(viewer, step_address)
            assert len(part) == step_count
            assert part.items() <= found.items()
            assert not in_steps.keys() & part.keys()
            in_steps |= part
    rewarded = await landed(viewer, "/?state=completed&limit=500")
    assert everything == in_steps == rewarded
    assert all(rewarded.values())


async def test_bins_keep_the_filters_of_the_address(viewer):
    bins = table((await viewer.get("/curves?steps=2&agent=browser&max-reward=0.5")).text)
    address, count = next(iter(bins.values()))[0]
    assert "agent=browser" in address
    assert len(await landed(viewer, address)) == count > 0
    total = sum(row[0][1] for row in bins.values() if row)
    assert total == len(await landed(viewer, "/?agent=browser&max-reward=0.5"))


async def test_the_curves_have_the_values_of_the_rows(viewer):
    text = (await viewer.get("/curves?steps=4&pass=0.5")).text
    values = {
        title: json.loads(html.unescape(data))
        for data, title in re.findall(r'data-values="([^"]+)" data-title="([^"]+)"', text)
    }
    assert values["turns"] == [1.0] * 4
    assert values["tokens of replies"] == [2.0] * 4
    links = re.findall(r'<tr><th scope="row"><a href="([^"]+)">\d+</a></th><td>2', text)
    for at, link in enumerate(links):
        found = await landed(viewer, link)
        rewards = [float(reward) for reward in found.values() if reward]
        assert values["mean reward"][at] == pytest.approx(sum(rewards) / len(rewards), abs=1e-3)
        assert values["pass rate"][at] == pytest.approx(sum(each >= 0.5 for each in rewards) / len(rewards))
        failed = await landed(viewer, f"{link}&reason=tool_exception")
        assert values["failed by a tool"][at] == pytest.approx(len(failed) / len(found))
    assert at == 3


async def test_the_curves_of_calls_have_a_value_for_each_step(viewer):
    page = (await viewer.get("/curves?steps=4&agent=browser")).text  # so few that the events of all are read
    address = re.search(r'hx-get="(/curves/calls[^"]*)"', page)[1]
    text = (await viewer.get(html.unescape(address))).text
    values = {
        title: json.loads(html.unescape(data))
        for data, title in re.findall(r'data-values="([^"]+)" data-title="([^"]+)"', text)
    }
    links = re.findall(r'<tr><th scope="row"><a href="([^"]+)">\d+</a></th><td>2', page)
    steps = [(await landed(viewer, f"{link}&finish-reason=length"), await landed(viewer, link)) for link in links]
    cut = [len(truncated) / len(found) for truncated, found in steps]
    assert any(cut)
    assert values["truncated"] == pytest.approx(cut)
    assert values["tool calls that raised"] == [None] * 4


async def test_a_wrong_parameter_says_what_to_name_instead(viewer):
    for query, words in {
        "steps=0": "is not a number of steps; name one from 1 to 40",
        "steps=many": "is not a number",
        "pass=nan": "is not a reward",
        "since=@soon": "is not a time; name Unix seconds",
        "colour=red": "there is no such filter",
    }.items():
        page = await viewer.get(f"/curves?{query}")
        assert page.status_code == 400
        assert words in page.text
    assert "No rollout matches" in (await viewer.get("/curves?agent=nothing")).text
