"""Formats the statistics of scores for people."""

from collections.abc import Iterator

from osmosis_grpc.cli.screen import Line, wrapped
from osmosis_grpc.trainer.evaluate import Estimate, ScoreSummary, shown_k


def score_lines(name: str, found: ScoreSummary, total: int, width: int) -> Iterator[Line]:
    """Yield the lines about the scores of one eval function. `total` is the number of rollouts."""
    if found.mean is None:
        parts = ["no score"]
    else:
        std = [] if found.std is None else [f"std {found.std:.3g}"]
        parts = [f"mean {estimate_text(found.mean)}", *std, f"{found.scored} of {total} scored"]
    failed = [f"{found.failed} failed"] if found.failed else []
    for piece in wrapped(f"{name}: {', '.join([*parts, *failed])}", width):
        yield Line.of(piece, "head")
    passes = ", ".join(f"pass@{k} {estimate_text(found.pass_at_k[k])}" for k in shown_k(found.pass_at_k))
    if passes:
        for piece in wrapped(passes, width - 2):
            yield Line.of(piece, indent=2)


def estimate_text(found: Estimate) -> str:
    """Return a mean with its confidence interval, such as 0.667 (0.21 to 1)."""
    if found.ci95 is None:
        return f"{found.mean:.3g}"
    low, high = found.ci95
    return f"{found.mean:.3g} ({low:.3g} to {high:.3g})"
