"""What several commands' tests need."""

from collections.abc import Iterator

import pytest

from tests.cli.forked import Forked


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
        "osmosis_grpc.cli.test",
        "osmosis_grpc.serve.command",
        "osmosis_grpc.serve.json_output",
        "osmosis_grpc.engine",
        "osmosis_grpc.policies",
        "osmosis_grpc.rollout.tools",
    ) as started:
        yield started
