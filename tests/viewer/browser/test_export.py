"""The pages as files in Chromium: an export in a subfolder of a web server."""

import functools
import re
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from osmosis_grpc.cli.view_demo import write_demo
from tests.processes import run
from tests.viewer.browser.readable import check_readable

pytestmark = pytest.mark.browser


class Quiet(SimpleHTTPRequestHandler):
    """Serves files as `python -m http.server` does."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def exported(tmp_path_factory, written):
    """The address of a web server with the export `site/of/out`."""
    folder, demo = tmp_path_factory.mktemp("exported"), str(written("demo", write_demo))
    done = run("-m", "osmosis_grpc", "view", demo, "--export", "site/of/out", cwd=folder)
    assert done.returncode == 0, done.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_folder_opens_from_a_web_server_in_a_subfolder(browse, exported):
    page = browse(f"{exported}site/of/out/")
    expect(page.locator(".rollouts tbody tr")).to_have_count(12)
    page.locator('[data-id^="demo-failing-1 "] th a').click()
    page.wait_for_url(re.compile("rollout-demo-failing-1.*#failed"))
    expect(page.locator("details.turn[open] .call", has_text="population")).to_be_visible()
    check_readable(page)
    page.keyboard.press("g")
    page.wait_for_url(f"{exported}site/of/out/index.html")
    page.locator('a[href^="group-demo-equal"]').first.click()
    expect(page.get_by_text("NO VARIANCE")).to_be_visible()
    page.locator(".lanes th a").first.click()
    expect(page.locator("header.rollout h1")).to_have_text(re.compile("demo-equal"))
