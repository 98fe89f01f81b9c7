"""V3 in Chromium: 32,768 tokens by keys, in small binary windows, without a tokenizer, and a drift."""

import re

import pytest
from playwright.sync_api import expect

from osmosis_grpc.cli.view_demo import DRIFTING
from tests.viewer.browser.readable import check_readable

pytestmark = pytest.mark.browser

MOST_WINDOW = 40 * 1024


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
    expect(page.locator("#chosen-token")).to_contain_text("the first token that differs, index 4 of its segment")
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
