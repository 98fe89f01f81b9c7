"""V4 to V7 in Chromium: groups, curves, throughput, search, and the server."""

import re

import pytest
from playwright.sync_api import expect

from tests.processes import run
from tests.viewer.browser.conftest import CANARY, apart
from tests.viewer.browser.live import run as run_rollouts
from tests.viewer.browser.readable import check_readable

pytestmark = pytest.mark.browser

PATHS = ("", "server", "throughput", "curves", "search?text=sum", "throughput.json", "rollout?id=secretive")
PATHS += ("rollout.json?id=secretive", "turn?id=secretive&turn=1", "turn.json?id=secretive&turn=1")
PATHS += ("messages.json?id=secretive", "rollout/turns?id=secretive", "rollout/tokens?id=secretive")
PATHS += ("rollout/tokens.json?id=secretive",)
"""Pages and data that show a rollout of the followed server, or the server."""


def test_a_group_of_8_rollouts_with_32_turns(browse, large):
    page = browse(f"{large}group?id=long")
    expect(page.locator(".lanes tbody tr")).to_have_count(8)
    expect(page.locator("table.beside thead th")).to_have_count(9)
    expect(page.locator("table.beside tbody tr").first.locator("td a").first).to_be_visible()


def _group(page, name):
    """The id of a group of the demonstration."""
    shown = page.locator('.rollouts a[href*="group="]').all_inner_texts()
    return next(one for one in shown if name in one)


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
