"""Training of the two tokenizers of the comparison."""

import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def byte_level(corpus: list[str]) -> Tokenizer:
    """Train a BPE over bytes on files."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train(corpus, trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False))
    return tokenizer


def blanks(corpus: list[str]) -> Tokenizer:
    """Train a BPE with marks for blanks on files."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    bytes_as_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    special = ["<unk>", *bytes_as_tokens]
    tokenizer.train(corpus, trainers.BpeTrainer(vocab_size=2000, special_tokens=special, show_progress=False))
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []  # bytes are tokens of the model, not marks that a text could contain
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


TRAIN = {"chatml": byte_level, "brackets": blanks}
