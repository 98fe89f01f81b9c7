"""A tokenizer of bytes that has each special token that a renderer asks for. It needs no files."""

import re

KNOWN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "｜DSML｜"]
DEEPSEEK = [
    *("latest_reminder", "action", "query", "authority", "domain", "title", "read_url"),
    *("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "tool▁calls▁begin", "tool▁calls▁end"),
    *("tool▁call▁begin", "tool▁call▁end", "tool▁sep", "tool▁outputs▁begin", "tool▁outputs▁end"),
    *("tool▁output▁begin", "tool▁output▁end"),
]
FIRST_SPECIAL = 1000


class FamilyTokenizer:
    """Its ids are bytes, and the special tokens from 1000 on."""

    unk_token_id = None
    eos_token_id = None
    bos_token_id = None

    def __init__(self, name_or_path=""):
        self.name_or_path = name_or_path
        names = [*KNOWN, *(f"<｜{name}｜>" for name in DEEPSEEK)]
        self._ids = {name: FIRST_SPECIAL + n for n, name in enumerate(names)}

    def convert_tokens_to_ids(self, tokens):
        if isinstance(tokens, list):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        return self._ids.setdefault(tokens, FIRST_SPECIAL + len(self._ids))

    def get_vocab(self):
        return dict(self._ids)

    def encode(self, text, *, add_special_tokens=False):
        assert not add_special_tokens
        parts = re.split("(" + "|".join(map(re.escape, sorted(self._ids, key=len, reverse=True))) + ")", text)
        return [number for part in parts for number in ([self._ids[part]] if part in self._ids else part.encode())]

    def decode(self, token_ids, *, skip_special_tokens=False):
        texts = {number: text.encode() for text, number in self._ids.items()}
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return b"".join(bytes([n]) if n < FIRST_SPECIAL else texts[n] for n in ids).decode(errors="replace")
