"""Lists the sentences of the proto files that no conformance case shows: `python scripts/conformance_coverage.py`.

A sentence counts if it has "must", "at most", "exactly", "never" or the name of a gRPC status. A case shows a sentence
if its `shows` quotes words of it, under the name of the declaration. `conformance/not_shown.yaml` has the other
sentences, each with the reason. `make lint` runs this script: it fails for a sentence that neither has, for a quote
that is in no comment, and for a reason that is no longer needed.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.protocol.wire.proto_comments import comments  # noqa: E402

STATUSES = (
    "INVALID_ARGUMENT NOT_FOUND ALREADY_EXISTS ABORTED FAILED_PRECONDITION OUT_OF_RANGE RESOURCE_EXHAUSTED UNAVAILABLE"
    " DEADLINE_EXCEEDED UNAUTHENTICATED PERMISSION_DENIED UNIMPLEMENTED INTERNAL DATA_LOSS"
).replace(" ", "|")
_BINDING = re.compile(r"\b([Mm]ust|[Aa]t most|[Ee]xactly|[Nn]ever|" + STATUSES + r")\b")
_SENTENCE = re.compile(r"(?<=[.:])\s+(?=[A-Z`0-9])")
CASES = ROOT / "conformance"


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a comment that bind an implementation."""
    for sentence in _SENTENCE.split(text):
        if _BINDING.search(sentence):
            yield sentence


def quotes(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (declaration, words, case) of each quote in the cases."""
    for path in sorted(folder.glob("*/*.yaml")):
        for case in yaml.safe_load(path.read_text(encoding="utf-8")):
            if isinstance(case, dict):
                for name, words in case.get("shows", {}).items():
                    yield from ((name, " ".join(each.split()), case["case"]) for each in words)


def problems(
    found: Mapping[str, str], quoted: list[tuple[str, str, str]], reasons: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yield a line for each sentence without a case, and for each quote and each reason that is wrong."""
    for name, words, case in quoted:
        if words not in found.get(name, ""):
            yield f"{case}: the comment of {name} does not say: {words}"
    for name, listed in reasons.items():
        for words, reason in listed.items():
            if words not in found.get(name, "") or not reason:
                yield f"not_shown.yaml: the comment of {name} does not say: {words}"
    for name, text in found.items():
        for sentence in sentences(text):
            shown = [words for other, words, _ in quoted if other == name and _overlaps(words, sentence)]
            explained = [words for words in reasons.get(name, {}) if words in sentence]
            if not shown and not explained:
                yield f"{name}: no case shows: {sentence}"
            elif shown and explained:
                yield f"not_shown.yaml: a case shows: {name}: {sentence}"


def _overlaps(words: str, sentence: str) -> bool:
    return words in sentence or sentence in words


def main() -> int:
    """Print every problem. Returns how many there are, at most 1."""
    lines = list(
        problems(
            comments(), list(quotes(CASES)), yaml.safe_load((CASES / "not_shown.yaml").read_text(encoding="utf-8"))
        )
    )
    for line in lines:
        print(line)
    if "--count" in sys.argv:
        binding = sum(len(list(sentences(text))) for text in comments().values())
        print(f"{binding} sentences bind; {len(list(quotes(CASES)))} quotes")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
