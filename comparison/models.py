"""The two models of the comparison: tokenizers, chat templates, and reading what a prompt says.

- `chatml`: a byte-level BPE with the chat template of Qwen3, which drops the reasoning of earlier turns.
- `brackets`: a BPE with U+2581 for blanks and bytes for what it has no token for, as Llama 2 and Mistral have it. Its
  template trims contents, has no generation prompt and no line break behind the end of a turn, and keeps reasoning.

Both are trained on `corpus.txt` and the licence, so the ids stay the same when cases are added.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2
    from tokenizers import Tokenizer

HERE = Path(__file__).parent
NAMES = ("chatml", "brackets")
END = {"chatml": "<|im_end|>", "brackets": "</s>"}
SPECIAL = {
    "chatml": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "brackets": ["<unk>", "<s>", "</s>"]
    + [f"[{slash}{role}]" for role in ("SYSTEM", "USER", "RESULT", "TOOLS") for slash in ("", "/")],
}
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
Message = dict[str, Any]


def make(folder: Path) -> None:
    """Write both models below `folder`, as transformers loads them."""
    from tokenizers import AddedToken

    from comparison.training import TRAIN

    corpus = [HERE.parent / "LICENSE", HERE / "corpus.txt"]
    for name in NAMES:
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        tokenizer = TRAIN[name]([str(path) for path in corpus])
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL[name]])
        tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
        tokenizer.save(str(place / "tokenizer.json"))
        template = (HERE / "templates" / f"{name}.jinja").read_text()
        (place / "chat_template.jinja").write_text(template)
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END[name],
            "pad_token": SPECIAL[name][0],
            "chat_template": template,
            "model_max_length": 1_000_000,
            "clean_up_tokenization_spaces": False,
        }
        (place / "tokenizer_config.json").write_text(json.dumps(settings))
        kind = {"model_type": "qwen3" if name == "chatml" else "mistral", "vocab_size": 4096}
        (place / "config.json").write_text(json.dumps({**kind, "max_position_embeddings": 1_000_000}))


@dataclass(frozen=True)
class Model:
    """A tokenizer with its template."""

    name: str
    tokenizer: "Tokenizer"
    template: "jinja2.Template"

    @classmethod
    def load(cls, folder: Path) -> "Model":
        """Load what `make` wrote: `folder` is the folder of one model."""
        import jinja2
        from tokenizers import Tokenizer

        env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
        env.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return cls(folder.name, tokenizer, env.from_string((folder / "chat_template.jinja").read_text()))

    @property
    def end(self) -> int:
        """The id that ends a turn."""
        return int(self.tokenizer.token_to_id(END[self.name]))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with nothing added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, with the marks."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def render(self, messages: list[Message], tools: Any = None, *, prompt: bool = True) -> list[int]:
        """Return the prompt of a history in OpenAI's format."""
        read = [_for_template(message) for message in messages]
        return self.encode(self.template.render(messages=read, tools=tools or None, add_generation_prompt=prompt))


def _for_template(message: Message) -> Message:
    out = dict(message)
    if isinstance(out.get("content"), list):
        out["content"] = "".join(part.get("text", "") for part in out["content"])
    if out.get("tool_calls"):
        out["tool_calls"] = [{**call, "function": _function(call["function"])} for call in out["tool_calls"]]
    if out.get("reasoning") and not out.get("reasoning_content"):
        out["reasoning_content"] = out["reasoning"]
    return out


def _function(function: Message) -> Message:
    arguments = function["arguments"]
    return {**function, "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}


if __name__ == "__main__":
    make(Path(sys.argv[1]))
