"""The compare command: prints how the scores of two runs over the same dataset differ. Also formats scores as text."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from osmosis_grpc.cli.place import Place
from osmosis_grpc.cli.screen import Line, Screen, columns, program, wrapped
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.evaluate import RowResult, RunError, RunFolder
from osmosis_grpc.records.evaluate.comparison import Comparison, Ended, compare, differences
from osmosis_grpc.records.evaluate.run_folder import SCHEMA_VERSION
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.serve.json_output import records, usage_error
from osmosis_grpc.trainer.score_statistics import Estimate, ScoreSummary, shown_k

MOST_ROWS = 10
"""At most this many better rows, and as many worse rows, are printed."""
MOST_LABEL = 20
"""The most characters of a label."""


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
    """Compare two runs, print the differences, and return the exit code."""
    with records(json) as out:
        try:
            runs = RunFolder.open(first), RunFolder.open(second)
            found, different, ended = compare(*runs), differences(*runs), Ended.of(*runs)
        except (RunError, OSError) as error:
            usage_error("compare", printable(str(error)))
        names = [str(run.path) for run in runs]
        different = _without_replay(different, runs)
        out.write("runs", schema_version=SCHEMA_VERSION, a=names[0], b=names[1], different=different, **ended.record())
        screen = Screen.of(out)
        results = [_first_runs(run) for run in runs]
        for letter, name in zip("AB", names, strict=True):
            screen.say(f"{letter}: {name}")
        for line in wrapped(f"other inputs: {'; '.join(different) or 'none'}", screen.width):
            screen.say(line)
        for text in _ends(ended, screen.width):
            screen.say(text)
        for each in found:
            out.write("comparison", **each.record())
            for text in (*_lines(each, screen.width), *_table(each, results, screen)):
                screen.say(text)
        changed = [pair for each in found for pair in (*each.worse, *each.better)]
        if changed:
            screen.say(f"To see row {changed[0].row} in A and in B:")
            for run, known in zip(runs, results, strict=True):
                screen.say(f"{program()} show {known[changed[0].row].name} {Place(run.path).words}")
        screen.say("Intervals: 95 %, t over rows; that of a difference is paired by row.", "note")
    return 0


def _without_replay(different: list[str], runs: Sequence[RunFolder]) -> list[str]:
    """Say that one run has the replies of the other one, in place of how their models differ."""
    for letters, (run, other) in (("BA", runs[::-1]), ("AB", runs)):
        if (replay := run.about.get("replay")) and Path(str(replay)).resolve() == other.path.resolve():
            return [*(text for text in different if not text.startswith("model ")), "{} replays {}".format(*letters)]
    return different


def _ends(ended: Ended, width: int) -> Iterator[Line]:
    """Yield what completed, and the rows that fail in one run only."""
    counts = (f"{run} {done} of {total}" for run, done, total in zip("AB", ended.completed, ended.total, strict=True))
    for piece in wrapped(f"completed: {', '.join(counts)}", width):
        yield Line.of(piece)
    for rows, text, kind in (
        (ended.mended, "failed in A and not in B", "good"),
        (ended.broken, "failed in B and not in A", "bad"),
    ):
        if rows:
            for piece in wrapped(f"{text}: {_names(rows)}", width - 2):
                yield Line.of(piece, kind, 2)


def _names(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - MOST_ROWS} more" if len(rows) > MOST_ROWS else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {', '.join(map(str, rows[:MOST_ROWS]))}{more}"


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
            for piece in wrapped(f"no score in {run}: {_names(without)}; not in the means above", width - 2):
                yield Line.of(piece, "bad", 2)
    for count, run in zip(found.unscored, "AB", strict=True):
        if count:
            rollouts = f"{counted(count, 'rollout')} of {run} in these rows {'has' if count == 1 else 'have'} no score"
            for piece in wrapped(f"{rollouts}; not in the means above", width - 2):
                yield Line.of(piece, "bad", 2)


def _without(found: Comparison) -> tuple[tuple[Sequence[int], str], ...]:
    return (found.only[1], "A"), (found.only[0], "B")


def _first_runs(run: RunFolder) -> dict[int, RowResult]:
    """Return the result of each row's first run, by row."""
    return {row: result for (row, _), result in sorted(run.newest_results().items(), reverse=True)}


def _table(found: Comparison, results: Sequence[Mapping[int, RowResult]], screen: Screen) -> Iterator[Line]:
    """Yield the rows that changed, with A and B side by side: first the worse rows, then the better ones."""
    if not found.worse and not found.better:
        return
    heads = ("row", "A", "B", "B - A", "label", "prompt")
    rows, kinds = [heads], ["note"]
    for pairs, kind in ((found.worse, "bad"), (found.better, "good")):
        for pair in pairs[:MOST_ROWS]:
            asked = results[1].get(pair.row) or results[0][pair.row]
            label = (asked.label or "").partition("\n")[0][:MOST_LABEL]
            means = f"{pair.before:.3g}", f"{pair.after:.3g}", f"{pair.difference:+.3g}"
            rows.append((str(pair.row), *means, printable(label), printable(asked.prompt)))
            kinds.append(kind)
    widths = [max(map(columns, column)) for column in zip(*rows, strict=True)]
    labelled = any(row[4] for row in rows[1:])
    for row, kind in zip(rows, kinds, strict=True):
        cells = [" " * (width - columns(text)) + text for text, width in zip(row[:4], widths, strict=False)]
        cells += [row[4] + " " * (widths[4] - columns(row[4]))] if labelled else []
        yield Line.of(screen.fitted(f"  {'  '.join([*cells, row[5]]).rstrip()}"), kind)
    left = sum(max(0, len(pairs) - MOST_ROWS) for pairs in (found.worse, found.better))
    if left:
        yield Line.of(f"and {left} more; --json has all", "note", 2)
