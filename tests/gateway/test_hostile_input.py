"""Bodies that nobody means well with: a 4xx that names the field, or a cut connection; the server goes on."""

import asyncio
import contextlib
import gzip
import json
import socket
import tracemalloc

import pytest

from osmosis_gateway import http_bodies
from osmosis_gateway.routes import HttpAccess
from osmosis_grpc.network.http.bounded_json import Bounds
from osmosis_grpc.network.http.connections import BoundedProtocol
from osmosis_grpc.protocol.errors import InvalidArgument
from tests.gateway.conftest import INIT

MIB = 2**20


def text(field=None, raw="null", **more):
    """A body whose `field` is the JSON text `raw`."""
    body = {"rollout_id": "r1", "server_url": "http://127.0.0.1:9", "messages": [], "completion_params": {}} | more
    parts = {name: json.dumps(value) for name, value in body.items()}
    if field is not None:
        parts[field] = raw
    return ("{" + ",".join(f'"{name}":{value}' for name, value in parts.items()) + "}").encode()


def nested(levels):
    return "[" * levels + "]" * levels


NOT_JSON = {
    "NaN": text("metadata", '{"a":NaN}'),
    "Infinity": text("metadata", '{"a":Infinity}'),
    "-Infinity": text("metadata", '{"a":-Infinity}'),
    "1e999": text("metadata", '{"a":1e999}'),
    "-1e999": text("max_turns", "-1e999"),
    "NaN for an int": text("max_turns", "NaN"),
    "raw surrogate": text("metadata", '{"a":"?"}').replace(b"?", b"\xed\xa0\x80"),
    "invalid UTF-8": text("metadata", '{"a":"?"}').replace(b"?", b"\xff"),
    "overlong UTF-8": text("metadata", '{"a":"?"}').replace(b"?", b"\xc0\xaf"),
    "UTF-16": text().decode().encode("utf-16"),
    "BOM": b"\xef\xbb\xbf" + text(),
    "500 nested lists": text("metadata", '{"a":' + nested(500) + "}"),
    "5,000 nested lists": text("metadata", '{"a":' + nested(5000) + "}"),
    "100,000 nested lists": text("metadata", '{"a":' + nested(100_000) + "}"),
    "5,000 nested objects": text("metadata", '{"a":' * 5000 + "1" + "}" * 5000),
    "100,000 open lists": b"[" * 100_000,
    "100,000 open objects": b'{"a":' * 100_000,
    "5,000 digits": text("metadata", '{"a":' + "9" * 5000 + "}"),
    "5,000 digits for an int": text("max_turns", "9" * 5000),
    "duplicate key": text()[:-1] + b',"rollout_id":"r2"}',
    "duplicate key below": text("metadata", '{"a":1,"a":2}'),
    "control character": text("metadata", '{"a":"\n"}'),
    "single quotes": b"{'rollout_id':'r1'}",
    "trailing comma": text()[:-1] + b",}",
    "comment": text() + b"// x",
    "two values": text() + text(),
    "cut off": text()[:-5],
    "empty": b"",
    "blanks": b" \r\n\t ",
    "gzip without saying so": gzip.compress(text()),
    "NUL": b"\0",
    "a form": b"rollout_id=r1&server_url=http://127.0.0.1:9",
}

NO_OBJECT = {"list": b"[]", "number": b"1", "string": b'"a"', "true": b"true", "null": b"null", "big": b"9" * 4000}

NAMED = [
    ("max_turns", '"inf"'),
    ("max_turns", '"Infinity"'),
    ("max_turns", '"1e999"'),
    ("max_turns", '"ten"'),
    ("max_turns", "1.5"),
    ("max_turns", "true"),
    ("max_turns", "null"),
    ("max_turns", "[]"),
    ("max_tokens_total", '"inf"'),
    ("max_tokens_total", "false"),
    ("max_tokens_total", "1.5"),
    ("max_tokens_total", '"8192.5"'),
    ("rollout_id", '""'),
    ("rollout_id", '"   "'),
    ("rollout_id", '"."'),
    ("rollout_id", '".."'),
    ("rollout_id", '"a/b"'),
    ("rollout_id", r'"a\\b"'),
    ("rollout_id", r'"a\u0000b"'),
    ("rollout_id", r'"a\nb"'),
    ("rollout_id", r'"a\u001bb"'),
    ("rollout_id", r'"a\u007fb"'),
    ("rollout_id", r'"a\u0085b"'),
    ("rollout_id", r'"a\u2028b"'),
    ("rollout_id", f'"{"a" * 257}"'),
    ("rollout_id", f'"{"a" * 1_000_000}"'),
    ("rollout_id", "1"),
    ("rollout_id", "null"),
    ("rollout_id", "[]"),
    ("rollout_id", "{}"),
    ("rollout_id", "true"),
    ("idempotency_key", '"."'),
    ("idempotency_key", '"a/b"'),
    ("idempotency_key", r'"\u0000"'),
    ("idempotency_key", f'"{"a" * 257}"'),
    ("idempotency_key", "5"),
    ("server_url", "null"),
    ("server_url", "5"),
    ("server_url", '""'),
    ("server_url", "[]"),
    ("messages", "null"),
    ("messages", "{}"),
    ("messages", '"Hi"'),
    ("messages", "5"),
    ("messages[0]", '["Hi"]'),
    ("messages[0]", "[null]"),
    ("messages[0]", "[[]]"),
    ("messages[1]", '[{"role":"user"},5]'),
    ("messages[0]", "[{}]"),
    ("messages[0]", '[{"content":"Hi"}]'),
    ("messages[0]", '[{"role":""}]'),
    ("messages[0]", r'[{"role":"us\ner"}]'),
    ("messages[0]", '[{"role":"' + "r" * 65 + '"}]'),
    ("messages[0]", '[{"role":5}]'),
    ("messages[0]", '[{"role":null}]'),
    ("messages[0]", '[{"role":[]}]'),
    ("messages[0]", '[{"role":{}}]'),
    ("completion_params", "null"),
    ("completion_params", "[]"),
    ("completion_params", '"x"'),
    ("completion_params.temperature", '{"temperature":-1}'),
    ("completion_params.temperature", '{"temperature":"warm"}'),
    ("completion_params.temperature", '{"temperature":"nan"}'),
    ("completion_params.temperature", '{"temperature":true}'),
    ("completion_params.top_p", '{"top_p":1.1}'),
    ("completion_params.temperature", '{"temperature":' + "9" * 4000 + "}"),
    ("completion_params.max_tokens", '{"max_tokens":0}'),
    ("completion_params.max_tokens", '{"max_tokens":1.5}'),
    ("metadata", "null"),
    ("metadata", "[]"),
    ("metadata", '"x"'),
    ("metadata", "5"),
    ("metadata", '{"a":"' + "x" * MIB + '"}'),
    ("tool_server_url", "5"),
    ("tool_server_url", "{}"),
    ("agent_loop", "5"),
    ("agent_loop", "[]"),
    ("api_key", r'"a\nb"'),
    ("api_key", r'"a\r\nX-Evil: 1"'),
    ("api_key", r'"\u0000"'),
    ("api_key", '"schlüssel"'),
    ("api_key", r'"\u007f"'),
    ("api_key", f'"{"k" * 4097}"'),
    ("api_key", "5"),
    ("api_key", "[]"),
]


def problems(answer):
    """The rows of a 422, each with where it is and what it says."""
    assert answer.status_code == 422, (answer.status_code, answer.text[:300])
    rows = answer.json()["detail"]
    assert rows
    for row in rows:
        assert row["loc"][0] == "body"
        assert row["msg"]
        assert row["type"]
    return rows


def path(field):
    name, _, index = field.partition("[")
    return ["body", *name.split("."), *([int(index[:-1])] if index else [])]


async def test_what_is_no_json_object(gateway, trainer):
    for name, body in (NOT_JSON | NO_OBJECT).items():
        assert problems(await gateway.init(body))[0]["loc"] == ["body"], name
    await gateway.untouched()
    await gateway.still_serves(trainer)


@pytest.mark.parametrize(
    ("field", "raw", "place"),
    [
        ("metadata", r'{"a":["\ud800"]}', ["metadata", "a", 0]),
        ("metadata", r'{"\udfff":1}', ["metadata"]),
        ("rollout_id", r'"\ud800"', ["rollout_id"]),
        ("messages", r'[{"role":"user","content":"\udc00\ud800"}]', ["messages", 0, "content"]),
    ],
)
async def test_an_unpaired_surrogate_is_refused_at_its_place(gateway, trainer, field, raw, place):
    assert problems(await gateway.init(text(field, raw)))[0]["loc"] == ["body", *place]
    await gateway.untouched()


async def test_each_field_is_named(gateway, trainer):
    for field, raw in NAMED:
        answer = await gateway.init(text(field.partition("[")[0].partition(".")[0], raw))
        at = problems(answer)[0]["loc"]
        assert at[: len(path(field))] == path(field), (field, raw[:50], at)
        assert len(answer.content) < 10_000
    await gateway.untouched()
    await gateway.still_serves(trainer)


async def test_advice_has_no_bounds(gateway, trainer):
    for number, raw in enumerate(("0", "-1", "4294967296", "9" * 400, "-" + "9" * 4000, "10.0", "1e300")):
        body = text("max_turns", raw, **trainer.body(f"r{number}")).replace(
            b'"messages"', b'"max_tokens_total":-5,"messages"'
        )
        assert (await gateway.init(body)).status_code == 202, raw[:20]
        assert (await trainer.outcome(f"r{number}"))["status"] == "COMPLETED"


async def test_every_missing_field_is_named(gateway):
    rows = problems(await gateway.init(b"{}"))
    assert {row["loc"][1] for row in rows} == {"rollout_id", "server_url", "messages", "completion_params"}


async def test_only_so_many_problems_are_named(gateway):
    answer = await gateway.init(text("messages", json.dumps([0] * 1000)))
    assert len(problems(answer)) <= 32


def test_a_list_of_nonsense_is_not_gone_through():
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match="messages"):
            http_bodies.validated(http_bodies.InitBody, json.loads(text("messages", json.dumps([0] * 20_000))))
        assert tracemalloc.get_traced_memory()[1] < 5 * MIB
    finally:
        tracemalloc.stop()


# The bytes around the body


async def test_only_json_is_read(gateway):
    for media in (
        "",
        "text/plain",
        "text/json",
        "application/jsonx",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/xml",
        "*/*",
        "application/json, text/plain",
    ):
        answer = await gateway.init(text(), headers={"content-type": media})
        assert (answer.status_code, answer.headers["connection"]) == (415, "close"), media
    await gateway.untouched()


async def test_no_content_type_is_no_json(gateway):
    answer = await gateway.client.post(INIT, content=text())
    assert answer.status_code == 415
    assert (await gateway.client.post(INIT)).status_code == 415


async def test_a_content_type_may_have_parameters(gateway, trainer):
    answer = await gateway.init(trainer.body(), headers={"content-type": "Application/JSON; charset=utf-8"})
    assert answer.status_code == 202


async def test_nothing_is_unpacked(gateway):
    bomb = gzip.compress(b" " * 10 * MIB)
    for coding in ("gzip", "deflate", "br", "zstd", "x-unheard-of", "identity, gzip"):
        assert (await gateway.init(bomb, headers={"content-encoding": coding})).status_code == 415, coding
    await gateway.untouched()


async def raw(gateway, data, *, end=False):
    """What comes back for these bytes: a status, or 0 for a connection that was cut without an answer."""
    reader, writer = await gateway.connect()
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        async with asyncio.timeout(20):
            line = await reader.readline()
            rest = await reader.read()
    except ConnectionError:
        return 0, b""
    finally:
        writer.close()
    return (int(line.split()[1]) if line else 0), rest


def head(*lines):
    return "\r\n".join([f"POST {INIT} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


JSON = "Content-Type: application/json"


async def test_a_large_body_is_refused_by_its_length(gateway, trainer):
    status, _ = await raw(gateway, head(JSON, f"Content-Length: {65 * MIB}"))
    assert status == 413
    await gateway.still_serves(trainer)


async def test_a_large_body_without_a_length_is_counted(gateway, trainer):
    async def pieces():
        for _ in range(65):
            yield b" " * MIB

    answer = await gateway.client.post(INIT, content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    await gateway.still_serves(trainer)


async def test_bounds_are_counted_to_the_byte(start, trainer):
    gateway = await start(bounds=Bounds(size=1000))
    body = json.dumps(trainer.body()).encode()
    assert (await gateway.init(body.ljust(1001))).status_code == 413
    await gateway.untouched()
    assert (await gateway.init(body.ljust(1000))).status_code == 202


def test_the_default_bounds():
    assert HttpAccess(max_metadata_bytes=1).bounds == Bounds()
    assert Bounds().size == 64 * MIB
    assert 1 <= Bounds().seconds <= 60


LIES = {
    "short": (head(JSON, "Content-Length: 10") + text(), {400, 422}),
    "negative": (head(JSON, "Content-Length: -1") + text(), {400}),
    "not a number": (head(JSON, "Content-Length: many") + text(), {400}),
    "hexadecimal": (head(JSON, "Content-Length: 0x10") + text(), {400}),
    "with a sign": (head(JSON, f"Content-Length: +{len(text())}") + text(), {400}),
    "two lengths": (head(JSON, "Content-Length: 5", "Content-Length: 6") + text(), {400}),
    "a list of lengths": (head(JSON, "Content-Length: 5, 6") + text(), {400}),
    "5,000 digits": (head(JSON, "Content-Length: " + "9" * 5000) + text(), {400, 413}),
    "chunks that are none": (head(JSON, "Transfer-Encoding: chunked") + b"zz\r\n\r\n", {400, 0}),
    "an endless chunk": (head(JSON, "Transfer-Encoding: chunked") + b"f" * 100_000, {400, 0}),
    "a coding nobody knows": (head(JSON, "Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n", {400, 501}),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500, {400, 0}),
    "a line without end": (b"POST /" + b"a" * 200_000, {400, 414, 431, 0}),
    "headers without end": (head(*[f"X-{i}: {'a' * 100}" for i in range(2000)]), {400, 431, 0}),
    "a broken header": (b"POST / HTTP/1.1\r\nHost x\r\n\r\n", {400}),
    "a folded header": (head(JSON, "X: a\r\n b", "Content-Length: 0"), {400, 422}),
    "a control character in a header": (head("Content-Type: application/json\x01", "Content-Length: 0"), {400, 415}),
    "a NUL in a header": (head(JSON, "X: a\0b", "Content-Length: 0"), {400}),
}


async def test_lies_about_the_body(gateway, trainer):
    for name, (data, statuses) in LIES.items():
        status, _ = await raw(gateway, data, end=True)
        assert status in statuses, (name, status)
        await gateway.untouched()
    await gateway.still_serves(trainer)


async def test_a_body_has_one_length(gateway, trainer):
    """CL and TE: whichever is believed, what is behind the body is never a request of its own."""
    hidden = head(JSON, f"Content-Length: {len(text())}") + text()
    body = head(JSON, "Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + hidden
    status, rest = await raw(gateway, body, end=True)
    assert status in (400, 422)
    assert b" 202 " not in rest
    await gateway.untouched()
    await gateway.still_serves(trainer)


# Bodies that take their time


async def test_a_dripping_body_is_cut(start, trainer):
    gateway = await start(bounds=Bounds(seconds=0.3))
    reader, writer = await gateway.connect()
    writer.write(head(JSON, "Content-Length: 1000000"))

    async def drip():
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.02)  # between two bytes

    dripping = asyncio.create_task(drip())
    async with asyncio.timeout(20):
        assert b" 408 " in await reader.readline()
        with contextlib.suppress(ConnectionResetError):  # what was dripped meanwhile was not read
            await reader.read()  # the connection is closed, too
    dripping.cancel()
    writer.close()
    await gateway.untouched()
    await gateway.still_serves(trainer)


async def test_a_body_that_never_comes_is_not_waited_for(start, trainer):
    gateway = await start(bounds=Bounds(seconds=0.2))
    for size in ("Content-Length: 100", "Transfer-Encoding: chunked"):
        status, _ = await raw(gateway, head(JSON, size))
        assert status == 408
    await gateway.still_serves(trainer)


async def test_a_cut_connection_is_no_error(gateway, trainer, caplog):
    for _ in range(5):
        _, writer = await gateway.connect()
        writer.write(head(JSON, f"Content-Length: {len(text())}") + text()[:20])
        await writer.drain()
        writer.transport.abort()
    await gateway.still_serves(trainer)
    assert [row.getMessage() for row in caplog.records if row.exc_info] == []


@pytest.mark.slow
async def test_many_bad_requests_at_once(gateway, trainer):
    bodies = [body for body in (*NOT_JSON.values(), *NO_OBJECT.values()) if len(body) < 20_000]
    heads = [head(JSON, f"Content-Length: {len(body)}") + body for body in bodies]
    answers = await asyncio.gather(*(raw(gateway, heads[i % len(heads)], end=True) for i in range(1000)))
    assert {status for status, _ in answers} == {422}
    await gateway.untouched()
    await gateway.still_serves(trainer)


# Connections that take their time


async def test_answers_are_not_held_back(gateway, monkeypatch):
    made, seen = BoundedProtocol.connection_made, []
    monkeypatch.setattr(
        BoundedProtocol, "connection_made", lambda self, transport: (seen.append(transport), made(self, transport))
    )
    await gateway.counts()
    (transport,) = seen
    assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("data", [b"", b"POST /v1", head(JSON)[:-2]])
async def test_a_request_that_never_comes_is_not_waited_for(start, trainer, monkeypatch, data):
    monkeypatch.setattr(BoundedProtocol, "head_seconds", 0.3)
    gateway = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.http.port)
    writer.write(data)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    await gateway.still_serves(trainer)


async def test_the_second_request_of_a_connection_is_not_waited_for_either(start, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "head_seconds", 0.3)
    gateway = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.http.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
    async with asyncio.timeout(5):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(0.5)  # an idle connection is kept for longer
        writer.write(b"GET /hea")
        assert (await reader.read()).endswith(b"}")
    writer.close()


async def test_an_answer_ends_a_body_that_is_not_read(start):
    gateway = await start(token="t")
    for line in (f"POST {INIT}", "POST /nowhere", "DELETE /health", "GET /health"):
        reader, writer = await gateway.connect()
        writer.write(f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n ".encode())
        async with asyncio.timeout(20):
            answer = await reader.readuntil(b"\r\n\r\n")
        assert b"connection: close" in answer.lower(), line
        writer.close()


async def test_no_page_of_another_origin_is_let_in(gateway):
    origin = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = await gateway.client.options(INIT, headers=origin)
    assert answer.status_code == 405
    for answer in (answer, await gateway.client.get("/health", headers=origin)):
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("host", "let_in"),
    [
        ("evil.example", False),
        ("localhost.evil.example:9000", False),
        ("127.0.0.1.evil.example", False),
        ("[x]", False),
        ("localhost", True),
        ("LOCALHOST.:9000", True),
        ("127.0.0.1:9000", True),
        ("[::1]:9000", True),
        ("10.0.0.1", True),
    ],
)
async def test_a_name_that_leads_a_browser_here_is_refused(gateway, host, let_in):
    answers = {
        "init": await gateway.init(b"{}", headers={"host": host}),
        "document": await gateway.client.get("/openapi.json", headers={"host": host}),
        "health": await gateway.client.get("/health", headers={"host": host}),
    }
    statuses = {name: answer.status_code for name, answer in answers.items()}
    assert statuses == {"init": 422 if let_in else 421, "document": 200 if let_in else 421, "health": 200}
    if not let_in:
        assert "needs a token" in answers["init"].json()["detail"]


async def test_with_a_token_the_name_does_not_matter(start, trainer):
    gateway = await start(token="t")
    headers = {"host": "rollouts.example", "authorization": "Bearer t"}
    assert (await gateway.init(trainer.body(), headers=headers)).status_code == 202


async def test_answers_are_never_a_page(gateway):
    answer = await gateway.init(text("rollout_id", '"<script>/"'))
    assert answer.headers["content-type"] == "application/json"
