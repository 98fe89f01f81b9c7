"""A vLLM of each frontend, for all tests of the folder.

Both run the model whose generation_config.json would shape every reply. So each test of logprobs also shows that
neutral values are sent.
"""

import pytest

from osmosis_grpc.integrations.vllm_grpc import VllmGrpcGenerator
from osmosis_grpc.integrations.vllm_http import VllmHttpGenerator
from osmosis_grpc.policies import ChatRenderer, TemplateTokenizer
from tests.vllm.engine import MODELS, Engine

KINDS = ["http", "http-rust", "grpc"]


@pytest.fixture(scope="session", autouse=True)
def _environment():
    if not MODELS.is_dir():
        pytest.fail("there is no vLLM: run `make test-vllm`")


def _engine(folder, **more):
    engine = Engine(MODELS / "shaped", folder / "vllm.log", **more)
    try:
        engine.start()
        yield engine
    finally:
        engine.kill()


@pytest.fixture(scope="session")
def python_engine(tmp_path_factory):
    yield from _engine(tmp_path_factory.mktemp("python"))


@pytest.fixture(scope="session")
def rust_engine(tmp_path_factory):
    yield from _engine(tmp_path_factory.mktemp("rust"), rust=True)


@pytest.fixture
def engine_of(request):
    """The engine of a kind, and a new generator for it."""

    def made(kind):
        engine = request.getfixturevalue("python_engine" if kind == "http" else "rust_engine")
        return engine, VllmGrpcGenerator(engine.target) if kind == "grpc" else VllmHttpGenerator(engine.url)

    return made


@pytest.fixture(scope="session")
def tokenizer():
    return TemplateTokenizer(MODELS / "shaped")


@pytest.fixture(scope="session")
def renderer(tokenizer):
    return ChatRenderer(tokenizer)
