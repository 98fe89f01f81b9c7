"""server_url comes from a caller and leads out: where it may lead, and what may come back from there."""

import asyncio
import gzip
import itertools
import json
import logging
import resource
import socket
import zlib

import pytest

from osmosis_gateway import http_bodies
from osmosis_gateway.outgoing_calls import Base, Calls
from osmosis_grpc.network.target_policy import TargetPolicy
from osmosis_grpc.protocol.errors import InvalidArgument, OsmosisTransportError
from osmosis_grpc.rollout import RolloutClientSettings
from osmosis_grpc.trainer import RolloutClient
from tests.gateway.conftest import CHAT, COMPLETED, REPLY, response
from tests.waiting import until

MIB = 2**20
KEY = 'a-very-secret-key-"1"\\2'
FOREIGN = {
    "metadata.google.internal": "169.254.169.254",
    "instance-data": "169.254.169.254",
    "rebound.example": "10.0.0.1",
    "nowhere.example": "0.0.0.0",
    "many.example": "224.0.0.1",
    "six.example": "fe80::1",
}

REFUSED = [
    # never, whoever asks
    "http://169.254.169.254",
    "http://169.254.169.254/latest/meta-data",
    "http://169.254.0.1",
    "http://[fe80::1]",
    "http://[fe80::1%25lo]",
    "http://[fd00:ec2::254]",
    "http://100.100.100.200",
    "http://[::ffff:169.254.169.254]",
    "http://[::ffff:a9fe:a9fe]",
    "http://0.0.0.0:{port}",
    "http://[::]:{port}",
    "http://[::ffff:0.0.0.0]:{port}",
    "http://224.0.0.1",
    "http://[ff02::1]",
    "http://255.255.255.255",
    "http://240.0.0.1",
    *(f"http://{name}:{{port}}" for name in FOREIGN),
    # not on this machine, and nobody has authenticated
    "http://10.0.0.1",
    "http://192.168.1.1:8000",
    "http://172.16.0.1",
    "http://100.64.0.1",
    "http://8.8.8.8",
    "https://1.1.1.1",
    "http://[2001:4860:4860::8888]",
    "http://[fd00::1]",
    "http://[::127.0.0.1]:{port}",
    "http://[64:ff9b::7f00:1]:{port}",
    "http://[2002:7f00:1::]:{port}",
    # addresses that only some can read
    "http://2130706433:{port}",
    "http://0x7f000001:{port}",
    "http://0x7f.1:{port}",
    "http://0177.0.0.1:{port}",
    "http://127.1:{port}",
    "http://127.0.1:{port}",
    "http://127.0.0.01:{port}",
    "http://127.0.0.1.:{port}",
    "http://017700000001:{port}",
    "http://0:{port}",
    "http://4294967296:{port}",
    "http://127.0.0.256:{port}",
    "http://[127.0.0.1]:{port}",
    "http://[::1",
    "http://::1:{port}",
    "http://[v1.x]:{port}",
    "http://1..2:{port}",
    # who, besides where
    "http://user@127.0.0.1:{port}",
    "http://user:pass@127.0.0.1:{port}",
    "http://@127.0.0.1:{port}",
    "http://:@127.0.0.1:{port}",
    "http://169.254.169.254@127.0.0.1:{port}",
    "http://127.0.0.1:{port}@169.254.169.254",
    "http://127.0.0.1:{port}\\@evil.example",
    "http://a@b@127.0.0.1:{port}",
    "http://127.0.0.1%40x:{port}",
    # other schemes
    "file:///etc/passwd",
    "file://127.0.0.1/etc/passwd",
    "ftp://127.0.0.1:{port}",
    "gopher://127.0.0.1:{port}/_x",
    "unix:/tmp/x",
    "unix:///tmp/x",
    "dns:///localhost:{port}",
    "dns://127.0.0.1:{port}/x",
    "ws://127.0.0.1:{port}",
    "wss://127.0.0.1:{port}",
    "grpc://127.0.0.1:{port}",
    "javascript:alert(1)",
    "data:,x",
    "http+unix://x",
    "127.0.0.1:{port}",
    "//127.0.0.1:{port}",
    "localhost:{port}",
    "httpx://127.0.0.1:{port}",
    # no host, no port
    "",
    "http",
    "http:",
    "http:/",
    "http://",
    "http:///x",
    "http://:{port}",
    "http:127.0.0.1:{port}",
    "http:/127.0.0.1:{port}",
    "http://127.0.0.1:65536",
    "http://127.0.0.1:-1",
    "http://127.0.0.1:x",
    "http://127.0.0.1:+{port}",
    "http://127.0.0.1: {port}",
    "http://127.0.0.1:{port}:80",
    "http://127.0.0.1:1_0",
    "http://127.0.0.1:99999999999999999999",
    "http://127.0.0.1:\uff18\uff10",
    "http://127.0.0.1:0",
    # no base
    "http://127.0.0.1:{port}?",
    "http://127.0.0.1:{port}?a=b",
    "http://127.0.0.1:{port}#",
    "http://127.0.0.1:{port}/#x",
    "http://127.0.0.1:{port}/x?y#z",
    "http://127.0.0.1:{port}#@evil.example",
    # characters
    "http:\\\\127.0.0.1:{port}",
    "http://127.0.0.1:{port}\\x",
    "http://127.0.0.1 :{port}",
    " http://127.0.0.1:{port}",
    "http://127.0.0.1:{port} ",
    "http://127.0.0.1:{port}/a b",
    "http://127.0.0.1:{port}\n",
    "\nhttp://127.0.0.1:{port}",
    "http://127.0.0.1:{port}/\r\nX-Evil: 1",
    "ht\ntp://127.0.0.1:{port}",
    "http://127.0\t.0.1:{port}",
    "http://127.0.0.1\0:{port}",
    "http://127.0.0.1:{port}/\0",
    "http://127.0.0.1%00:{port}",
    "http://127.0.0.1%2f:{port}",
    "http://löcalhost:{port}",
    "http://127.0.0.1\u3002:{port}",
    "http://①②⑦.0.0.1:{port}",
    "http://localhost\u200b:{port}",
    "http://127.0.0.1:{port}/ü",
    "http://*:{port}",
    "http://-a:{port}",
    "http://127.0.0.1,10.0.0.1:{port}",
    "http://" + "a" * 300 + ":{port}",
    "http://" + "a." * 40_000 + ":{port}",
]

ACCEPTED = [
    ("http://127.0.0.1:{port}", ""),
    ("http://127.0.0.1:{port}/", ""),
    ("HTTP://127.0.0.1:{port}", ""),
    ("http://localhost:{port}", ""),
    ("http://LocalHost:{port}", ""),
    ("http://127.0.0.1:{port}/base", "/base"),
    ("http://127.0.0.1:{port}/a//b//", "/a//b"),
    ("http://127.0.0.1:{port}//evil.example", "//evil.example"),
    ("http://127.0.0.1:{port}/@evil.example", "/@evil.example"),
    ("http://127.0.0.1:{port}/;a=b", "/;a=b"),
    ("http://127.0.0.1:{port}/%2e%2e/x", "/%2e%2e/x"),
    ("http://127.0.0.1:{port}/%0d%0aX:1", "/%0d%0aX:1"),
    ("http://[::ffff:127.0.0.1]:{port}", ""),
    ("http://127.0.0.1:00{port}", ""),
]


@pytest.fixture
async def names(monkeypatch):
    """Host names of the tests, and how often each was looked up; a list gives one address per look."""
    loop = asyncio.get_running_loop()
    known, plain = dict(FOREIGN), loop.getaddrinfo

    async def getaddrinfo(host, port, **more):
        address = known.get(host)
        if address is None:
            if any(char.isalpha() for char in str(host)) and host != "localhost" and ":" not in str(host):
                raise socket.gaierror(socket.EAI_NONAME, "unknown")
            return await plain(host, port, **more)
        if isinstance(address, list):
            address = address.pop(0) if len(address) > 1 else address[0]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    return known


async def refused(gateway, trainer, urls, **headers):
    for url in urls:
        answer = await gateway.init(trainer.body(server_url=url.replace("{port}", str(trainer.port))), headers=headers)
        assert answer.status_code == 422, (url, answer.text)
        assert answer.json()["detail"][0]["loc"] == ["body", "server_url"], (url, answer.text)
    await gateway.untouched()
    assert trainer.connections == 0


async def test_where_it_may_not_lead(gateway, trainer, names):
    await refused(gateway, trainer, REFUSED)


async def test_a_token_opens_no_metadata_server(start, trainer, names):
    gateway = await start(token="t")
    await refused(gateway, trainer, [url for url in REFUSED[:21] if "rebound" not in url], authorization="Bearer t")


async def test_metadata_servers_under_other_addresses(start, trainer):
    # Google's over IPv6, Azure's, Oracle's; NAT64, 6to4 and IPv4-compatible spellings.
    others = (
        "[fd20:ce::254]",
        "168.63.129.16",
        "192.0.0.192",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::]",
        "[::169.254.169.254]",
    )
    urls = [f"http://{address}" for address in others]
    await refused(await start(token="t"), trainer, urls, authorization="Bearer t")


async def test_where_it_may_lead(gateway, trainer):
    for number, (url, base) in enumerate(ACCEPTED):
        trainer.requests.clear()
        body = trainer.body(f"r{number}", server_url=url.replace("{port}", str(trainer.port)))
        answer = await gateway.init(body)
        assert answer.status_code == 202, (url, answer.text)
        await trainer.until(lambda: len(trainer.requests) == 2)
        assert [path for path, _, _ in trainer.requests] == [base + CHAT, base + COMPLETED], url


async def test_what_was_checked_is_what_is_dialled(names, monkeypatch):
    """Whatever is accepted, every parser on the way reads the same host and port in it."""
    authorities = [
        "".join(parts)
        for parts in itertools.product(
            ("", "u@", "u:p@", "@", "\\"),
            ("127.0.0.1", "a.example", "1..2", "0x7f.1", "[::1]", "A_b.example", "a%41"),
            ("", ".", "@b", "#b", "\\b", "%00", "\t", "..b", "\u3002"),
            ("", ":", ":81", ":00081", ":0x51", ":81:82", ":8 1"),
            ("", "/x", "?x", "//b", "\\b", "/@b", "#@b", ";b"),
        )
    ]
    names.update({"a.example": "127.0.0.1", "a_b.example": "127.0.0.1", "b": "10.0.0.1", "a41": "10.0.0.1"})
    accepted, dialled = set(), []

    async def connect(sock, address):
        dialled.append(address[:2])
        raise OSError("not today")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", connect)
    async with Calls(RolloutClientSettings()) as calls:
        for scheme, authority in itertools.product(("http://", "https://"), authorities):
            try:
                base = Base.of(scheme + authority, "server_url")
                address = await TargetPolicy(loopback=True).check(base.authority, "server_url")
            except InvalidArgument:
                continue
            url = base.join(CHAT)
            assert (url.raw_host, url.explicit_port, url.raw_path) == (base.host, base.port, base.path + CHAT)
            assert (url.scheme, url.user, url.password) == (base.scheme, None, None)
            assert address.ips in (("127.0.0.1",), ("::1",))
            dialled.clear()
            with pytest.raises(OsmosisTransportError):
                await calls.post(url, b"", address=address)
            assert dialled == [(ip, base.port) for ip in address.ips]
            accepted.add(base.host)
    assert accepted == {"127.0.0.1", "a.example", "::1", "a_b.example"}


async def test_a_name_is_dialled_where_it_was_checked(gateway, trainer, listen, names):
    canary = await listen("127.0.0.2", trainer.port)
    names["trainer.example"] = ["127.0.0.1", "127.0.0.2"]
    await gateway.init(trainer.body(server_url=f"http://trainer.example:{trainer.port}"))
    await trainer.outcome()
    assert trainer.connections == 2
    assert canary.connections == 0


async def test_a_second_look_that_is_refused_changes_nothing(gateway, trainer, names):
    gate = asyncio.Event()
    names["trainer.example"] = ["127.0.0.1", "169.254.169.254"]
    trainer.answers[CHAT] = [_after(gate)]
    url = f"http://trainer.example:{trainer.port}"
    assert (await gateway.init(trainer.body(server_url=url))).status_code == 202
    await trainer.until(lambda: trainer.requests)
    assert (await gateway.init(trainer.body("r2", server_url=url))).status_code == 422
    gate.set()
    await trainer.outcome()


@pytest.mark.parametrize("second", ["the same again", "another that is not started"])
async def test_a_second_look_does_not_unpin_the_first(gateway, trainer, second):
    gate = asyncio.Event()
    trainer.answers[CHAT] = [_after(gate), response(REPLY)]
    first = trainer.body(server_url=f"http://localhost:{trainer.port}")
    assert (await gateway.init(first)).status_code == 202
    await trainer.until(lambda: trainer.requests)
    other = {} if second == "the same again" else {"rollout_id": "r2", "agent_loop": "no such"}
    assert (await gateway.init(first | other)).status_code == (404 if other else 202)
    gate.set()
    assert (await trainer.outcome(seconds=5))["status"] == "COMPLETED"


def _after(gate, answer=None):
    async def write(writer):
        await gate.wait()
        writer.write(answer or response(REPLY))
        await writer.drain()

    return write


# What comes back


async def test_redirects_are_not_followed(gateway, listen):
    canary = await listen()

    async def not_followed(status):
        trainer, away = await listen(), response(b"", status, [f"Location: {canary.url}{CHAT}"])
        trainer.answers = {COMPLETED: [away, response()]}
        await gateway.init(trainer.body(f"first-{status}", api_key=KEY))
        await trainer.until(lambda: len(trainer.bodies(COMPLETED)) == 2)
        trainer.answers = {CHAT: [away]}
        await gateway.init(trainer.body(f"second-{status}", api_key=KEY))
        assert str(status) in (await trainer.outcome(f"second-{status}"))["error_message"]

    await asyncio.gather(*(not_followed(status) for status in (301, 302, 303, 307, 308)))
    assert canary.connections == 0


async def test_proxies_of_the_environment_are_not_used(start, trainer, listen, monkeypatch):
    proxy = await listen()
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, proxy.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    await (await start()).still_serves(trainer)
    assert proxy.connections == 0


async def _stream(writer, head, piece, count, written):
    writer.write(head)
    for _ in range(count):
        writer.write(piece)
        await writer.drain()
        written.append(len(piece))


@pytest.mark.parametrize("path", [CHAT, COMPLETED])
@pytest.mark.parametrize("length", [f"Content-Length: {40 * MIB}", "X: no length, to the end of the connection"])
async def test_a_large_answer_is_not_read_to_its_end(gateway, trainer, path, length):
    written = []
    head = f"HTTP/1.1 200 X\r\nConnection: close\r\n{length}\r\n\r\n".encode()

    async def large(writer):
        await _stream(writer, head, b" " * MIB, 40, written)

    trainer.answers[path] = [large, response(REPLY)]
    await gateway.init(trainer.body())
    if path == CHAT:
        reported = await trainer.outcome()
        assert (reported["status"], "bytes" in reported["error_message"]) == ("ERROR", True)
    else:
        await _delivered(gateway, trainer)
    assert len(written) < 40
    await gateway.still_serves(trainer)


def _bomb(mib):
    """Zeros as a deflate stream a thousandth as large; its blocks repeat."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    first = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + block * (mib - 1)


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_a_packed_answer_does_not_fill_the_memory(gateway, trainer, status):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trainer.answers[CHAT] = [response(_bomb(1024), status, ["Content-Encoding: gzip"])]
    await gateway.init(trainer.body())
    assert (await trainer.outcome())["status"] == "ERROR"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    await _well(gateway, trainer)


@pytest.mark.parametrize("path", [CHAT, COMPLETED])
async def test_an_answer_that_never_ends_is_given_up(start, trainer, path):
    gateway = await start(client={"timeout_seconds": 1.0, "max_retries": 0})

    async def drip(writer):
        writer.write(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\n \r\n")
            await writer.drain()
            await asyncio.sleep(0.02)  # between two bytes

    trainer.answers[path] = [drip, response(REPLY)]
    await gateway.init(trainer.body())
    if path == CHAT:
        assert "1 s" in (await trainer.outcome())["error_message"]
    else:
        await _delivered(gateway, trainer)
    await gateway.still_serves(trainer)


BROKEN = {
    "nothing": b"",
    "no HTTP": b"hello\r\n\r\n",
    "half a status line": b"HTTP/1.",
    "status 99": b"HTTP/1.1 099 X\r\n\r\n",
    "status 1000": b"HTTP/1.1 1000 X\r\n\r\n",
    "status -1": b"HTTP/1.1 -1 X\r\n\r\n",
    "HTTP/9.9": b"HTTP/9.9 200 X\r\nContent-Length: 2\r\n\r\n{",
    "upgrade": b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    "a line without end": b"HTTP/1.1 200 " + b"X" * 100_000,
    "headers without end": b"HTTP/1.1 200 X\r\n" + b"A: b\r\n" * 100_000,
    "a header of 100 KB": b"HTTP/1.1 200 X\r\nA: " + b"b" * 100_000 + b"\r\n\r\n{}",
    "a negative length": b"HTTP/1.1 200 X\r\nContent-Length: -1\r\n\r\n{}",
    "two lengths": b"HTTP/1.1 200 X\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "cut in the middle": b"HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n{",
    "chunks that are none": b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a negative chunk": b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
    "gzip that is none": response(b"no gzip", 200, ["Content-Encoding: gzip"]),
    "gzip cut off": response(gzip.compress(b"{}" * 9999)[:20], 200, ["Content-Encoding: gzip"]),
    "deflate that is none": response(b"\xff\xff\xff", 200, ["Content-Encoding: deflate"]),
    "br": response(b"\xff\xff\xff", 200, ["Content-Encoding: br"]),
    "zstd": response(b"\xff\xff\xff", 200, ["Content-Encoding: zstd"]),
    "an unknown coding": response(b"\xff", 200, ["Content-Encoding: x-what"]),
    "a broken cookie": response(b"x", 500, ["Set-Cookie: \x01=\xff; ;;=", "Set-Cookie: " + "a" * 5000]),
    "a strange charset": response(b"\xff\xfe", 500, ["Content-Type: text/html; charset=nonesuch"]),
    "a broken type": response(b"{}", 500, ["Content-Type: ;;;/=\x80"]),
    "Retry-After of a million years": response(b"", 503, ["Retry-After: " + "9" * 400]),
    "Retry-After of nonsense": response(b"", 503, ["Retry-After: -1e999"]),
    "Retry-After of other digits": response(b"", 503, ["Retry-After: \xb2"]),
    "a header of bytes": response(b"", 500, ["X: \x80\xff"]),
}
UNREADABLE = {
    "NaN": b'{"choices":NaN}',
    "1e999": b'{"choices":[1e999]}',
    "5,000 lists": b"[" * 5000 + b"]" * 5000,
    "100,000 lists": b"[" * 100_000 + b"]" * 100_000,
    "5,000 digits": b"9" * 5000,
    "surrogate": json.dumps(REPLY).encode().replace(b"Done.", rb"\ud800"),
    "no UTF-8": b"\xff",
    "list": b"[]",
    "null": b"null",
    "a number": b"1",
    "no choice": b'{"choices":[]}',
    "choices that are none": b'{"choices":{"0":1}}',
    "a message that is none": b'{"choices":[{"message":"Hi"}]}',
    "null message": b'{"choices":[{"message":null}]}',
    "another role": b'{"choices":[{"message":{"role":"boss","content":"x"}}]}',
    "a reason that is none": b'{"choices":[{"message":{"content":"x"},"finish_reason":5}]}',
}
ODD = [
    {"usage": [1]},
    {"usage": {"completion_tokens": "many"}},
    {"usage": {"completion_tokens": None}},
    {"usage": {"prompt_tokens": 10**400}},
    {"token_ids": ["a"]},
    {"token_ids": 5},
    {"token_ids": [10**400]},
    {"token_ids": [-1]},
    {"token_ids": [[1]]},
    {"token_ids": [1], "logprobs": [1, 2]},
    {"token_ids": [1], "logprobs": ["a"]},
    {"token_ids": [1], "logprobs": [10**400]},
    {"token_ids": [1], "logprobs": 5},
    {"prompt_token_ids": "abc"},
    {"prompt_token_ids": [10**400]},
    {"choices": [{"message": {"content": "x", "tool_calls": 5}}]},
    {"choices": [{"message": {"content": "x", "tool_calls": ["a"]}}]},
    {"choices": [{"message": {"content": "x", "tool_calls": [{"id": 5, "function": {"name": None}}]}}]},
    {"choices": [{"message": {"content": 5}}]},
    {"id": 5, "created": "never", "model": {}},
]


async def _delivered(gateway, trainer, count=1):
    """So many rollouts ended, and their trainers know it."""

    async def met():
        health = (await gateway.client.get("/health")).json()
        return (health["completed_rollouts"], health["undelivered"], health["active_rollouts"]) == (count, 0, 0)

    await until(met)


async def _well(gateway, trainer):
    """It answers, and nothing hangs."""
    trainer.answers.clear()
    await gateway.still_serves(trainer)
    assert (await gateway.client.get("/health")).json()["active_rollouts"] == 0


async def test_broken_answers_end_a_rollout_and_no_more(start, trainer, caplog):
    gateway = await start(client={"max_retries": 0, "timeout_seconds": 2.0})
    for number, (name, raw) in enumerate((BROKEN | {n: response(b) for n, b in UNREADABLE.items()}).items()):
        trainer.answers[CHAT] = [raw]
        assert (await gateway.init(trainer.body(f"r{number}"))).status_code == 202
        reported = await trainer.outcome(f"r{number}")
        assert reported["status"] == "ERROR", name
        assert "trainer" in reported["error_message"], (name, reported["error_message"])
    assert [row.getMessage() for row in caplog.records if row.exc_info] == []
    await _well(gateway, trainer)


async def test_odd_answers_are_the_trainers_fault_or_ignored(start, trainer):
    gateway = await start(client={"max_retries": 0})
    for number, odd in enumerate(ODD):
        trainer.answers[CHAT] = [response(REPLY | odd)]
        await gateway.init(trainer.body(f"r{number}"))
        reported = await trainer.outcome(f"r{number}")
        assert reported["status"] == "COMPLETED" or "trainer" in reported["error_message"], (
            odd,
            reported["error_message"],
        )
    await _well(gateway, trainer)


async def test_a_broken_answer_to_an_outcome_is_not_the_end_of_it(start, trainer, caplog):
    gateway = await start(outbox_delay=(0.01, 0.02))
    for number, raw in enumerate(BROKEN.values()):
        trainer.answers[COMPLETED] = [raw, response(b"", 204)]
        assert (await gateway.init(trainer.body(f"r{number}"))).status_code == 202
        await _delivered(gateway, trainer, number + 1)
        first, *again = [body for body in trainer.bodies(COMPLETED) if body["rollout_id"] == f"r{number}"]
        assert again in ([], [first])
    assert [row.getMessage() for row in caplog.records if row.exc_info] == []
    await _well(gateway, trainer)


# What is kept for itself


async def test_no_cookie_is_kept(gateway, trainer, listen):
    other = await listen()
    cookie = ["Set-Cookie: who=me; Path=/", "Set-Cookie: where=here; Domain=127.0.0.1; Path=/"]
    trainer.answers = {CHAT: [response(REPLY, 200, cookie)], COMPLETED: [response(b"{}", 200, cookie)]}
    await gateway.init(trainer.body())
    await trainer.outcome()
    await gateway.still_serves(other)
    trainer.answers.clear()
    await gateway.still_serves(trainer, "another")
    assert len(trainer.requests + other.requests) == 6
    for _, headers, _ in trainer.requests + other.requests:
        assert "cookie" not in headers


async def test_each_trainer_is_shown_its_own_key(gateway, trainer, listen):
    other, third = await listen(), await listen()
    rows = [(trainer, "one", {"api_key": "key-one"}), (other, "two", {"api_key": "key-two"}), (third, "three", {})]
    rows += [(trainer, "four", {"api_key": "key-four"}), (trainer, "five", {})]
    await asyncio.gather(*(gateway.init(at.body(name, **key)) for at, name, key in rows))
    for at, name, _ in rows:
        await at.outcome(name)
    for at in (trainer, other, third):
        for _, headers, body in at.requests:
            name = json.loads(body)["rollout_id"]
            key = next(key for _, known, key in rows if known == name).get("api_key")
            assert headers.get("authorization") == (f"Bearer {key}" if key else None)
            assert b"key-" not in body


ECHOES = {
    "as it is": response(f"no such key: {KEY}".encode(), 401),
    "in JSON": response(json.dumps({"error": KEY}).encode(), 403),
    "in a header": response(b"", 403, [f"X-Key: {KEY}", f"WWW-Authenticate: Bearer {KEY}", f"Retry-After: {KEY}"]),
    "at the end of what is shown": response(b"x" * (500 - len(KEY) + 3) + KEY.encode(), 400),
    "and broken": response(f"Bearer {KEY}".encode(), 500),
    "and busy": response(f"Bearer {KEY}".encode(), 429),
    "as a message": response({"choices": [{"message": KEY}]}),
    "as a reason": response({"choices": [{"message": {"content": "x"}, "finish_reason": [KEY]}]}),
    "as a role": response({"choices": [{"message": {"role": KEY, "content": "x"}}]}),
    "as a status": f"HTTP/1.1 {KEY} X\r\n\r\n".encode(),
    "as a line": f"HTTP/1.1 200 X\r\n{KEY}\r\n\r\n".encode(),
    "as a chunk": f"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n{KEY}\r\n".encode(),
    "as a coding": response(b"x", 200, [f"Content-Encoding: {KEY}"]),
    "as a place": response(b"", 302, [f"Location: http://127.0.0.1/{KEY}"]),
}


async def test_a_key_is_not_passed_on(start, listen, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    gateway = await start(client={"max_retries": 1})

    async def not_told_on(name, how, echo):
        trainer = await listen()
        trainer.answers = {CHAT: [echo], COMPLETED: [echo, response()]}
        answer = await gateway.init(trainer.body(name, api_key=KEY))
        reported = await trainer.outcome(name)
        async with RolloutClient(gateway.server.address) as client:
            events = [repr(event) async for event in client.events(name)]
            info = await client.get(name)
        assert reported["status"] == "ERROR", how
        assert {headers["authorization"] for _, headers, _ in trainer.requests} == {f"Bearer {KEY}"}, how
        for text in [answer.text, json.dumps(reported), *events, repr(info)]:
            assert "very-sec" not in text, how

    await asyncio.gather(*(not_told_on(f"r{n}", how, echo) for n, (how, echo) in enumerate(ECHOES.items())))
    logs = [logging.Formatter().format(row) for row in caplog.records]
    for text in [*logs, *capfd.readouterr()]:
        assert "very-sec" not in text


def test_a_key_has_no_repr():
    body = {"rollout_id": "r", "server_url": "http://x", "messages": [], "completion_params": {}, "api_key": KEY}
    init = http_bodies.read_init(body, 1, 1000)
    assert init.callback.credential == KEY
    assert "secret" not in repr(init)


async def test_a_refusal_does_not_tell_a_key(gateway, caplog, trainer):
    caplog.set_level(logging.DEBUG)
    for change in ({"messages": None}, {"server_url": "http://10.0.0.1"}, {"api_key": "secret\n"}, {"agent_loop": "x"}):
        answer = await gateway.init(trainer.body(api_key="secret") | change)
        assert answer.status_code in (404, 422)
        assert "secret" not in answer.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("given", [{}, {"pin_completion_params": False}, {"pin_completion_params": True}])
def test_an_init_over_http_can_pin_its_parameters(given):
    body = {"rollout_id": "r", "server_url": "http://t", "messages": [], "completion_params": {"temperature": 0}}
    request = http_bodies.read_init({**body, **given}, 1, 1000).request
    assert request.pin_completion_params is given.get("pin_completion_params", False)
