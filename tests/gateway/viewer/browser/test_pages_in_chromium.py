"""Each template in Chromium: readable for everybody, harmless with hostile texts, and closed to other names."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.gateway.viewer.browser.conftest import REBOUND
from tests.gateway.viewer.conftest import MARKUP

pytestmark = pytest.mark.browser

HOSTILE = f"id{MARKUP}"
PAGES = {
    "rollouts": "",
    "nothing found": "?q=nothing-has-this-name",
    "rollout": "rollout?id=good#turn=1",
    "failed rollout": "rollout?id=bad#failed",
    "turn": "turn?id=good&turn=1",
    "tokens": "rollout/tokens?id=good",
    "group": f"group?id=g{MARKUP}",
    "curves": "curves",
    "throughput": "throughput",
    "search": "search?text=sunny",
    "source": "server",
}
SHOWN = {"rollout": "details.turn[open] .call", "failed rollout": "details.turn[open] .call"}
"""What a page loads after its begin."""


def opened(browse, viewed, name, **options):
    page = browse(viewed + PAGES[name], **options)
    if name in SHOWN:
        page.locator(SHOWN[name]).first.wait_for()
    return page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_serious_finding_of_axe(browse, viewed, name, dark):
    page = opened(browse, viewed, name, dark=dark)
    found = Axe().run(page).response["violations"]
    serious = {
        (one["id"], node["html"][:200])
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    }
    assert serious == set()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone(browse, viewed, name):
    page = opened(browse, viewed, name, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("path", ["", "rollout?id=hostile#turn=1", "rollout?id=bad#failed", f"rollout?id={HOSTILE}"])
def test_hostile_texts_are_shown_as_text_and_run_nothing(browse, viewed, path):
    page = browse(viewed + path)
    page.get_by_text(MARKUP).first.wait_for()
    assert page.locator("img").count() == 0


def test_a_name_that_is_bound_to_this_machine_later_is_refused(chromium, viewed):
    with chromium.new_context() as context:
        page = context.new_page()
        answer = page.goto(viewed.replace("127.0.0.1", REBOUND))
        assert answer.status == 403
        assert "good" not in page.content()
