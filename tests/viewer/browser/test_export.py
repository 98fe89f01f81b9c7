"""An export in a subfolder of a web server, and a single file without a server."""

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
    """A folder with the export `site/of/out` and the file one.html, and its address at a web server."""
    folder, demo = tmp_path_factory.mktemp("exported"), str(written("demo", write_demo))
    for arguments in (("site/of/out",), ("one.html", "--single-file")):
        done = run("-m", "osmosis_grpc", "view", "--from", demo, "--export", *arguments, cwd=folder)
        assert done.returncode == 0, done.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_folder_opens_from_a_web_server_in_a_subfolder(browse, exported):
    _, address = exported
    page = browse(f"{address}site/of/out/")
    expect(page.locator(".rollouts tbody tr")).to_have_count(12)
    page.locator('[data-id^="demo-failing-1 "] th a').click()
    page.wait_for_url(re.compile("rollout-demo-failing-1.*#failed"))
    expect(page.locator("details.turn[open] .call", has_text="population")).to_be_visible()
    check_readable(page)
    page.keyboard.press("g")
    page.wait_for_url(f"{address}site/of/out/index.html")
    page.locator('a[href^="group-demo-equal"]').first.click()
    expect(page.get_by_text("NO VARIANCE")).to_be_visible()
    page.locator(".lanes th a").first.click()
    expect(page.locator("header.rollout h1")).to_have_text(re.compile("demo-equal"))


def test_a_single_file_needs_no_server(browse, exported):
    folder, _ = exported
    page = browse(f"file://{folder}/one.html")
    expect(page.locator(".rollouts tbody tr:visible")).to_have_count(12)
    page.locator(".rollouts tbody th a").first.click()
    expect(page.locator("h1:visible")).to_have_text("demo-failing-4")
    page.get_by_role("link", name="All rollouts").click()
    expect(page.locator(".rollouts tbody tr:visible")).to_have_count(12)
    check_readable(page)
