"""A fake API server for each test, and clusters that use it."""

import pytest

from osmosis_grpc.tools.kubernetes import KubernetesCluster, KubernetesConfig
from tests.tools.kubernetes.api_server import FakeApi, usable

USABLE = usable()


@pytest.fixture
async def api():
    pytest.importorskip("kubernetes_asyncio")
    if not USABLE:
        pytest.skip("bubblewrap does not work on this machine")
    async with FakeApi() as made:
        yield made


@pytest.fixture
def cluster(api, tmp_path, monkeypatch):
    """Make a cluster of the fake API server, with more fields of the configuration."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    def make(**fields):
        given = {"server_id": "server-1", "image": "python:3.12", "kubeconfig": api.kubeconfig(tmp_path)}
        return KubernetesCluster(KubernetesConfig(**given | fields))

    return make


@pytest.fixture
async def box(cluster):
    async with cluster() as made, made.sandbox("rollout-1") as sandbox:
        yield sandbox
