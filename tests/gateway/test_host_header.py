"""X18: a Host header is parsed strictly, so that no name that only begins like this machine's is let in."""

import pytest

HOSTS = {
    "[::1]evil.com": False,
    "[::1].evil.com": False,
    "[::1]:80.evil.com": False,
    "[::1%25evil.com]": False,
    "127.0.0.1:80.evil.com": False,
    "127.0.0.1:evil.com": False,
    "127.0.0.1:80:81": False,
    "127.0.0.1@evil.com": False,
    "localhost:80.evil.com": False,
    "localhost:evil.com": False,
    "::1": False,
    "[127.0.0.1]": False,
    ":80": False,
    "localhost:123456": False,
    "127.0.0.1:": False,
    "localhost..": False,
    "a.localhost": True,
    "[::1]": True,
    "[::1]:9000": True,
    "127.0.0.1": True,
    "127.0.0.1:80": True,
    "localhost:80": True,
}


@pytest.mark.parametrize(("host", "let_in"), HOSTS.items())
async def test_what_follows_an_address_in_a_host_header_counts(gateway, host, let_in):
    answer = await gateway.client.get("/openapi.json", headers={"host": host})
    assert answer.status_code == (200 if let_in else 421)
