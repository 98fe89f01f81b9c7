"""`serve --ray` without Ray: its options, and what each server gets. tests/integrations/ray has the tests with Ray."""

import importlib.util

import pytest

from osmosis_grpc.serve.on_ray import resources_of, without_ray, write_targets
from tests.processes import run

AGENT = ("-m", "osmosis_grpc.serve", "-m", "osmosis_grpc.testing.calculator:agent_loop")


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_error_names_the_extra(tmp_path):
    done = run(*AGENT, "--ray", cwd=tmp_path)
    assert done.returncode == 2
    assert "serve --ray needs the extra 'ray'" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_a_trainer_s_source_names_the_extra():
    done = run("-c", "from osmosis_grpc.integrations.ray import ray_targets; ray_targets()")
    assert "ray_targets() needs the extra 'ray'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--ray-servers", "3"), "--ray-servers goes with --ray"),
        (("--targets-file", "servers.txt"), "--targets-file goes with --ray"),
        (("--ray", "--ray-resources", "CPU"), "'CPU' is not NAME=AMOUNT"),
        (("--ray", "--ray-resources", "CPU=0"), "'CPU=0' is not NAME=AMOUNT"),
        (("--ray", "--ray-name", "a/b"), "'a/b' is not a name"),
        (("--ray", "--reload"), "--reload does not go with --ray"),
        (("--ray", "--view"), "--view does not go with --ray"),
        (("--ray", "--connect", "127.0.0.1:1"), "--connect does not go with --ray"),
        (("--ray", "--workers", "2"), "--workers does not go with --ray, where each server is one process"),
        (("--ray", "--targets-file", "no/such/folder/servers.txt"), "there is no folder no/such/folder"),
    ],
)
def test_a_wrong_option_is_named_before_ray_starts(forked, tmp_path, options, problem):
    done = forked.run(*AGENT, *options, cwd=tmp_path)
    assert done.returncode == 2
    assert problem in done.stderr


def test_a_server_gets_the_other_options():
    given = ["serve", "-m", "agent:loop", "--ray", "--ray-servers", "3", "--ray-resources=CPU=1", "--log-level", "info"]
    assert without_ray(given) == ["-m", "agent:loop", "--log-level", "info"]


def test_resources_are_numbers():
    assert resources_of(["CPU=0.5", "sandbox=2"]) == {"CPU": 0.5, "sandbox": 2.0}


def test_the_file_of_targets_is_replaced_at_once(tmp_path):
    path = tmp_path / "servers"
    path.write_text("old")
    old = path.stat().st_ino
    write_targets(path, ["10.0.0.1:50051", "10.0.0.2:50052"])
    assert path.read_text() == "# written by osmosis-grpc serve --ray\n10.0.0.1:50051\n10.0.0.2:50052\n"
    assert path.stat().st_ino != old
    assert list(tmp_path.iterdir()) == [path]
