"""The compose file of deploy/docker is brought up and down, twice."""

import json
import resource
import shutil
import subprocess

import pytest

from tests.processes import ROOT

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("docker-compose") is None, reason="needs Debian's docker-compose"),
]
PROJECT = "osmosis-test"


def test_a_trainer_gets_rewards_each_time_and_the_state_stays(environment, docker, image, tmp_path):
    file = ROOT / "deploy" / "docker" / "compose.yaml"
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a machine of tests may allow less than the file asks for
    limits = {"nofile": {"soft": most, "hard": most}}
    (tmp_path / "limits.json").write_text(json.dumps({"services": {"server": {"ulimits": limits}}}))

    def compose(*arguments):
        command = ["docker-compose", "-p", PROJECT, "-f", str(file), "-f", str(tmp_path / "limits.json"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def rollouts():
        line = ["exec", "-T", "server", "osmosis-grpc", "list", "--limit", "100000", "--json"]
        return [line for line in compose(*line).splitlines() if "grpo-" in line]

    counts = []
    try:
        for _ in range(2):
            compose("up", "-d", "--no-build", "server")
            said = compose("run", "--rm", "-T", "trainer")
            assert "reward" in said
            counts.append(len(rollouts()))
            compose("down")
            label = f"label=com.docker.compose.project={PROJECT}"
            assert docker("ps", "-aq", "--filter", label) == ""
            assert docker("network", "ls", "-q", "--filter", label) == ""
            assert docker("volume", "ls", "-q", "--filter", label) != ""
    finally:
        compose("down", "-v")
    assert counts[0] > 0
    assert counts[1] == 2 * counts[0]
