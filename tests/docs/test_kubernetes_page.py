"""The program of docs/kubernetes.md runs against a fake API server."""

import pytest

from tests.docs.pages import Reader, blocks_of
from tests.processes import ROOT

pytestmark = pytest.mark.adapters
pytest.importorskip("kubernetes_asyncio")


@pytest.mark.row("ARL 50")
async def test_the_program_of_the_page_about_kubernetes_runs(tmp_path, monkeypatch):
    from tests.tools.kubernetes.api_server import FakeApi, usable

    if not usable():
        pytest.skip("bubblewrap does not work on this machine")
    page = ROOT / "docs" / "kubernetes.md"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with FakeApi() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path)))
        with Reader(tmp_path) as reader:
            for block in blocks_of(page):
                await reader.run(block)
        assert not api.pods
    [printed] = reader.output
    first, *rest = printed.splitlines()
    shown = page.read_text()
    assert first.partition(";")[0] in shown
    assert "\n".join(rest) in shown
    assert rest
