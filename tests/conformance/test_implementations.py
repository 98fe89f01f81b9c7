"""This project's server, its trainer and the HTTP side of its gateway pass the whole conformance suite."""

import sys

import pytest

from tests.conformance.suite import MODES, check_server, check_trainer, failed, served
from tests.ports import quiet_port

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(300)]
TRAINER = f"{sys.executable} -m osmosis_grpc.testing.conformance.trainer"


async def test_the_server_without_tokens_in_all_modes():
    accept = f"127.0.0.1:{quiet_port()}"
    with served("--connect", accept) as target:
        results = await check_server(target, accept=accept)
    assert not failed(results)
    assert {result.mode for result in results} == set(MODES)
    assert sum(result.verdict == "passed" for result in results) > 190


async def test_the_server_with_tokens(tmp_path):
    tokens = {"first": "first-token-of-the-suite", "second": "second-token-of-the-suite", "admin": "admin-token-of-it"}
    (tmp_path / "tokens").write_text(f"one={tokens['first']}\ntwo={tokens['second']}\n")
    (tmp_path / "admins").write_text(f"root={tokens['admin']}\n")
    shown = {name: (("authorization", f"Bearer {token}"),) for name, token in tokens.items()}
    files = ["--token-file", str(tmp_path / "tokens"), "--admin-token-file", str(tmp_path / "admins")]
    names = [
        "credential-is-required",
        "owners-are-apart",
        "drain-by-an-administrator",
        "attachment-of-another-owner",
        "rollout-one-chat",
        "cancel-overtakes-its-init",
    ]
    with served(*files) as target:
        results = await check_server(target, names, modes=["callback", "attach", "call"], tokens=shown)
    assert not failed(results)
    assert [result.name for result in results if result.verdict == "skipped"] == []


@pytest.mark.parametrize("mode", ["callback", "attach", "accept"])
async def test_the_trainer(mode):
    results = await check_trainer(TRAINER, modes=[mode])
    assert not failed(results)
    assert all(result.verdict == "passed" for result in results)
