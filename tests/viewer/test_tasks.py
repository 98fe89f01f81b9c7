"""Prompts, labels and steps of the trainer: in the list, on the page of a task, on the curves and in compared runs."""

import asyncio
import html
import json
import re
import subprocess
import sys

import pytest

from osmosis_grpc.cli.view_demo import CITIES, STEPS, write_demo
from osmosis_grpc.protocol.types import Group, RolloutRequest
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.viewer.tasks import MOST_CHARS, task_of
from tests.viewer.conftest import MARKUP, browsing, serving, source_of

TASK = "How many people live in Lisbon?"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The state folder of the demonstration."""
    folder = tmp_path_factory.mktemp("demo")
    asyncio.run(write_demo(folder))
    return folder


@pytest.fixture
async def client(demo):
    async with browsing(FolderSource(demo)) as found:
        yield found


def row(text, name):
    """The row of a rollout in a table."""
    return re.search(rf'<tr data-id="{name} .*?</tr>', text, re.DOTALL)[0]


def ids(text):
    return re.findall(r'<tr data-id="([^ "]+)', text)


def names_of(text):
    """The names of the steps of a page of curves."""
    return json.loads(html.unescape(re.search(r'data-names="([^"]*)"', text)[1]))


async def test_a_list_has_prompt_label_and_reward(client):
    text = (await client.get("/")).text
    good, bad = row(text, "demo-mixed-1"), row(text, "demo-mixed-3")
    assert f">{TASK}</a>" in good
    assert 'data-label="label" title="545000">545000</td>' in good
    assert "zero" not in good
    assert 'class="plain zero"' in bad
    assert "[image_url]" in row(text, "demo-equal-1")


async def test_a_list_of_a_server_has_prompts_as_text(tmp_path):
    async with serving(tmp_path, {"good": 1, "bad": 1}) as server, browsing(source_of(server)) as client:
        text = (await client.get("/")).text
    assert ids(text) == ["bad", "good"]
    assert html.escape(f"How is it? {MARKUP}") in row(text, "good")
    assert MARKUP not in text


@pytest.mark.parametrize(
    ("request_of", "same"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, True),
        ({"messages": [{"role": "user", "content": "a"}], "label": "1"}, False),
        ({"messages": [{"role": "user", "content": "b"}]}, False),
        ({"messages": [], "metadata": {"seed": 1}}, False),
    ],
)
def test_a_task_is_a_prompt_with_its_label(request_of, same):
    first = task_of(RolloutRequest(rollout_id="x", messages=[{"role": "user", "content": "a"}]))
    found = task_of(RolloutRequest(rollout_id="y", group=Group("g", 0, 2), **request_of))
    assert (found.name == first.name) == same


def test_a_prompt_is_the_last_message_of_the_user_and_is_cut():
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u" * 1000}]
    assert task_of(RolloutRequest(rollout_id="x", messages=messages)).prompt == "u" * MOST_CHARS


async def test_a_task_has_all_its_attempts_over_groups_and_steps(client):
    text = (await client.get("/task?id=demo-mixed-1")).text
    names = [f"demo-{group}-{at + 1}" for group in ("mixed", "failing") for at in range(len(CITIES[group]))]
    assert ids(text) == names[::-1]
    assert "3 of 6 <small>50 %" in text
    squares = re.findall(r'<a class="(\w+)" href="/rollout', text)
    assert squares == ["best", "best", "zero", "zero", "none", "best", "none", "zero"]
    assert "People: 709000" in row(text, "demo-mixed-3")
    assert "AGENT_EXCEPTION" in row(text, "demo-failing-1")
    assert 'href="/group?id=demo-mixed"' in row(text, "demo-mixed-1")


async def test_a_task_of_a_server_has_its_attempts(tmp_path):
    turns = {"good": 1, "bad": 1, "more": 2}
    async with serving(tmp_path, turns) as server, browsing(source_of(server)) as client:
        text = (await client.get("/task?id=good")).text
        assert (await client.get("/task?id=unknown")).status_code == 404
    assert sorted(ids(text)) == sorted(turns)
    assert MARKUP not in text


async def test_curves_have_the_steps_of_the_trainer(client):
    text = (await client.get("/curves")).text
    assert names_of(text) == [str(step) for step in STEPS.values()]
    (rewards,) = re.findall(r'data-values="([^"]*)" data-title="mean reward"', text)
    assert json.loads(html.unescape(rewards)) == [0.5, 1.0, 0.5]
    links = json.loads(html.unescape(re.search(r'data-links="([^"]*)"', text)[1]))
    for link, group in zip(links, STEPS, strict=True):
        assert {name.split("-")[1] for name in ids((await client.get(link)).text)} == {group}


async def test_curves_go_by_acceptance_on_request_and_without_steps(client, viewer):
    assert names_of((await client.get("/curves?by=acceptance")).text) == ["1", "2", "3"]
    assert "in the order of acceptance" in (await viewer.get("/curves")).text
    assert "weight_step" in (await viewer.get("/curves?by=trainer")).text
    assert (await viewer.get("/curves?by=colour")).status_code == 400


async def test_a_search_for_a_step_takes_other_words_and_filters(client):
    assert ids((await client.get("/?q=step:9 failing-4")).text) == ["demo-failing-4"]
    assert len(ids((await client.get("/?q=step:9&state=failed")).text)) == 2
    assert ids((await client.get("/?q=step:1")).text) == []


async def test_the_facts_of_a_rollout_lead_to_its_step_and_its_task(client):
    text = (await client.get("/rollout?id=demo-mixed-2")).text
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", text))
    assert facts["label"] == "<code>545000</code>"
    assert facts["step of the trainer"] == '<a href="/?q=step%3A7">7</a>'
    assert 'href="/task?id=demo-mixed-2' in facts["task"]


@pytest.mark.slow
async def test_a_row_of_two_runs_is_shown_side_by_side(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"user_prompt": "What is 1 + 2?", "ground_truth": "3"}\n')
    agent = "osmosis_grpc.testing.calculator:agent_loop"
    for model in ("mock:echo", "mock:tools"):
        words = ("test", "-m", agent, "-d", "rows.jsonl", "--model", model, "-q")
        subprocess.run([sys.executable, "-m", "osmosis_grpc", *words], cwd=tmp_path, check=True, capture_output=True)
    first, last = sorted(path.parent for path in tmp_path.glob(".osmosis/runs/*/run.json"))
    async with browsing(FolderSource(last)) as client:
        query = f"run={first.name}&run={last.name}"
        compared = (await client.get(f"/compare?{query}")).text
        assert "What is 1 + 2?" in compared
        text = (await client.get(f"/compare/row?{query}&row=0")).text
        assert (await client.get(f"/compare/row?{query}&row=9")).status_code == 400
        assert (await client.get(f"/compare/row?run={first.name}&row=0")).status_code == 400
    assert "I called every tool." in text
    assert 'class="differs"' in text
    assert 'href="/rollout?id=test-' in text
