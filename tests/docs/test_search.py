"""The search of the site finds the page that has the answer, in Chromium."""

import functools
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

import pytest

from benchmarks.viewer import PROGRAMS
from tests.docs.test_site import build

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_spec("playwright") is None, reason="needs the extra browser"),
]
ANSWERS = {
    "drift": "policies/",
    "MCP": "agents-you-have/",
    "checkpoint": "asynchronous/",
    "fork a rollout": "fork/",
    "Claude Code": "coding-agents/",
    "SIGHUP": "operators/",
    "pass@k": "eval/",
    "TOOL_EXCEPTION": "errors/",
    "browser": "viewer/",
}
"""What a reader types, and the page that must be among the first three results."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site."""
    folder = tmp_path_factory.mktemp("site")
    assert build(folder).returncode == 0
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def page(site):
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.goto(site)
        yield page
        browser.close()


@pytest.mark.parametrize(("query", "answer"), ANSWERS.items())
@pytest.mark.timeout(180)
def test_a_search_finds_the_page_with_the_answer(page, query, answer):
    field = page.locator(".md-search__input")
    field.fill("")
    page.locator(".md-search-result__item").first.wait_for(state="hidden")
    field.fill(query)
    field.press("End")  # the theme searches when a key is released
    page.locator(".md-search-result__item").first.wait_for()
    links = page.locator(".md-search-result__item > a:first-child")
    found = [links.nth(at).get_attribute("href") for at in range(min(3, links.count()))]
    assert any(f"/{answer}" in str(link) for link in found), found
