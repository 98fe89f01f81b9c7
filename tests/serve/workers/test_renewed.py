"""What SIGHUP renews in a server with workers, as docs/operators.md says: code, token files and .env."""

import contextlib
import os
import signal

import pytest

from osmosis_grpc.protocol.errors import Cancelled, Unauthenticated, Unavailable
from osmosis_grpc.trainer import RolloutClient
from tests.serve.workers.server import AGENT, started
from tests.waiting import until

pytestmark = pytest.mark.slow
LIMIT, TIMEOUT = "OSMOSIS_ROLLOUT_SERVER_RECORD_TTL_SECONDS", "OSMOSIS_ROLLOUT_SERVER_AGENT_TIMEOUT_SECONDS"


async def info(server, worker, token):
    with contextlib.suppress(Unavailable, Unauthenticated, Cancelled):  # a worker that ends cancels its calls
        async with RolloutClient(server.targets[worker], token=token) as client:
            return await client.info()
    return None


async def test_code_token_files_and_the_file_of_variables_are_renewed_but_not_the_environment(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")} | {TIMEOUT: "77"}
    tokens, variables = tmp_path / "tokens", tmp_path / ".env"
    tokens.write_text("first-token-of-this-test")
    variables.write_text(f"{LIMIT}=3000\n")
    with started(tmp_path, "--token-file", "tokens", env=env) as server:
        before = await info(server, 0, "first-token-of-this-test")
        assert (before.agent_loops[0].name, before.limits.agent_timeout, before.limits.outcome_ttl) == (
            "agent",
            77.0,
            3000,
        )
        tokens.write_text("second-token-of-this-test")
        variables.write_text(f"{LIMIT}=4000\n{TIMEOUT}=88\n")
        (tmp_path / "agents.py").write_text(AGENT.replace('name = "agent"', 'name = "renamed"'))
        assert await info(server, 1, "second-token-of-this-test") is None, "nothing is renewed without a signal"
        server.process.send_signal(signal.SIGHUP)
        for worker in (0, 1):
            after = await until(lambda worker=worker: info(server, worker, "second-token-of-this-test"), timeout=60)
            assert (after.agent_loops[0].name, after.limits.agent_timeout, after.limits.outcome_ttl) == (
                "renamed",
                77.0,
                4000,
            )
            assert await info(server, worker, "first-token-of-this-test") is None
