"""Tokenizers from the files of a model, without transformers. Needs the extra `tokenizer`.

    renderer = ChatRenderer(TemplateTokenizer("models/Qwen2.5-0.5B-Instruct"))

TemplateTokenizer reads tokenizer.json, tokenizer_config.json and chat_template.jinja, as transformers writes them. It
renders the template as transformers does: in a sandbox, because a template is untrusted code. TokenTexts only decodes
single tokens.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.protocol.types import Message

_BAD = "\N{REPLACEMENT CHARACTER}"
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""The character that SentencePiece writes for a space in a token. Its decoders drop a leading space."""


def read_tokenizer(folder: str | Path, wanted_by: str) -> Any:
    """Return the tokenizers.Tokenizer of a folder, or of a file tokenizer.json.

    Raises MissingExtraError if tokenizers is not installed, OSError for an unreadable file, and ValueError, naming the
    file, for a malformed one.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError(wanted_by, "tokenizer") from None
    path = Path(folder)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        written = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not a tokenizer: {error}") from None
    try:
        return Tokenizer.from_str(written)
    except Exception as error:  # tokenizers raises no more specific type
        raise ValueError(f"{path}: is not a tokenizer: {error}") from None


class TokenTexts:
    """Decodes single tokens. Raises what read_tokenizer() raises."""

    def __init__(self, folder: str | Path) -> None:
        self._tokens = read_tokenizer(folder, "a tokenizer")

    def of(self, ids: Iterable[int]) -> list[str]:
        """Return the text of each id. It is empty for an unknown id and for an incomplete character."""
        listed = list(ids)
        known = {number: self._text(number) for number in set(listed)}
        return [known[number] for number in listed]

    def _text(self, number: int) -> str:
        token = self._tokens.id_to_token(number)
        if token is None:
            return ""
        text: str = self._tokens.decode([number], skip_special_tokens=False)
        if _BAD in text:
            return ""
        return f" {text}" if token.startswith(_SPACE) and not text.startswith(" ") else text


_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The special tokens that templates can use as variables."""


class TemplateTokenizer:
    """The tokenizer and the chat template in the folder of a model.

    Args:
        folder: The folder of the model.
        chat_template: Replaces the template of the folder.

    Raises:
        MissingExtraError: tokenizers or jinja2 is not installed.
        OSError: A file is missing or cannot be read.
        ValueError: A file is malformed; the message names it.
    """

    def __init__(self, folder: str | Path, *, chat_template: str | None = None) -> None:
        try:
            import jinja2
        except ImportError:
            raise MissingExtraError("TemplateTokenizer", "tokenizer") from None
        files = Path(folder)
        self._tokens = read_tokenizer(files / "tokenizer.json", "TemplateTokenizer")
        config = _config(files)
        self._named = {name: text for name in _NAMED if (text := _text_of(config.get(name)))}
        self.chat_template = chat_template or _template(files, config)
        try:
            self._compiled = lru_cache(maxsize=4)(_environment().from_string)
            self._compiled(self.chat_template)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"{files}: the chat template has an error in line {error.lineno}: {error}") from None
        self.all_special_ids = sorted(self._special_ids(config))
        self.name_or_path = str(config.get("name_or_path") or files.name)
        self.unk_token_id, self.eos_token_id, self.bos_token_id = (
            self._tokens.token_to_id(self._named[name]) if name in self._named else None
            for name in ("unk_token", "eos_token", "bos_token")
        )

    def apply_chat_template(
        self,
        conversation: list[Message],
        *,
        tools: list[Any] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        chat_template: str | None = None,
        **params: Any,
    ) -> Any:
        """Return the text of a conversation, or its ids. Raises what the template raises.

        Args:
            conversation: The messages.
            tools: The tools of the chat.
            add_generation_prompt: Whether the text ends with the beginning of a reply.
            tokenize: Whether to return ids.
            chat_template: Replaces the template for this call.
            **params: Further variables of the template.
        """
        variables = {**self._named, **params, "messages": conversation, "tools": tools}
        template = self._compiled(chat_template or self.chat_template)
        text = template.render(**variables, add_generation_prompt=add_generation_prompt)
        return self.encode(text) if tokenize else text

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text, in which special tokens are written out.

        Args:
            text: The text.
            add_special_tokens: Whether the tokenizer adds tokens such as the beginning of a text.
        """
        ids: list[int] = self._tokens.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids.

        Args:
            token_ids: The ids.
            skip_special_tokens: Whether to leave out special tokens.
        """
        text: str = self._tokens.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Return the id of a token, or a list of ids for several. A token that is unknown has `unk_token_id`.

        Args:
            tokens: One token or several, as written in the vocabulary.
        """
        if isinstance(tokens, str):
            known = self._tokens.token_to_id(tokens)
            return self.unk_token_id if known is None else known
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def _special_ids(self, config: dict[str, Any]) -> set[int]:
        more = config.get("additional_special_tokens")
        texts = {*self._named.values(), *(_text_of(token) for token in (more if isinstance(more, list) else ()))}
        added = self._tokens.get_added_tokens_decoder()
        return {number for number, token in added.items() if token.special or token.content in texts}


def _config(files: Path) -> dict[str, Any]:
    path = files / "tokenizer_config.json"
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: is not a JSON object")
    return config


def _text_of(token: Any) -> str:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _template(files: Path, config: dict[str, Any]) -> str:
    """Return the chat template of a folder, or the one named `default` if there are several."""
    path = files / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    given = config.get("chat_template")
    if isinstance(given, list):
        given = next((item["template"] for item in given if item.get("name") == "default"), None)
    if not isinstance(given, str):
        raise ValueError(f"{files}: has no chat template: pass chat_template, or add chat_template.jinja")
    return given


def _environment() -> Any:
    """Return Jinja's sandbox with the settings, filters and functions that transformers gives to a template."""
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Renders the body of {% generation %}, which marks the text of a reply."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, **options: Any) -> str:
        return json.dumps(value, **({"ensure_ascii": False} | options))

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made
