"""A tokenizer of bytes and a few longer tokens, with chat templates of four styles. It needs no library.

The tokens 0 to 255 are bytes. Then come PIECES, which stand for several bytes, as merged tokens of a BPE do, and the
special tokens of the template. Encoding takes the longest token at each place. So a text has one encoding, and many
other token sequences decode to the same text.
"""

import json
import re

PIECES = ("\n\n", "\n ", "the", "ing", "An", "swer", '{"', '":', '", "', "}}", "####", "1 + ", "<tool", "_call>")


def chatml(messages, tools, reply_follows):
    """As Qwen 2.5: tools in the system message, calls as <tool_call>, results together in one user turn."""
    head = [] if messages[0]["role"] == "system" else [{"role": "system", "content": "You are helpful."}]
    text = ""
    for index, message in enumerate(head + messages):
        content = message["content"]
        if index == 0 and tools:
            lines = "\n".join(json.dumps(tool) for tool in tools)
            content += f"\n\n# Tools\n\n<tools>\n{lines}\n</tools>"
        if message["role"] == "tool":
            before, after = _neighbours(head + messages, index)
            text += "" if before == "tool" else "<|im_start|>user"
            text += f"\n<tool_response>\n{content}\n</tool_response>" + ("" if after == "tool" else "<|im_end|>\n")
            continue
        for call in message.get("tool_calls") or ():
            content += ("\n" if content else "") + f"<tool_call>\n{_call(call, 'arguments')}\n</tool_call>"
        text += f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"
    return text + ("<|im_start|>assistant\n" if reply_follows else "")


def llama3(messages, tools, reply_follows):
    """As Llama 3.1: tools in the first user message, a bare JSON call with `parameters`, results as ipython."""
    text, users = "<|begin_of_text|>", 0
    for message in messages:
        role = {"tool": "ipython"}.get(message["role"], message["role"])
        content = message["content"].strip()
        if role == "ipython":
            content = json.dumps(content)
        if role == "user" and not users and tools:
            content = "Given these functions, answer with JSON.\n\n" + "\n\n".join(map(json.dumps, tools)) + content
        users += role == "user"
        content += "".join(_call(call, "parameters") for call in message.get("tool_calls") or ())
        text += f"<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>"
    return text + ("<|start_header_id|>assistant<|end_header_id|>\n\n" if reply_follows else "")


def hermes(messages, tools, reply_follows):
    """As Hermes 2 Pro: a system turn for the tools, each result in a turn of the role tool."""
    text = "<s>"
    if tools:
        about = "\n".join(json.dumps(tool["function"]) for tool in tools)
        text += f"<|im_start|>system\nYou are a function calling AI model. <tools> {about} </tools><|im_end|>\n"
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
        for call in message.get("tool_calls") or ():
            content += f"\n<tool_call>\n{_call(call, 'arguments')}\n</tool_call>"
        text += f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"
    return text + ("<|im_start|>assistant\n" if reply_follows else "")


def forgetful(messages, tools, reply_follows):
    """As Qwen 3 and DeepSeek R1: ChatML without the reasoning of replies before the last user message."""
    last = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=-1)
    kept = [
        {**message, "content": re.sub(r"<think>.*?</think>\s*", "", message["content"], flags=re.DOTALL)}
        if message["role"] == "assistant" and index < last
        else message
        for index, message in enumerate(messages)
    ]
    return chatml(kept, tools, reply_follows)


SPECIAL = {
    chatml: ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    llama3: ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
    hermes: ("<s>", "<|im_start|>", "<|im_end|>"),
    forgetful: ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
}
"""The special tokens of each template."""
END = {chatml: "<|im_end|>", llama3: "<|eot_id|>", hermes: "<|im_end|>", forgetful: "<|im_end|>"}
"""The token that ends a reply."""
STYLES = {chatml: "hermes", llama3: "json", hermes: "hermes", forgetful: "hermes"}
"""The style of each template's tool calls."""


class ByteTokenizer:
    """Has what ChatRenderer needs, and counts how often a template is rendered."""

    def __init__(self, template=chatml):
        self.template = template
        self.special = SPECIAL[template]
        self.end = END[template]
        texts = [bytes([byte]) for byte in range(256)] + [text.encode() for text in (*PIECES, *self.special)]
        self._texts = dict(enumerate(texts))
        self._ids = {text: number for number, text in self._texts.items()}
        longest_first = sorted(texts, key=len, reverse=True)
        self._token = re.compile(b"|".join(map(re.escape, longest_first)), re.DOTALL)
        self.all_special_ids = [self._ids[text.encode()] for text in self.special]
        self.end_id = self._ids[self.end.encode()]
        self.vocab_size = len(texts)

    def apply_chat_template(self, messages, *, tools=None, add_generation_prompt=False, tokenize=False):
        assert not tokenize
        return self.template(messages, tools, add_generation_prompt)

    def encode(self, text, *, add_special_tokens=False):
        assert not add_special_tokens
        return [self._ids[found] for found in self._token.findall(text.encode())]

    def decode(self, ids, *, skip_special_tokens=False):
        dropped = self.all_special_ids if skip_special_tokens else ()
        return b"".join(self._texts[number] for number in ids if number not in dropped).decode(errors="replace")

    def in_bytes(self, text):
        """The ids of a text without its longer tokens, as a model may sample them: not the ids of encode()."""
        return list(text.encode())

    def reply(self, content="", calls=(), *, sampled_as="encode"):
        """The ids of a reply as the model of this template writes it, with the end of its turn.

        `calls` are pairs of a name and its arguments.
        """
        key = "parameters" if self.template is llama3 else "arguments"
        written = [json.dumps({"name": name, key: arguments}) for name, arguments in calls]
        if self.template is llama3:
            written = [f"[{', '.join(written)}]"] if len(written) > 1 else written
        else:
            written = [f"<tool_call>\n{call}\n</tool_call>" for call in written]
        text = content + ("\n" if content and written else "") + "\n".join(written)
        ids = self.in_bytes(text) if sampled_as == "bytes" else self.encode(text)
        return [*ids, self.end_id]


def _call(call, key):
    return json.dumps({"name": call["function"]["name"], key: call["function"]["arguments"]})


def _neighbours(messages, index):
    after = messages[index + 1]["role"] if index + 1 < len(messages) else ""
    return messages[index - 1]["role"] if index else "", after
