"""The table of 10,000 rollouts, its keys and filters, and rollouts that appear by themselves."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from tests.viewer.browser.conftest import apart
from tests.viewer.browser.live import answering, run

pytestmark = pytest.mark.browser

MOST_BYTES = 220_000


def ids(page):
    return page.locator(".rollouts tbody th a").all_inner_texts()


def test_the_first_page_of_10000_rollouts_is_small(browse, many):
    page = browse(many)
    assert len(page.answers[0].body()) < MOST_BYTES
    assert len(ids(page)) == 200
    page.get_by_role("link", name="Older rollouts").click()
    expect(page.locator(".rollouts tbody th a").first).to_have_text("rollout-009799")
    assert len(ids(page)) == 200


def test_keys_choose_open_and_search(browse, many):
    page = browse(many)
    names = ids(page)
    for key in "jjjk":
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    page.wait_for_url("**/rollout?*")
    assert parse_qs(urlsplit(page.url).query)["id"] == [names[1]]
    page.go_back()
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("rollout-00123")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=rollout-00123*")
    assert sorted(ids(page)) == [f"rollout-00123{digit}" for digit in range(10)]


def test_the_form_filters_by_state_and_reward_and_the_address_keeps_it(browse, many):
    page = browse(many)
    page.get_by_label("State").select_option("completed")
    page.get_by_label("Reward of at least").fill("0.9")
    page.keyboard.press("Enter")
    page.wait_for_url("**min-reward=0.9*")
    assert parse_qs(urlsplit(page.url).query) == {"state": ["completed"], "min-reward": ["0.9"]}
    rewards = [float(text) for text in page.locator('.rollouts [data-label="reward"]').all_inner_texts()]
    assert len(rewards) == 200
    assert min(rewards) >= 0.9
    expect(page.get_by_label("State")).to_have_value("completed")


def test_the_row_of_a_running_rollout_changes_without_a_reload(browse, followed):
    address, url = followed
    with answering(address, "changing") as answer:
        page = browse(f"{url}?q=changing")
        page.evaluate("window.same = true")
        row = page.locator('[data-id^="changing "]')
        expect(row).to_contain_text("RUNNING")
        expect(row).to_contain_text("idle")
        page.keyboard.press("j")
        answer.put({"content": "It is 3."})
        expect(row).to_contain_text("COMPLETED")
        expect(row).to_have_class("chosen")
        assert page.evaluate("window.same")


def test_a_new_rollout_appears_without_a_reload_unless_the_page_is_paused(browse, followed):
    address, url = followed
    page = browse(url)
    page.evaluate("window.same = true")
    apart(run(address, "first"))
    expect(page.locator('[data-id^="first "]')).to_contain_text("COMPLETED")
    page.keyboard.press("p")
    expect(page.locator("#pause")).to_have_text("Follow")
    apart(run(address, "second"))
    expect(page.locator("#missed")).to_have_text(re.compile("not shown"))
    expect(page.locator('[data-id^="second "]')).to_have_count(0)
    page.keyboard.press("p")
    expect(page.locator('[data-id^="second "]')).to_contain_text("COMPLETED")
    assert page.evaluate("window.same")


def test_a_hidden_tab_has_no_stream_and_is_up_to_date_when_it_is_shown_again(browse, followed):
    address, url = followed
    page = browse(f"{url}?q=hidden")
    turn = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}});"
    turn += "document.dispatchEvent(new Event('visibilitychange'))"
    expect(page.locator(".empty")).to_be_visible()
    tabs = [page]
    for number in range(7):  # a browser has six connections to a host
        tabs[-1].evaluate(turn.format("true"))
        tab = page.context.new_page()
        tab.goto(f"{url}?q=hidden&limit={number + 1}")
        tabs.append(tab)
    apart(run(address, "hidden"))
    expect(tabs[-1].locator('[data-id^="hidden "]')).to_contain_text("COMPLETED")
    expect(page.locator('[data-id^="hidden "]')).to_have_count(0)
    tabs[-1].evaluate(turn.format("true"))
    page.evaluate(turn.format("false"))
    expect(page.locator('[data-id^="hidden "]')).to_contain_text("COMPLETED")
