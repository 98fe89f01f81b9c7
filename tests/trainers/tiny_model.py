"""A tiny random Llama and a byte-level tokenizer with a chat template, made on the spot."""

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
SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]


def tokenizer(*more: str):
    """Returns a tokenizer of transformers whose tokens are the bytes, SPECIAL and `more`: 259 without `more`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *alphabet, *more])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([*SPECIAL, *more])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=SPECIAL[0], eos_token=SPECIAL[2], chat_template=TEMPLATE
    )


def model(tokens: int, seed: int = 0):
    """Returns a random Llama with a vocabulary of `tokens`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=tokens,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        pad_token_id=0,
        eos_token_id=2,
        bos_token_id=1,
    )
    return LlamaForCausalLM(config)
