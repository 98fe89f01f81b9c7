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
    streams: bool = True
    """Whether its agents may stream."""
    measured: bool = True
    """Whether its cost is comparable: its agents run in processes of their own."""

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
           "events, tokens, logprobs, versions, outcome; in a journal on disk", streams=False),
    System("osmosis_base_url", "osmosis_grpc, base URL", "ours", "a program calls the rollout's base URL",
           "events, tokens, logprobs, versions, outcome; in a journal on disk"),
    System("agent_lightning", "Agent Lightning", "agent-lightning", "a program calls its proxy; triplets",
           "each request with its tokens and logprobs, in its store",
           "a small server that is easy to read and to change"),
    System("rllm_gateway", "rLLM model gateway", "rllm", "a program calls its session URL; the trainer asks for traces",
           "each request and reply with tokens and logprobs, in SQLite or memory",
           "works without its framework: a session URL, and a fetch"),
    System("verifiers", "verifiers", "verifiers", "a program calls its interception server; its client sends token ids",
           "a trace: nodes with tokens and logprobs, shared by branches; in memory, on disk when it is written",
           "what is sampled once is trained once; a harness is 15 lines", adapter="verifiers_v1"),
    System("nemo_gym", "NeMo Gym", "nemo-gym", "a program calls its model server",
           "each call with tokens and logprobs, in a file of the rollout",
           "leaves a sample out with the reason; a share of what was delivered, and a limit of what is left out",
           measured=False),
    System("nemo_gym_prefix", "NeMo Gym, required prefixes", "nemo-gym", "the same, with an engine that takes prefixes",
           "each call with tokens and logprobs, in a file of the rollout", "the engine goes on with what it sampled"),
    System("art", "ART", "art", "an agent in the trainer's process; its HTTP client records",
           "the replies in OpenAI's format with logprobs, in memory", "no server between agent and engine",
           measured=False),
    System("atropos", "Atropos", "atropos", "a program calls its proxy; nodes",
           "each conversation as one sequence, in memory", "environments are services of their own, in any language"),
    System("trl", "TRL with OpenEnv", "trl", "a program calls OpenEnv's capture server; TRL makes rows of its trace",
           "a graph of calls with tokens and logprobs, in memory", "four dialects of APIs", adapter="trl_openenv"),
    System("openinference", "OpenInference", "openinference", "an agent whose openai client is instrumented",
           "a span for each reply, with the JSON that the client got; no trainer is behind it",
           "two lines in the agent's process", measured=False),
)  # fmt: skip
BY_NAME = {system.name: system for system in SYSTEMS}
ENGINE_ALONE = System("engine_alone", "engine alone", "ours", "agents call the engine; nothing is recorded", "nothing")
"""The floor of every cost."""
LEFT_OUT: dict[str, str] = {
    "osmosis-ai 0.3.8": "The package runs agents only: it gives them the chat completions URL of a hosted trainer. No "
    "file of it renders a chat template or asks for token ids, so no row is made in it.",
    "AReaL 1.0.4": "It requires torch >=2.9.1,<2.11, which the package index has for GPUs only: torch 2.10.0 requires "
    "cuda-bindings and nvidia-cudnn-cu12.",
    "SkyRL 0.4.0": "Its trainer requires flash-attn 2.8.3, of which the package index has no wheel and whose source is "
    "built with CUDA.",
    "TRL 1.16.0, its own loop": "GRPOTrainer calls tools itself between replies, so an agent of the comparison cannot "
    "run in it. Its path for programs, OpenEnv, is compared.",
}
"""What has no adapter, with the reason."""
