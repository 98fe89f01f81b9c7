"""Reads tokenizer.json of a model, and returns the text of single tokens. Needs the extra `tokenizer`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from osmosis_grpc.protocol.errors import MissingExtraError

_BAD = "\N{REPLACEMENT CHARACTER}"
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""How the tokenizers of SentencePiece write a space in a token. Their decoders drop a leading one."""


def read_tokenizer(folder: str | Path, wanted_by: str) -> Any:
    """Return the tokenizers.Tokenizer of a folder, or of a file tokenizer.json.

    Raises MissingExtraError without tokenizers, OSError for a file that cannot be read, and ValueError naming the file
    that is wrong.
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
    except Exception as error:  # tokenizers raises nothing more exact
        raise ValueError(f"{path}: is not a tokenizer: {error}") from None


class TokenTexts:
    """Decodes single tokens. Raises what read_tokenizer() raises."""

    def __init__(self, folder: str | Path) -> None:
        self._tokens = read_tokenizer(folder, "a tokenizer")

    def of(self, ids: Iterable[int]) -> list[str]:
        """Return the text of each id. It is empty for an unknown id and for a part of a character."""
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
