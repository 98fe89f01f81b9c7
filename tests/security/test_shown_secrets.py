"""An agent's tool finds no secret of the server's in its environment, and files keep them off the command line."""

import os
import re
import signal

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import Unauthenticated
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.processes import ROOT, run, serving
from tests.waiting import ended

AGENT = ("-m", "tests.security.printing_agent:agent_loop")
TOKENS = {name: f"canary-{name}-5f2c" for name in ("caller", "admin", "connect", "legacy")}
VARIABLES = {
    "OSMOSIS_ROLLOUT_SERVER_TOKEN": f"lab={TOKENS['caller']}",
    "OSMOSIS_ROLLOUT_SERVER_ADMIN_TOKEN": TOKENS["admin"],
    "osmosis_rollout_server_connect_token": TOKENS["connect"],
    "OSMOSIS_ROLLOUT_SERVER_LEGACY_AGENT_TOKEN": TOKENS["legacy"],
}
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.upper().startswith("OSMOSIS_")}


async def seen(address, state_dir):
    """What the agent's tool printed, and that each token opens what it should."""
    texts = []

    def policy(request):
        texts.append(request.messages[-1]["content"])
        return answer(request, "thank you", tokens=2)

    async with CallbackTrainer(policy) as trainer:
        async with RolloutClient(address, token=TOKENS["caller"]) as client:
            callback = trainer.callback(rollout_id="r")
            await client.init(rollout_id="r", messages=[{"role": "user", "content": "hi"}], callback=callback)
            outcome = await ended(client, "r")
        async with RolloutClient(address) as stranger:
            with pytest.raises(Unauthenticated):
                await stranger.info()
        async with RolloutClient(address, token=TOKENS["admin"]) as admin:
            await admin.drain()
    assert outcome.status.name == "COMPLETED"
    (text,) = texts
    assert "PATH=" in text
    return text, b"".join(path.read_bytes() for path in state_dir.rglob("*") if path.is_file())


def check(text, journal, err):
    for name, secret in TOKENS.items():
        assert secret not in text, name
        assert secret.encode() not in journal, name
        assert secret not in err, name


async def test_what_a_tool_prints_of_its_environment_shows_no_secret(tmp_path):
    state = tmp_path / "state"
    with serving(*AGENT, "--state-dir", str(state), env=ENVIRONMENT | VARIABLES) as (process, ready):
        text, journal = await seen(ready["grpc"], state)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    check(text, journal, err)
    assert "OSMOSIS_ROLLOUT_SERVER_TOKEN='" not in text
    assert "use --" not in err, "no secret was on the command line"


@pytest.mark.slow
async def test_files_keep_secrets_off_the_command_line(tmp_path):
    state = tmp_path / "state"
    (tmp_path / "callers").write_text(f"other=another-token\n\nlab={TOKENS['caller']}\n")
    (tmp_path / "admins").write_text(f"ops={TOKENS['admin']}\n")
    (tmp_path / "connect").write_text(TOKENS["connect"])
    files = ("--token-file", "callers", "--admin-token-file", "admins", "--connect-token-file", "connect")
    arguments = [str(tmp_path / text) if not text.startswith("-") else text for text in files]
    with serving(*AGENT, *arguments, "--state-dir", str(state), env=ENVIRONMENT) as (process, ready):
        text, journal = await seen(ready["grpc"], state)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert "--token-file" in text, "the command line was looked at"
    check(text, journal, err)
    assert "use --" not in err


@pytest.mark.slow
def test_a_secret_on_the_command_line_is_warned_of():
    with serving(
        *AGENT, "--no-journal", "--token", TOKENS["caller"], "--admin-token", TOKENS["admin"], env=ENVIRONMENT
    ) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert re.findall(r"(--[\w-]+): every program .* use (--[\w-]+)", err) == [
        ("--token", "--token-file"),
        ("--admin-token", "--admin-token-file"),
    ]
    assert TOKENS["caller"] not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (None, ("--token-file", "FILE"), "--token-file: FILE cannot be used: No such file"),
        ("", ("--token-file", "FILE"), "--token-file: FILE cannot be used: a token is"),
        ("one\n two\n", ("--admin-token-file", "FILE"), "--admin-token-file: FILE cannot be used: a token is"),
        ("one\ntwo\n", ("--connect-token-file", "FILE"), "--connect-token-file: there is more than one token"),
        ("one\n", ("--connect-token-file", "FILE", "--connect-token", "two"), "there is more than one token"),
    ],
)
def test_an_unusable_file_is_named(tmp_path, content, arguments, message):
    path = tmp_path / "tokens"
    if content is not None:
        path.write_text(content)
    given = [str(path) if text == "FILE" else text for text in arguments]
    done = run("-m", "osmosis_grpc.serve", *AGENT, "--no-journal", *given, env=ENVIRONMENT, cwd=ROOT)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert message.replace("FILE", str(path)) in line
