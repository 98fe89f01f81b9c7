"""The compare command: prints how the scores of two runs over the same dataset differ. Formats scores for people."""

from collections.abc import Iterator, Sequence

from osmosis_grpc.cli.screen import Line, Screen, wrapped
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.evaluate import RunError, RunFolder
from osmosis_grpc.records.evaluate.comparison import Comparison, RowPair, compare, differences
from osmosis_grpc.records.evaluate.run_folder import SCHEMA_VERSION
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.serve.json_output import records, usage_error
from osmosis_grpc.trainer.score_statistics import Estimate, ScoreSummary, shown_k

MOST_ROWS = 10
"""At most this many rows that got better, or worse, are printed."""


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


def run_compare(first: str, second: str, *, json: bool) -> int:
    """Print the comparison, and return the exit code."""
    with records(json) as out:
        try:
            runs = RunFolder.open(first), RunFolder.open(second)
            found, different = compare(*runs), differences(*runs)
        except (RunError, OSError) as error:
            usage_error("compare", printable(str(error)))
        names = [str(run.path) for run in runs]
        out.write("runs", schema_version=SCHEMA_VERSION, a=names[0], b=names[1], different=different)
        screen = Screen.of(out)
        for letter, name in zip("AB", names, strict=True):
            screen.say(f"{letter}: {name}")
        for line in wrapped(f"other inputs: {'; '.join(different) or 'none'}", screen.width):
            screen.say(line)
        for each in found:
            out.write("comparison", **each.record())
            for text in _lines(each, screen.width):
                screen.say(text)
        screen.say("Intervals: 95 %, t over rows; that of a difference is paired by row.", "note")
    return 0


def _lines(found: Comparison, width: int) -> Iterator[Line]:
    yield Line()
    means = f"A {found.before.mean:.3g}, B {found.after.mean:.3g}"
    difference = estimate_text(found.difference)
    text = f"{found.name}: {means}, B - A {difference} over {counted(len(found.rows), 'row')}"
    for piece in wrapped(text, width):
        yield Line.of(piece, "head")
    for k in shown_k(found.passes):
        pair = found.passes[k]
        means = f"A {pair.before.mean:.3g}, B {pair.after.mean:.3g}, B - A {estimate_text(pair.difference)}"
        for piece in wrapped(f"pass@{k}: {means} over {counted(pair.rows, 'row')}", width - 2):
            yield Line.of(piece, indent=2)
    same = len(found.rows) - len(found.better) - len(found.worse)
    missing = [f"{len(without)} without a score in {run}" for without, run in _without(found) if without]
    counts = [f"{len(found.better)} better", f"{len(found.worse)} worse", f"{same} the same", *missing]
    for piece in wrapped(", ".join(counts), width - 2):
        yield Line.of(piece, indent=2)
    for without, run in _without(found):
        if without:
            more = f" and {len(without) - MOST_ROWS} more" if len(without) > MOST_ROWS else ""
            names = f"{'row' if len(without) == 1 else 'rows'} {', '.join(map(str, without[:MOST_ROWS]))}{more}"
            for piece in wrapped(f"no score in {run}: {names}; not in the means above", width - 2):
                yield Line.of(piece, "bad", 2)
    for count, run in zip(found.unscored, "AB", strict=True):
        if count:
            rollouts = f"{counted(count, 'rollout')} of {run} in these rows {'has' if count == 1 else 'have'} no score"
            for piece in wrapped(f"{rollouts}; not in the means above", width - 2):
                yield Line.of(piece, "bad", 2)
    for title, kind, rows in (("better", "good", found.better), ("worse", "bad", found.worse)):
        yield from _rows(title, kind, rows)


def _without(found: Comparison) -> tuple[tuple[Sequence[int], str], ...]:
    return (found.only[1], "A"), (found.only[0], "B")


def _rows(title: str, kind: str, rows: Sequence[RowPair]) -> Iterator[Line]:
    for pair in rows[:MOST_ROWS]:
        yield Line.of(f"{title}: row {pair.row}  {pair.before:.3g} to {pair.after:.3g}", kind, 2)
    if len(rows) > MOST_ROWS:
        yield Line.of(f"and {len(rows) - MOST_ROWS} more; --json has all", "note", 2)
