"""The target policy: what is called back, what is never, and what needs to be allowed."""

import pytest

from osmosis_grpc.network.target_policy import TargetPolicy, is_loopback
from osmosis_grpc.protocol.errors import InvalidArgument

NEVER = [
    "169.254.169.254:80",
    "[fe80::1]:80",
    "[fd00:ec2::254]:80",
    "100.100.100.200:80",
    "0.0.0.0:80",
    "[::]:80",
    "224.0.0.1:80",
    "[::ffff:169.254.169.254]:80",
    "[::ffff:0.0.0.0]:80",
    "255.255.255.255:80",
]

NOT_A_TARGET = [
    "127.0.0.1",
    "127.0.0.1:",
    ":80",
    "127.0.0.1:0",
    "127.0.0.1:65536",
    "127.0.0.1:080000",
    "localhost",
    "unix:/tmp/x",
    "unix:///tmp/x",
    "unix-abstract:x",
    "vsock:1:2",
    "dns:localhost:80",
    "dns:///localhost:80",
    "dns://127.0.0.1:53/localhost:80",
    "xds:///x",
    "google-c2p:///x",
    "ipv4:127.0.0.1:80",
    "ipv4:127.0.0.1:80,10.0.0.1:80",
    "ipv6:[::1]:80",
    "127.0.0.1:80,127.0.0.1:81",
    "http://127.0.0.1:80",
    "https://127.0.0.1:80",
    "grpc://127.0.0.1:80",
    "127.1:80",
    "2130706433:80",
    "0x7f000001:80",
    "0177.0.0.1:80",
    "127.0.0.1.:80",
    "user@127.0.0.1:80",
    "127.0.0.1:80/path",
    "127.0.0.1:80?q",
    "127.0.0.1%00:80",
    "[::1%25lo]:80",
    "[127.0.0.1]:80:80",
    "-a:80",
    "127.0.0.1 :80",
    "127.0.0.1:80\n",
    "löcalhost:80",
    "127.0.0.1\u3002:80",
]


@pytest.mark.parametrize("target", NEVER)
async def test_never(target):
    for policy in (TargetPolicy(loopback=True), TargetPolicy(loopback=True, allow=["0.0.0.0/0", "::/0"])):
        with pytest.raises(InvalidArgument) as caught:
            await policy.check(target, "callback.target", authenticated=True)
        assert caught.value.violations[0][0] == "callback.target"


@pytest.mark.parametrize("target", NOT_A_TARGET)
async def test_not_a_target(target):
    with pytest.raises(InvalidArgument) as caught:
        await TargetPolicy(loopback=True, allow=["0.0.0.0/0"]).check(target, "callback.target", authenticated=True)
    assert caught.value.violations[0][0] == "callback.target"


@pytest.mark.parametrize(
    ("target", "dialled"),
    [
        ("127.0.0.1:80", "ipv4:127.0.0.1:80"),
        ("127.8.9.10:80", "ipv4:127.8.9.10:80"),
        ("[::1]:80", "ipv6:[::1]:80"),
        ("[::ffff:127.0.0.1]:80", "ipv4:127.0.0.1:80"),
    ],
)
async def test_loopback_while_the_server_is(target, dialled):
    address = await TargetPolicy(loopback=True).check(target, "x")
    assert address.grpc_target == dialled
    assert address.authority == target
    with pytest.raises(InvalidArgument, match="--allow-target"):
        await TargetPolicy(loopback=False).check(target, "x", authenticated=True)


async def test_a_name_is_dialled_at_the_address_it_was_checked_at():
    address = await TargetPolicy(loopback=True).check("localhost:80", "x")
    assert address.ips[0] == "127.0.0.1"  # IPv4 first: few listen on IPv6 alone
    with pytest.raises(InvalidArgument, match="does not resolve"):
        await TargetPolicy(loopback=True).check("no-such-host.invalid:80", "x")


@pytest.mark.parametrize("target", ["10.0.0.5:80", "192.168.1.1:80", "8.8.8.8:53", "[2001:4860:4860::8888]:53"])
async def test_elsewhere_needs_authentication_or_a_rule(target):
    with pytest.raises(InvalidArgument, match="not authenticated"):
        await TargetPolicy(loopback=True).check(target, "x")
    await TargetPolicy(loopback=True).check(target, "x", authenticated=True)


async def test_allowed_targets():
    policy = TargetPolicy(loopback=False, allow=["10.0.0.0/8", "192.168.1.1:443", "[::1]:7000", "localhost:80"])
    await policy.check("10.1.2.3:1", "x")
    await policy.check("192.168.1.1:443", "x")
    await policy.check("[::1]:7000", "x")
    await policy.check("localhost:80", "x")
    for refused in ("192.168.1.1:80", "[::1]:7001", "localhost:81", "11.0.0.1:1"):
        with pytest.raises(InvalidArgument):
            await policy.check(refused, "x")


@pytest.mark.parametrize("rule", ["", "10.0.0.0/99", "http://x", "a/b"])
def test_rules_that_are_none(rule):
    with pytest.raises(ValueError, match="is not HOST"):
        TargetPolicy(loopback=True, allow=[rule])


def test_is_loopback():
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "")))
