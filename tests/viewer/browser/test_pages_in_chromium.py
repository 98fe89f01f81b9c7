"""Each template in Chromium: readable for everybody, harmless with hostile texts, and closed to other names."""

import pytest

from tests.viewer.browser.conftest import REBOUND
from tests.viewer.browser.readable import check_readable
from tests.viewer.conftest import MARKUP

pytestmark = pytest.mark.browser

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
