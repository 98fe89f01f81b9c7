"""Shows the progress of a run over a dataset: a bar on a terminal, otherwise one line for each row that has ended."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from osmosis_grpc.cli.screen import pieces, say_wrapped
from osmosis_grpc.engine.agent_calls import AGENT_RAISED
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.evaluate import RowResult, Summary
from osmosis_grpc.records.evaluate.eval_functions import OWN_REWARD
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.serve.json_output import Records, say_error

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

MOST_CHARS = 300
"""A line shows at most this many characters of an error."""
MOST_PROMPT = 60
"""The line of a row shows at most this many characters of its prompt."""
MOST_LABEL = 20
"""The line of a row shows at most this many characters of its label."""


class Display(Protocol):
    """Shows rows and notes as they come."""

    def row(self, text: str, result: RowResult, summary: Summary) -> None:
        """Show the lines of a row that has ended. `summary` includes this row."""

    def note(self, text: str) -> None:
        """Show a line of the log."""


class Lines:
    """Writes the lines of every row to stdout, and notes to stderr. With `quiet`, it writes no rows."""

    def __init__(self, out: Records, *, quiet: bool) -> None:
        self._out = out
        self._quiet = quiet

    def row(self, text: str, result: RowResult, summary: Summary) -> None:
        """Write the lines of a row."""
        if not self._quiet:
            say_wrapped(self._out, text)

    def note(self, text: str) -> None:
        """Write a line to stderr."""
        say_error(text)


class Bar:
    """A progress bar of rich on stderr. Failed rows get lines above the bar; with `verbose`, all rows do."""

    def __init__(self, progress: "RichProgress", total: int, unit: str, *, verbose: bool) -> None:
        self._verbose = verbose
        self.progress = progress
        self._total = counted(total, unit)
        self._task = progress.add_task(f"0 of {self._total}", total=total)

    def row(self, text: str, result: RowResult, summary: Summary) -> None:
        """Update the bar. Write the lines of the row if it failed, or with `verbose`."""
        if self._verbose or not result.good:
            self.note(text)
        about = [f"{summary.total} of {self._total}", *figures(summary)]
        self.progress.update(self._task, completed=summary.total, description=", ".join(about))

    def note(self, text: str) -> None:
        """Write a line above the bar."""
        console = self.progress.console
        for line in pieces(text, console.width):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def shown(
    out: Records, total: int, *, quiet: bool, plain: bool, json: bool, debug: bool, unit: str
) -> Iterator[Display]:
    """Show the progress of a run, and the log, until the end of the block. `unit` is the counted noun, such as row."""
    progress = None if quiet or plain or json else _bar()
    if progress is None:
        lines = Lines(out, quiet=quiet)
        with _log_to(lines, debug=debug):
            yield lines
        return
    bar = Bar(progress, total, unit, verbose=debug)
    with progress, _log_to(bar, debug=debug):
        yield bar


def _bar() -> "RichProgress | None":
    """Return a progress bar of rich on stderr; None if stderr is not a terminal that can draw it."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(file=sys.stderr)
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
    return Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty())


class _Notes(logging.Handler):
    """Shows log records. Without `debug`, each is one line, and exceptions of agents are left to the lines of rows."""

    def __init__(self, display: Display, *, debug: bool) -> None:
        super().__init__()
        self._display = display
        self._debug = debug

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if record.msg == AGENT_RAISED and not self._debug:
                return
            text = f"{record.levelname.lower()}: {record.getMessage()}"
            if record.exc_info and record.exc_info[1] is not None:
                text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
            self._display.note(printable(text if self._debug else text.partition("\n")[0], keep="\n\t"))
        except Exception:
            self.handleError(record)


@contextmanager
def _log_to(display: Display, *, debug: bool) -> Iterator[None]:
    """Show the warnings of the log until the end of the block. With `debug`, show all log records of this project."""
    root, ours, notes = logging.getLogger(), logging.getLogger("osmosis_grpc"), _Notes(display, debug=debug)
    before = ours.level
    root.addHandler(notes)
    if debug:
        ours.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        ours.setLevel(before)
        root.removeHandler(notes)


def row_lines(result: RowResult, dataset: str) -> list[str]:
    """Return the line of a row that has ended, and one more line for each failed score."""
    if not result.completed:
        return failed_lines(result, dataset)
    usage = result.token_usage
    rewards = [] if result.reward is None else [f"reward {result.reward:g}"]
    rewards += [f"{printable(name)} {score:g}" for name, score in (result.scores or {}).items() if name != OWN_REWARD]
    chats, tokens = usage.get("num_llm_calls", 0), usage.get("total_tokens", 0)
    parts = [f"row {result.name}", result.status, *(rewards or ["no reward"])]
    parts += [counted(chats, "chat"), f"{tokens:,} tokens", *price_text(result.cost)]
    parts += [f"cut by {printable(result.cut)}"] * bool(result.cut)
    parts += [f"{result.duration_ms / 1000:.2f} s", *_asked(result)]
    first = "  ".join(parts)
    return [first, *failed_lines(result, dataset)]


def _asked(result: RowResult) -> list[str]:
    """Return the label and the prompt of a row, if it has them."""
    label = [] if result.label is None else [f"label {printable(_short(result.label, MOST_LABEL))}"]
    return [*label, printable(_short(result.prompt, MOST_PROMPT))] if result.prompt else label


def _short(text: str, most: int) -> str:
    text = text.partition("\n")[0]
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def failed_lines(result: RowResult, dataset: str) -> list[str]:
    """Return one line if the rollout failed, or else one line for each failed score."""
    return [f"row {result.name} ({printable(dataset)}:{result.line})  {text}" for text in _failures(result)]


def _failures(result: RowResult) -> Iterator[str]:
    """Yield the reason why the rollout failed, or the reason of each failed score."""
    if not result.completed:
        where = f" (at {result.where})" if result.where else ""
        text = f"{_short(result.error or '', MOST_CHARS)}{where}"
        yield printable(f"{result.status}  {result.reason}: {text}" if result.reason else f"{result.status}  {text}")
    for name, error in (result.score_errors or {}).items():
        yield printable(f"{name} has no score: {_short(error, MOST_CHARS)}")


def figures(summary: Summary, *, scores: bool = True) -> list[str]:
    """Return the figures of a run for the bar or the summary. With `scores`, include the mean scores."""
    mean = summary.mean_reward
    return [
        *([f"{summary.failed} failed"] if summary.failed else []),
        *([f"{summary.unscored} without a score"] if summary.unscored else []),
        *([] if mean is None else [f"mean reward {mean:.3g}{_of(summary)}"]),
        *(
            f"mean {printable(name)} {total / count:.3g}"
            for name, (count, total) in summary.scores.items()
            if scores and name != OWN_REWARD
        ),
        f"{summary.prompt_tokens:,} + {summary.completion_tokens:,} tokens",
        *price_text(summary.cost),
    ]


def _of(summary: Summary) -> str:
    """Return which rollouts a mean reward covers, or "" if it covers all."""
    if summary.rewarded == summary.total:
        return ""
    has = "has" if summary.rewarded == 1 else "have"
    which = "completed" if summary.rewarded == summary.passed else f"{has} a reward"
    return f" of the {summary.rewarded} that {which}"


def price_text(cost: Any) -> list[str]:
    """Return a list with the price in dollars; an empty list if it is unknown."""
    return [] if cost is None else [f"${cost:.4f}"]
