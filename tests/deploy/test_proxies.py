"""A chat that is silent for three times the idle limit of nginx, HAProxy or Envoy ends unnoticed, each way."""

import asyncio
import subprocess
from functools import partial

import pytest

from tests.attach.silent_chats import WAYS, silent_rollout
from tests.deploy.real_proxies import PROXIES, RealProxy, program


@pytest.mark.parametrize("name", PROXIES)
def test_the_proxy_accepts_its_configuration(name):
    check = {"nginx": ["-t"], "haproxy": ["-c"], "envoy": ["--mode", "validate"]}[name]
    proxy = RealProxy(name, "127.0.0.1:9", 60)
    done = subprocess.run([proxy.program, *proxy.arguments, *check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr.lower()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROXIES)
async def test_a_short_silence(tmp_path, name, way):
    await silent_rollout(way, 6.0, tmp_path, 2.0, partial(RealProxy, name))


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_a_silence_of_three_minutes(tmp_path):
    """All proxies and all ways at once, with the limits of the files."""
    for name in PROXIES:
        program(name)
    ways = (
        silent_rollout(way, 180.0, tmp_path / f"{name}-{way}", 60.0, partial(RealProxy, name))
        for name in PROXIES
        for way in WAYS
    )
    await asyncio.gather(*ways)
