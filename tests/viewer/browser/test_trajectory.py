"""A rollout of 500 turns, the turn that failed, and the way to it from a failed `test`."""

import json
import re
import shlex
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from benchmarks.viewed import viewing
from tests.processes import run
from tests.viewer.browser.conftest import TURNS_OF_LONG
from tests.viewer.browser.live import answering
from tests.viewer.browser.readable import check_readable, wait_until

pytestmark = pytest.mark.browser

MOST_NODES = 3_000
AGENT = """
from osmosis_grpc.rollout import RolloutAgentLoop, tool

@tool
async def lookup(city: str) -> str:
    '''Finds a city.'''
    raise LookupError(f"no city {city} on the map")

class Guide(RolloutAgentLoop):
    name = "guide"
    tools = (lookup,)
    async def run(self, ctx):
        messages = await ctx.tool_loop(ctx.request.messages)
        raise LookupError("the guide is lost")

agent_loop = Guide()
"""


def nodes(page):
    """Return the number of nodes of the page that is drawn next."""
    return page.evaluate(
        """new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(
            () => done(document.querySelectorAll('*').length))))"""
    )


def turn(page, number):
    return page.locator(f'details.turn[data-name="main/{number}"]')


def test_500_turns_can_be_read_to_the_end_with_few_nodes(browse, viewed):
    page = browse(f"{viewed}rollout?id=long")
    expect(turn(page, 1)).to_be_visible()
    most = nodes(page)
    while not turn(page, TURNS_OF_LONG).is_visible():
        page.mouse.wheel(0, 700)  # most windows of the way are loaded
        most = max(most, nodes(page))
    assert most < MOST_NODES


def test_all_turns_in_a_high_window_are_loaded(browse, viewed):
    page = browse(f"{viewed}rollout?id=long")
    page.set_viewport_size({"width": 1280, "height": 6000})  # several parts of the timeline come into view at once
    for number in (1, 51, 101, 151):
        expect(turn(page, number)).to_be_visible()


def test_a_link_to_a_turn_that_is_being_loaded_opens_it(browse, viewed):
    page = browse(f"{viewed}rollout?id=long")
    held, released = [], []
    page.route("**/rollout/turns?*", lambda route: route.continue_() if released else held.append(route))
    page.mouse.wheel(0, 12_000)
    wait_until(page, lambda: held)
    first = int(parse_qs(urlsplit(held[0].request.url).query)["first"][0])
    page.evaluate(f"location.hash = 'turn={first + 7}'")
    released.append(True)
    for route in held:
        route.continue_()
    expect(turn(page, first + 7).locator(".call h4", has_text="result")).to_be_in_viewport()


def test_the_address_of_a_turn_opens_it(browse, viewed):
    page = browse(f"{viewed}rollout?id=long#turn=250")
    opened = turn(page, 250)
    expect(opened.locator(".call h4", has_text="result")).to_be_in_viewport()
    assert opened.get_attribute("open") is not None
    wait_until(page, f"document.querySelectorAll('*').length < {MOST_NODES}")  # the far turns are emptied
    expect(opened.locator(".call h4", has_text="result")).to_be_in_viewport()


def test_a_page_stays_at_its_turn_while_the_bodies_above_are_slow(browse, viewed):
    page = browse(viewed)
    page.clock.install()
    held = []
    page.route("**/turn?turn=1&*", lambda route: held.append(route))
    page.goto(f"{viewed}rollout?id=good#turn=3")
    turns = page.locator("details.turn")
    expect(turns.nth(2).locator(".message.assistant")).to_be_visible()
    wait_until(page, lambda: held)
    page.clock.fast_forward(10_000)
    held[0].continue_()
    expect(turns.first.locator(".call")).to_be_visible()
    bottom = "document.documentElement.scrollHeight - innerHeight - scrollY < 2"
    top = "document.querySelectorAll('details.turn')[2].getBoundingClientRect().top < 120"
    wait_until(page, f"{bottom} || {top}")


def test_reasoning_is_folded_and_a_call_has_its_result(browse, viewed):
    page = browse(f"{viewed}rollout?id=good#turn=1")
    body = turn(page, 1).locator(".body")
    expect(body.locator("details.reasoning summary")).to_be_visible()
    expect(body.locator("details.reasoning pre")).to_be_hidden()
    call = body.locator(".call")
    expect(call).to_contain_text("weather")
    expect(call).to_contain_text("sunny <img src=x onerror=alert(1)>")
    page.locator("#show-reasoning").check()
    expect(body.locator("details.reasoning pre")).to_be_visible()
    page.locator("#show-tools").uncheck()
    expect(call).to_be_hidden()


def test_the_copied_messages_are_those_of_the_rollout(browse, viewed):
    page = browse(f"{viewed}rollout?id=good")
    page.get_by_role("button", name="Copy messages").click()
    wait_until(page, "navigator.clipboard.readText().then((text) => text.startsWith('['))")
    messages = json.loads(page.evaluate("navigator.clipboard.readText()"))
    roles = [message["role"] for message in messages]
    assert roles == ["user", *["assistant", "tool"] * 2, "assistant"]
    button = page.get_by_role("button", name="Copy replay command")
    button.dblclick()
    wait_until(page, "navigator.clipboard.readText().then((text) => text.startsWith('osmosis-grpc replay good -m '))")
    expect(button).to_be_visible()  # it has its name again, also after two clicks


def test_a_running_rollout_is_updated_without_a_reload(browse, followed):
    address, url = followed
    with answering(address, "slow") as answer:
        page = browse(f"{url}rollout?id=slow")
        page.evaluate("window.same = true")
        expect(page.locator("header.rollout")).to_contain_text("RUNNING")
        expect(turn(page, 1).locator(".body")).to_contain_text("waits for a reply")
        answer.put({"tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}]})
        expect(turn(page, 1).locator(".call")).to_contain_text("result")
        expect(turn(page, 2).locator(".body")).to_contain_text("waits for a reply")
        check_readable(page)
        page.set_viewport_size({"width": 1280, "height": 800})
        answer.put({"content": "It is 3."})
        expect(turn(page, 2).locator(".body")).to_contain_text("It is 3.")
        expect(page.locator("header.rollout")).to_contain_text("COMPLETED")
        expect(page.locator("#pause")).to_be_hidden()
        assert page.evaluate("window.same")


def test_two_clicks_lead_from_a_failed_test_to_the_result_of_the_failing_tool(browse, tmp_path):
    (tmp_path / "agents.py").write_text(AGENT)
    (tmp_path / "rows.jsonl").write_text('{"user_prompt": "Where is Atlantis?", "ground_truth": "nowhere"}\n')
    arguments = ("test", "-m", "agents:agent_loop", "-d", "rows.jsonl", "--model", "mock:tools")
    done = run("-m", "osmosis_grpc", *arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    (words,) = re.findall(r"^.*osmosis.grpc view (.*)$", done.stdout, re.MULTILINE)
    with viewing(*shlex.split(words), cwd=tmp_path) as url:
        page = browse(url)  # the first click, on the address that `view` prints
        result = page.locator("details.turn.failing[open] .call pre", has_text="on the map").first
        expect(result).to_be_in_viewport()
