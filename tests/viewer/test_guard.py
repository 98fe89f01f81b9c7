"""The viewer's guard: hosts, origins, tokens, headers of answers, and texts that are no HTML."""

from contextlib import AsyncExitStack

import httpx
import pytest

from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.viewer.app import serve_viewer, viewer_app
from osmosis_grpc.viewer.guard import MOST_QUERY, MOST_STREAMS
from tests.viewer.conftest import CANARY, MARKUP, TURNS, browsing, calling
from tests.waiting import until

PATHS = ["/", "/server", "/rollout?id=hostile", "/turn?id=hostile&turn=1", "/rollout?id=none", "/?state=none"]
PATHS += [f"/group?id=g{MARKUP}", "/curves", f"/curves?group=g{MARKUP}", "/findings", "/batch", "/throughput", "/runs"]
TOKEN = "a-secret-token"


@pytest.mark.parametrize(
    ("host", "status"),
    {
        "evil.example": 403,
        "127.0.0.1.evil.example:80": 403,
        "localhost.evil.example": 403,
        "127.0.0.1@evil.example": 403,
        "": 403,
        "localhost": 200,
        "127.0.0.1:7700": 200,
        "[::1]:7700": 200,
    }.items(),
)
async def test_a_request_has_to_name_this_machine(viewer, host, status):
    for path in ("/", "/rollout.json?id=good", "/static/page.js"):
        assert (await viewer.get(path, headers={"host": host})).status_code == status


async def test_a_page_of_another_origin_changes_nothing(following):
    server, client = following
    own = str(client.base_url)
    wrong = [{}, {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": own, "sec-fetch-site": "cross-site"}]
    for headers in wrong:
        assert (await client.post("/server/drain", headers=headers)).status_code == 403
    async with calling(server) as caller:
        assert not (await caller.info()).draining
    answer = await client.post("/server/drain", headers={"origin": own})
    assert (answer.status_code, answer.headers["location"]) == (303, "/server")
    assert "DRAINING" in (await client.get("/server")).text


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_another_site_may_link_to_the_viewer_and_not_load_from_it(viewer, site):
    for path in ("/", "/rollout.json?id=good", "/static/page.js", "/search?text=sunny"):
        for mode in ("no-cors", "cors", "same-origin", "websocket"):
            headers = {"sec-fetch-site": site, "sec-fetch-mode": mode}
            assert (await viewer.get(path, headers=headers)).status_code == 403
    headers = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    assert (await viewer.get("/rollout?id=good", headers=headers)).status_code == 200
    own = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert (await viewer.get("/rollout.json?id=good", headers=own)).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/....//app.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/page.js%00.css",
        "/static/",
    ],
)
async def test_only_the_files_of_the_viewer_are_served(viewer, path):
    url = httpx.URL(str(viewer.base_url)).copy_with(raw_path=path.encode())
    answer = await viewer.get(url)
    assert answer.status_code == 404
    assert "serve_viewer" not in answer.text


async def test_an_address_is_bounded(viewer):
    assert (await viewer.get("/?agent=" + "a" * MOST_QUERY)).status_code == 414
    long = await viewer.get("/?q=" + "a" * 501)
    assert (long.status_code, "search for at most 500" in long.text) == (400, True)
    once, often = [await viewer.get("/?" + "&".join(["state=failed"] * count)) for count in (1, 600)]
    assert once.content == often.content


async def test_a_wrong_page_or_a_very_long_time_is_named(viewer, following):
    for client in (viewer, following[1]):
        for option in ("since", "before", "stalled"):
            answer = await client.get(f"/?{option}={'9' * 30}d")
            assert (answer.status_code, "more than 100 years" in answer.text) == (400, True)
    for page in ("older", "-1", "9" * 40, "\u0661"):
        answer = await viewer.get("/", params={"page": page})
        assert (answer.status_code, "is not a page of this list" in answer.text) == (400, True)
        async with viewer.stream("GET", "/stream", params={"page": page}) as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "event: problem"
            assert "is not a page of this list" in await anext(lines)


async def test_streams_are_bounded_and_pages_are_still_shown(viewer):
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=viewer.base_url, limits=limits, timeout=60, verify=False) as browser:
        async with AsyncExitStack() as stack:
            for _ in range(MOST_STREAMS):
                stream = await stack.enter_async_context(browser.stream("GET", "/stream"))
                assert stream.status_code == 200
            refused = await browser.get("/stream")
            assert (refused.status_code, "close some" in refused.text) == (503, True)
            assert (await browser.get("/")).status_code == 200

        async def is_free():
            async with browser.stream("GET", "/stream") as stream:
                return stream.status_code == 200

        await until(is_free)


@pytest.mark.parametrize("path", [*PATHS, "/static/page.js", "/static/style.css"])
async def test_each_answer_has_the_headers_that_keep_other_pages_out(viewer, path):
    headers = (await viewer.get(path)).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


async def test_texts_of_models_tools_and_callers_are_never_html(viewer):
    paths = [*PATHS, "/?q=" + MARKUP, f"/?agent={MARKUP}", f"/?{MARKUP}=1", "/rollout/turns?id=good&first=0"]
    paths += [f"/rollout?id={name}" for name in TURNS] + [f"/turn?id={name}&turn=1" for name in TURNS]
    shown = 0
    for path in paths:
        for headers in ({}, {"hx-request": "true"}):
            text = (await viewer.get(path, headers=headers)).text
            assert "<img" not in text, path
            shown += "&lt;img src=x onerror=alert(1)&gt;" in text
    assert shown > 20


async def test_pages_have_no_inline_script_and_no_style_attribute(viewer):
    for path in PATHS:
        text = (await viewer.get(path)).text
        assert " style=" not in text
        assert "<style" not in text
        assert " onclick=" not in text
        assert text.count("<script") == text.count('<script src="/static/')
        assert "http" + "://" not in text.replace(str(viewer.base_url), "")


async def test_with_a_token_a_browser_gets_a_cookie(folder):
    async with browsing(FolderSource(folder), token=TOKEN) as client:
        for wrong in ("/", "/?token=wrong", "/static/page.js", "/rollout.json?id=good"):
            assert (await client.get(wrong)).status_code == 401
        assert (await client.get("/", headers={"authorization": "Bearer wrong"})).status_code == 401
        assert (await client.get("/", headers={"authorization": f"Bearer {TOKEN}"})).status_code == 200
        answer = await client.get(f"/rollout?id=good&token={TOKEN}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/rollout?id=good")
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert TOKEN not in answer.headers["set-cookie"]
        text = (await client.get("/rollout?id=good")).text
        assert "COMPLETED" in text
        assert TOKEN not in text


async def test_a_token_leaves_the_address_also_with_a_cookie_and_no_header_can_be_added(folder):
    async with browsing(FolderSource(folder), token=TOKEN) as client:
        assert (await client.get("/", params={"token": TOKEN})).status_code == 303
        for token in (TOKEN, "old"):  # an address that was opened before
            answer = await client.get("/", params={"state": "failed", "token": token})
            assert (answer.status_code, answer.headers["location"]) == (303, "/?state=failed")
        for path in ("//evil.example", "/%5cevil.example", "/%0d%0aset-cookie:%20a=b", "/a%0d%0alocation:%20b"):
            url = httpx.URL(str(client.base_url)).copy_with(raw_path=f"{path}?token={TOKEN}".encode())
            answer = await client.get(url)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/")
            assert not answer.headers["location"].startswith(("//", "/\\"))
            assert len(answer.headers.get_list("location")) == len(answer.headers.get_list("set-cookie")) == 1


async def test_over_tls_the_cookie_is_sent_over_tls_only(folder):
    async with FolderSource(folder) as source:
        for scheme in ("http", "https"):
            transport = httpx.ASGITransport(viewer_app(source, token=TOKEN))
            async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://127.0.0.1", verify=False) as client:
                cookie = (await client.get("/", params={"token": TOKEN})).headers["set-cookie"]
            assert "SameSite=strict" in cookie
            assert ("Secure" in cookie) == (scheme == "https")


async def test_two_viewers_on_one_host_have_cookies_of_their_own(folder):
    async with (
        browsing(FolderSource(folder), token=TOKEN) as one,
        browsing(FolderSource(folder), token="other") as two,
        httpx.AsyncClient(trust_env=False, verify=False) as browser,
    ):
        for client, token in ((one, TOKEN), (two, "other")):
            await browser.get(str(client.base_url), params={"token": token})
        for client in (one, two):
            assert (await browser.get(str(client.base_url))).status_code == 200


async def test_a_host_that_other_machines_reach_needs_a_token(folder):
    async with FolderSource(folder) as source:
        with pytest.raises(ValueError, match="needs a token: --token-file FILE"):
            async with serve_viewer(source, host="0.0.0.0"):
                raise AssertionError
        async with serve_viewer(source, host="0.0.0.0", token=TOKEN) as http, httpx.AsyncClient(verify=False) as client:
            address = f"http://127.0.0.1:{http.port}/"
            assert (await client.get(address)).status_code == 401
            assert (await client.get(address, params={"token": TOKEN}, follow_redirects=True)).status_code == 200


async def test_the_token_of_the_server_is_on_no_page(following):
    _, client = following
    for path in [*PATHS, "/rollout.json?id=good", "/turn.json?id=good&turn=1", "/messages.json?id=good"]:
        page = await client.get(path)
        assert CANARY not in page.text
        assert CANARY not in str(page.headers)
