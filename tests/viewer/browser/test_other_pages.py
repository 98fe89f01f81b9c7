"""Groups, curves, throughput, search, and the server."""

import re

import pytest
from playwright.sync_api import expect

from osmosis_grpc.cli.view_demo import DRIFTING
from tests.processes import run
from tests.viewer.browser.conftest import CANARY, REBOUND, apart
from tests.viewer.browser.live import run as run_rollouts
from tests.viewer.browser.readable import check_readable
from tests.viewer.conftest import MARKUP

pytestmark = pytest.mark.browser
PATHS = ("", "server", "throughput", "curves", "search?text=sum", "throughput.json", "rollout?id=secretive")
HOSTILE = f"id{MARKUP}"
PAGES = {
    "rollouts": "?q=o",
    "nothing found": "?q=nothing-has-this-name",
    "rollout": "rollout?id=good#turn=1",
    "failed rollout": "rollout?id=bad#failed",
    "long rollout": "rollout?id=long",
    "turn": "turn?id=good&turn=1",
    "tokens": "rollout/tokens?id=good",
    "group": f"group?id=g{MARKUP}",
    "curves": "curves",
    "throughput": "throughput",
    "search": "search?text=sunny",
    "folder": "server",
}
REFUSED = {"no rollout": ("rollout?id=none", 404), "wrong filter": ("?state=none", 400)}
SHOWN = {"rollout": "details.turn[open] .call", "failed rollout": "details.turn[open] .call"}
"""What a page loads after its begin."""
MOST_WINDOW = 40 * 1024


PATHS += ("rollout.json?id=secretive", "turn?id=secretive&turn=1", "turn.json?id=secretive&turn=1")
PATHS += ("messages.json?id=secretive", "rollout/turns?id=secretive", "rollout/tokens?id=secretive")
PATHS += ("rollout/tokens.json?id=secretive",)
"""Pages and data that show a rollout of the followed server, or the server."""


def test_a_group_of_8_rollouts_with_32_turns(browse, large):
    page = browse(f"{large}group?id=long")
    expect(page.locator(".lanes tbody tr")).to_have_count(8)
    expect(page.locator("table.beside thead th")).to_have_count(9)
    expect(page.locator("table.beside tbody tr").first.locator("td a").first).to_be_visible()


def test_a_click_on_a_bin_leads_to_exactly_its_rollouts(browse, many):
    page = browse(f"{many}curves?steps=40")
    assert page.locator("#curves canvas").count() >= 4
    bins = page.locator("table.heat tbody").first.locator("td a")
    link = next(link for link in bins.all() if 0 < int(link.inner_text().replace(",", "")) < 150)
    count = int(link.inner_text())
    link.click()
    expect(page.locator(".rollouts tbody tr")).to_have_count(count)


def test_curves_and_findings_follow_a_server_and_can_be_paused(browse, followed):
    address, url = followed
    apart(run_rollouts(address, "before"))
    curves, findings = browse(f"{url}curves?steps=1&pass=1"), browse(f"{url}findings")
    count = re.compile(r"([\d,]+) rollouts")
    for page in (curves, findings):
        page.evaluate("window.same = true")
        expect(page.locator(".facts").first).to_contain_text(count)
    curves.get_by_text("Numbers of the steps").click()
    findings.keyboard.press("p")
    shown = [int(count.search(page.locator(".facts").first.inner_text())[1]) for page in (curves, findings)]
    apart(run_rollouts(address, "after"))
    expect(curves.locator(".facts").first).to_contain_text(f"{shown[0] + 1} rollouts")
    expect(curves.locator("#numbers tbody tr")).to_be_visible()
    assert curves.locator("#curves canvas").count() == curves.locator("#curves figure").count() == 8
    assert curves.evaluate("window.same")
    expect(findings.locator("#missed")).to_have_text(re.compile("not shown"))
    expect(findings.locator(".facts").first).to_contain_text(f"{shown[1]} rollouts")
    findings.keyboard.press("p")
    expect(findings.locator(".facts").first).to_contain_text(f"{shown[1] + 1} rollouts")


def test_keys_go_through_the_findings_and_a_shared_address_has_no_empty_fields(browse, demo):
    page = browse(f"{demo}findings")
    for key in "jjk":
        page.keyboard.press(key)
    expect(page.locator(".findings .chosen")).to_contain_text("AGENT_EXCEPTION")
    page.keyboard.press("Enter")
    page.wait_for_url("**/rollout?id=demo-failing-*#failed")
    page.keyboard.press("g")
    page.wait_for_url(demo)
    page.keyboard.press("/")
    page.keyboard.type("mixed")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{demo}?q=mixed")


def test_search_leads_to_the_turn_that_has_the_text(browse, viewed):
    page = browse(f"{viewed}search")
    page.locator("#search").fill("Atlantis")
    page.keyboard.press("Enter")
    row = page.locator(".hits tbody tr")
    expect(row).to_have_count(1)
    row.locator("th a").click()
    page.wait_for_url(re.compile("id=bad.*#turn="))
    expect(page.locator("details.turn[open]").first).to_contain_text("Atlantis")


def test_the_server_shows_its_limits_and_no_secret_and_can_drain(browse, followed):
    address, url = followed
    page = browse(f"{url}server")
    expect(page.locator("main")).to_contain_text("SERVING")
    expect(page.locator("main")).to_contain_text("calculator")
    apart(run_rollouts(address, "secretive"))
    for path in PATHS:
        answer = page.request.get(url + path)
        assert answer.ok, path
        assert CANARY not in answer.text()
        assert CANARY not in str(answer.headers)
    page.get_by_text("Drain this server").click()
    check_readable(page)
    page.get_by_role("button", name="Drain now").click()
    expect(page.locator("main")).to_contain_text("DRAINING")
    undone = run("-m", "osmosis_grpc", "ctl", "drain", "--undo", "--server", address, "--token", CANARY)
    assert undone.returncode == 0, undone.stderr


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_readable_in_light_and_dark_and_on_a_phone(browse, viewed, name):
    page = browse(viewed + PAGES[name])
    if name in SHOWN:
        page.locator(SHOWN[name]).first.wait_for()
    page.evaluate("document.querySelectorAll('#content details:not(.turn)').forEach((each) => { each.open = true; })")
    check_readable(page)


@pytest.mark.parametrize("name", REFUSED)
def test_a_page_that_says_what_is_wrong_is_readable(browse, viewed, name):
    path, status = REFUSED[name]
    check_readable(browse(viewed + path, status=status))


def test_the_keys_are_shown_in_a_dialog_that_is_readable(browse, viewed):
    page = browse(viewed)
    page.keyboard.press("?")
    page.locator("#help").wait_for()
    check_readable(page)
    page.keyboard.press("Escape")
    page.locator("#help").wait_for(state="hidden")


def test_a_name_that_is_bound_to_this_machine_later_is_refused(chromium, viewed):
    with chromium.new_context() as context:
        page = context.new_page()
        answer = page.goto(viewed.replace("127.0.0.1", REBOUND))
        assert answer.status == 403
        assert "good" not in page.content()


def test_32768_tokens_are_shown_by_windows(browse, large):
    page = browse(f"{large}rollout/tokens?id=long-3")
    expect(page.locator("main")).to_contain_text("32,768 sampled")
    expect(page.locator("#tokens [role=gridcell]").first).to_be_visible()
    assert page.evaluate("document.querySelectorAll('*').length") < 10_000
    page.locator("#tokens").focus()
    page.keyboard.press("End")
    expect(page.locator("#chosen-token")).to_contain_text(re.compile(r"3[2-9],?\d{3}"))
    windows = [answer for answer in page.answers if "tokens.bin" in answer.url]
    assert 1 <= len(windows) <= 6
    assert max(len(answer.body()) for answer in windows) <= MOST_WINDOW


def test_the_next_drift_is_one_key_away_and_has_its_index(browse, demo):
    page = browse(f"{demo}rollout/tokens?id={DRIFTING}")
    expect(page.locator("#tokens [role=gridcell]").first).to_be_visible()
    page.keyboard.press("d")
    expect(page.locator("#chosen-token")).to_contain_text("the first token that differs, index 20 of its segment")
    expect(page.locator("#tokens .chosen.drift")).to_be_in_viewport()
    check_readable(page)


def test_a_tokenizer_gives_the_texts_and_without_one_there_are_ids(browse, demo, large):
    page = browse(f"{demo}rollout/tokens?id={DRIFTING}")
    reply = page.locator("#tokens .reply b")
    expect(reply.first).to_have_text(")")  # the id 10
    page.locator("#ids").check()
    expect(reply.first).to_have_text("10")
    without = browse(f"{large}rollout/tokens?id=long-3")
    expect(without.locator("#tokens .reply b").first).to_have_text(re.compile(r"\d+"))
    expect(without.locator("#ids")).to_have_count(0)
