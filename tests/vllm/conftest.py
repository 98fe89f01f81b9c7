"""A vLLM of each frontend, and one behind smg-grpc-servicer, for all tests of the folder.

All run the model whose generation_config.json would shape every reply. So each test of logprobs also shows that
neutral values are sent.
"""

import pytest

from osmosis_grpc.integrations.smg import SmgGenerator
from osmosis_grpc.integrations.vllm_grpc import VllmGrpcGenerator
from osmosis_grpc.integrations.vllm_http import VllmHttpGenerator
from osmosis_grpc.policies import ChatRenderer, TemplateTokenizer
from tests.vllm.engine import MODELS, Engine, SmgEngine

KINDS = ["http", "http-rust", "grpc"]
ROUTES = [*KINDS, "smg"]
"""The kinds, and the service of smg-grpc-servicer, which samples and controls nothing."""
ENGINES = {"http": "python_engine", "http-rust": "rust_engine", "grpc": "rust_engine", "smg": "smg_engine"}


@pytest.fixture(scope="session", autouse=True)
def _environment():
    if not MODELS.is_dir():
        pytest.fail("there is no vLLM: run `make test-vllm`")


def _engine(folder, kind=Engine, **more):
    engine = kind(MODELS / "shaped", folder / "vllm.log", **more)
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


@pytest.fixture(scope="session")
def smg_engine(tmp_path_factory):
    yield from _engine(tmp_path_factory.mktemp("smg"), SmgEngine)


@pytest.fixture
def engine_of(request):
    """The engine of a kind, and a new generator for it."""

    def made(kind):
        engine = request.getfixturevalue(ENGINES[kind])
        if kind == "smg":
            return engine, SmgGenerator(engine.target)
        return engine, VllmGrpcGenerator(engine.target) if kind == "grpc" else VllmHttpGenerator(engine.url)

    return made


@pytest.fixture(scope="session")
def tokenizer():
    return TemplateTokenizer(MODELS / "shaped")


@pytest.fixture(scope="session")
def renderer(tokenizer):
    return ChatRenderer(tokenizer)
