"""The systems that are compared, and those that are not, with the reason.

An environment is a folder of `.venv-comparison`, made from `requirements/<environment>.txt`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements"
ENVIRONMENTS = HERE.parent / ".venv-comparison"


@dataclass(frozen=True)
class System:
    """A system under test. `records` is what it keeps of a chat, and `better` what it does better than osmosis_grpc."""

    name: str
    title: str
    environment: str
    path: str
    records: str
    better: str = ""
    models: Sequence[str] = ("chatml", "brackets")
    adapter: str = ""

    @property
    def module(self) -> str:
        """The adapter in `systems`."""
        return self.adapter or self.name

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return ENVIRONMENTS / self.environment / "bin" / "python"

    @property
    def versions(self) -> str:
        """The pins of its environment that name the system."""
        lines = (REQUIREMENTS / f"{self.environment}.txt").read_text().splitlines()
        return ", ".join(line.replace("==", " ") for line in lines if "==" in line and not line.startswith("#"))


SYSTEMS = (
    System("osmosis_native", "osmosis_grpc, native", "ours", "the agent in the server asks with ctx.chat, over Attach",
           "events, tokens, logprobs, versions, outcome; on disk before they are sent"),
    System("osmosis_base_url", "osmosis_grpc, base URL", "ours", "a program calls the rollout's base URL",
           "events, tokens, logprobs, versions, outcome; on disk before they are sent"),
    System("agent_lightning", "Agent Lightning", "agent-lightning", "a program calls its proxy; triplets",
           "each request with its tokens and logprobs, in its store",
           "a small server that is easy to read and to change"),
    System("rllm_gateway", "rLLM model gateway", "rllm", "a program calls its session URL; the trainer asks for traces",
           "each request and reply with tokens and logprobs, in SQLite or memory",
           "works without its framework: a session URL, and a fetch"),
)  # fmt: skip
BY_NAME = {system.name: system for system in SYSTEMS}
ENGINE_ALONE = System("engine_alone", "engine alone", "ours", "agents call the engine; nothing is recorded", "nothing")
"""The floor of every cost."""
LEFT_OUT: dict[str, str] = {}
"""What has no adapter, with the reason."""
