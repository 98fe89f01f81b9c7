"""The conformance suite holds all implementations: this project's server and trainer, the HTTP side of its gateway, and
the trainers of clients/. No case may fail.
"""

import shlex
import sys

import pytest

from tests.clients.builds import BUILDS, program
from tests.conformance.suite import AGENT, MODES, check_server, check_trainer, failed, hasty_server, served
from tests.ports import quiet_port
from tests.processes import serving

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(300)]
TRAINER = f"{sys.executable} -m osmosis_grpc.testing.conformance.trainer"


async def test_the_server_without_tokens_in_all_modes():
    accept = f"127.0.0.1:{quiet_port()}"
    with hasty_server(accept) as target:
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


@pytest.mark.parametrize("client", BUILDS)
async def test_a_trainer_in_another_language(client):
    """It has callbacks and Attach, and lacks Accept."""
    results = await check_trainer(shlex.join(program(client)("trainer")))
    assert not failed(results)
    skipped = {result.name for result in results if result.verdict == "skipped"}
    assert all(name.endswith("@accept") for name in skipped), skipped
    assert {result.mode for result in results if result.verdict == "passed"} == {"callback", "attach"}


LEGACY = """
info callback-is-required callback-is-no-url callback-run-id role-is-known json-text-is-json metadata-limit
typed-keys-are-typed group-is-consistent id-is-one-path-segment init-is-idempotent init-after-the-end init-differs
init-lower-attempt init-tools idempotency-key cancel-overtakes-its-init cancel-is-idempotent cancel-a-group
list-in-pages list-by-reward annotations-are-idempotent time-limit-of-the-agent outcome-repeats-the-request
hello-comes-first hello-is-alone hello-of-another-protocol second-stream-replaces-the-first undecodable-bytes
unknown-frame unasked-chat-reply delta-names-its-parent full-history-names-its-parent unavailable-is-asked-again
refused-chat-ends-the-rollout unreadable-reply prompt-prefix-is-bounded arguments-are-text cancel-ends-the-rollout
higher-attempt-supersedes outcome-is-reported-until-a-receipt receipts-are-final equal-init-gets-the-outcome-again
break-and-resume rollout-one-chat segment-grows segment-drifts without-tokens-not-trainable outcome-by-reference
json-is-compared-by-value
""".split()  # noqa: SIM905
"""Cases that need only what the HTTP contract has: one conversation, one reward, and no tools of a chat's own."""


async def test_an_agent_behind_the_http_contract(tmp_path):
    with (
        serving("-m", AGENT, "-p", "0", "--no-journal", "--log-level", "error", cwd=tmp_path) as (_, agent),
        serving(
            "--legacy-agent",
            f"conformance=http://{agent['http']}",
            "--no-journal",
            "--log-level",
            "error",
            cwd=tmp_path,
        ) as (_, ready),
    ):
        results = await check_server(ready["grpc"], LEGACY, modes=["callback", "attach", "call"])
    assert not failed(results)
    assert all(result.verdict == "passed" for result in results)
