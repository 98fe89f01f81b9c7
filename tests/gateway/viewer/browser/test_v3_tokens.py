"""V3 in Chromium: 32,768 tokens by keys, in small binary windows, without a tokenizer, and a drift."""

import re

import pytest
from playwright.sync_api import expect

from osmosis_grpc.cli.view_demo import DRIFTING

pytestmark = pytest.mark.browser

MOST_WINDOW = 40 * 1024


def test_v3_32768_tokens_are_shown_by_windows(browse, large):
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


def test_v3_the_next_drift_is_one_key_away(browse, demo):
    page = browse(f"{demo}rollout/tokens?id={DRIFTING}")
    expect(page.locator("#tokens [role=gridcell]").first).to_be_visible()
    page.keyboard.press("d")
    expect(page.locator("#chosen-token")).to_contain_text("differs")
