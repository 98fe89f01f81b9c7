"""How models of several families write replies, by hand from the formats of the families."""

import json
from collections.abc import Callable
from dataclasses import dataclass


def _json_call(name, arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _xml_call(name, arguments):
    values = "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def _key_value_call(name, arguments, between="", mark=""):
    pairs = "".join(
        f"<arg_key{mark}>{key}</arg_key{mark}>{between}<arg_value{mark}>{_bare(value)}</arg_value{mark}>{between}"
        for key, value in arguments.items()
    )
    return name, between, pairs


def _glm_call(name, arguments, between=""):
    name, _, pairs = _key_value_call(name, arguments, between)
    return f"<tool_call>{name}{between}{pairs}</tool_call>"


def _hy_call(name, arguments):
    mark = ":opensource"
    _, _, pairs = _key_value_call(name, arguments, "\n", mark)
    call = f"<tool_call{mark}>{name}<tool_sep{mark}>\n{pairs}</tool_call{mark}>"
    return f"<tool_calls{mark}>\n{call}\n</tool_calls{mark}>"


def _deepseek_call(name, arguments):
    call = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```<｜tool▁call▁end｜>"
    )
    return f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>"


def _dsml_call(name, arguments):
    values = "".join(
        f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{_bare(value)}</｜DSML｜parameter>\n"
        for key, value in arguments.items()
    )
    invoke = f'<｜DSML｜invoke name="{name}">\n{values}</｜DSML｜invoke>'
    return f"\n\n<｜DSML｜tool_calls>\n{invoke}\n</｜DSML｜tool_calls>"


def _kimi_call(name, arguments):
    call = f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"
    return f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"


def _minimax_call(name, arguments):
    values = "".join(f'<parameter name="{key}">{_bare(value)}</parameter>\n' for key, value in arguments.items())
    return f'<minimax:tool_call>\n<invoke name="{name}">\n{values}</invoke>\n</minimax:tool_call>'


def _gemma_call(name, arguments):
    def written(value):
        return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)

    pairs = ",".join(f"{key}:{written(value)}" for key, value in arguments.items())
    return f"<|tool_call>call:{name}{{{pairs}}}<tool_call|>"


def _bare(value):
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Format:
    """A family's way of writing."""

    call: Callable[[str, dict], str]
    end: str
    think: str = ""
    """What a reply begins with, with @ in place of the reasoning; empty for families without reasoning."""
    segments: int = 1
    """The segments of the conversation of the test. Families that forget the reasoning of earlier turns get a new one
    at each message of the user."""
    quotes: bool = True
    """Whether texts are told from numbers in arguments."""
    call_end: str = ""
    """What ends a reply with a call; empty for `end`."""
    calls_alone: bool = False
    """Whether a reply with a call has no text."""


FORMATS = {
    "qwen3": Format(_json_call, "<|im_end|>", "<think>\n@\n</think>\n\n", segments=3),
    "qwen3.5": Format(_xml_call, "<|im_end|>", "@\n</think>\n\n", segments=3, quotes=False),
    "qwen3.8": Format(_xml_call, "<|im_end|>", "@\n</think>\n\n", quotes=False),
    "prime-qwen3": Format(_xml_call, "<|im_end|>", quotes=False),
    "nemotron-3": Format(_xml_call, "<|im_end|>", "@\n</think>\n", segments=3, quotes=False),
    "glm-4.5": Format(lambda *a: _glm_call(*a, "\n"), "<|user|>", "\n<think>@</think>\n", segments=3, quotes=False),
    "glm-5": Format(_glm_call, "<|user|>", "@</think>", segments=3, quotes=False),
    "laguna-s-2.1": Format(_glm_call, "</assistant>", "@</think>", quotes=False),
    "hy3": Format(_hy_call, "<｜hy_eos:opensource｜>", quotes=False),
    "deepseek-v3": Format(_deepseek_call, "<｜end▁of▁sentence｜>"),
    "deepseek-v4": Format(_dsml_call, "<｜end▁of▁sentence｜>"),
    "kimi-k2": Format(_kimi_call, "<|im_end|>"),
    "kimi-k2.5": Format(_kimi_call, "<|im_end|>", "@</think>", segments=3),
    "minimax-m2": Format(_minimax_call, "[e~[", "@\n</think>\n\n", segments=3, quotes=False),
    "gemma4": Format(_gemma_call, "<turn|>", "<|channel>thought\n@\n<channel|>", call_end="<|tool_response>"),
    "llama-3": Format(
        lambda name, given: json.dumps({"name": name, "parameters": given}), "<|eot_id|>", calls_alone=True
    ),
}
