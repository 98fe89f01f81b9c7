"""A small Llama of transformers with the tokens of examples/learn_to_calculate, made on the spot."""

import sys
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).parents[1] / "learn_to_calculate"))
import vocabulary
from vocabulary import END, PAD, PATTERN, TOKENS
from warm_up import warm_up

SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{{ tools | map(attribute='function') | map(attribute='name') | join(' ') }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{{ '\\n' if message.content or not loop.first }}<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""
"""The template of vocabulary.Tokenizer in Jinja."""


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of transformers that gives the same ids as vocabulary.Tokenizer."""
    ids = {token: number for number, token in enumerate(TOKENS)}
    made = Tokenizer(models.WordLevel(ids, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=TOKENS[PAD],
        eos_token=TOKENS[END],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def small_model(seed: int, heads: int = 4) -> LlamaForCausalLM:
    """Return a model with random weights. vLLM on a processor needs heads of 32 or more, so at most two of them."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(TOKENS),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=heads,
            max_position_embeddings=512,
            initializer_range=0.1,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0},
            pad_token_id=PAD,
            bos_token_id=TOKENS.index("<|im_start|>"),
            eos_token_id=END,
        )
    )
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.5)
    return model


class Logits(torch.nn.Module):
    """Has the call of learn_to_calculate's model."""

    def __init__(self, llama: LlamaForCausalLM) -> None:
        super().__init__()
        self.llama = llama

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.llama(input_ids=ids, use_cache=False).logits, None


def taught_model(seed: int, updates: int, heads: int = 4) -> LlamaForCausalLM:
    """Return a model that knows the format of tool calls and answers. It hardly knows which tool a question needs."""
    model = small_model(seed, heads)
    warm_up(Logits(model), vocabulary.Tokenizer(), seed=seed, updates=updates)
    return model
