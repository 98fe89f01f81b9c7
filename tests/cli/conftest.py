"""What several commands' tests need."""

from collections.abc import Iterator

import pytest

from tests.cli.forked import Forked
from tests.cli.looked_at import LookedAt, record, write_agents
from tests.processes import server_process


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """Runs commands that start no gRPC; see tests/cli/forked.py."""
    with Forked(
        "osmosis_grpc.cli.commands",
        "osmosis_grpc.cli.demo",
        "osmosis_grpc.cli.validate",
        "osmosis_grpc.cli.trial",
        "osmosis_grpc.cli.trial_findings",
        "osmosis_grpc.cli.replay",
        "osmosis_grpc.cli.show",
        "osmosis_grpc.cli.events",
        "osmosis_grpc.cli.query",
        "osmosis_grpc.cli.test",
        "osmosis_grpc.cli.eval",
        "osmosis_grpc.cli.compare",
        "osmosis_grpc.cli.rescore",
        "osmosis_grpc.serve.command",
        "osmosis_grpc.serve.json_output",
        "osmosis_grpc.engine.engine",
        "osmosis_grpc.policies",
        "osmosis_grpc.rollout.tools",
    ) as started:
        yield started


@pytest.fixture(scope="session")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookedAt]:
    """The rollouts good, bad, evil and stuck on a server with a state folder; see tests/cli/looked_at.py."""
    folder = tmp_path_factory.mktemp("looked_at")
    write_agents(folder)
    with server_process("-m", "agents:Traveller", "--state-dir", "state", cwd=folder) as (_, address):
        record(address, "good", "bad", "evil", "stuck")
        yield LookedAt(folder, address)
