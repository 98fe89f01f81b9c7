"""The blocks of docs/vllm.md run against servers that were made from the facts of the services."""

import pytest

from osmosis_grpc.policies import TemplateTokenizer
from tests.docs.pages import Reader, blocks_of
from tests.integrations.counting_agent import adding_model
from tests.integrations.fake_engine import FakeEngine
from tests.integrations.fake_vllm import FakeVllm
from tests.integrations.fake_vllm_generate import FakeVllmGenerate
from tests.policies.model_folder import write_tokenizer
from tests.processes import ROOT

pytestmark = pytest.mark.adapters
pytest.importorskip("smg_grpc_proto")
pytest.importorskip("tokenizers")


@pytest.mark.timeout(180)
async def test_the_blocks_of_the_page_about_vllm_run(tmp_path, monkeypatch):
    from tests.integrations.fake_smg import FakeSglang

    monkeypatch.chdir(tmp_path)
    folder = write_tokenizer(tmp_path / "models" / "mine")
    vllm, sglang, over_http = (FakeEngine(adding_model(TemplateTokenizer(folder))) for _ in range(3))
    with Reader(tmp_path) as reader:
        async with (
            FakeVllm(vllm).serving(reader.ports["8100"]),
            FakeSglang(sglang, folder).serving(reader.ports["60051"]),
            FakeVllmGenerate(over_http).serving(reader.ports["8000"]),
        ):
            for block in blocks_of(ROOT / "docs" / "vllm.md"):
                await reader.run(block)
    assert "1 of 1 row COMPLETED, mean reward 1" in reader.output[0]
    assert (vllm.version, over_http.version) == ("step-2", "step-2")
    assert len(sglang.received) == 5
