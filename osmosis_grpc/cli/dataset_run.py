"""A run of an agent over a dataset, for the commands test and eval: its progress, its end and its results."""

import json as json_module
import shlex
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_grpc.cli.command_options import Choices, RunOptions
from osmosis_grpc.cli.daemon_thread import STOPPING, run_in_daemon_thread
from osmosis_grpc.cli.dataset_options import Prepared
from osmosis_grpc.cli.interactive import Session, SteppedPolicy
from osmosis_grpc.cli.noted_rows import Noted
from osmosis_grpc.cli.place import Place
from osmosis_grpc.cli.run_display import Display, failed_lines, figures, row_lines, shown
from osmosis_grpc.cli.screen import Screen, program, say_wrapped
from osmosis_grpc.cli.transcript import transcript
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.protocol.types import RolloutOutcome
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.evaluate import DatasetError, RowResult, Run, RunError, RunFolder, Summary
from osmosis_grpc.records.evaluate.eval_functions import OWN_REWARD, Scorer
from osmosis_grpc.records.evaluate.run_folder import SCHEMA_VERSION, short_name
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.serve.json_output import Records, say_error, usage_error
from osmosis_grpc.storage import JournalError

if TYPE_CHECKING:
    from osmosis_grpc.trainer.score_statistics import ScoreSummary

MOST_FAILURES = 10
"""With --quiet, the summary names at most this many rows that failed."""
Results = dict[tuple[int, int], RowResult]
"""The results by row and run of the row."""


class DatasetRun:
    """Runs the rows that have no result yet. The summary covers all results in the folder."""

    def __init__(
        self,
        options: RunOptions,
        choices: Choices,
        prepared: Prepared,
        folder: RunFolder,
        out: Records,
        results: Results,
    ) -> None:
        """`results` are the results of an earlier run in the folder, which this run continues."""
        self._options = options
        self._choices = choices
        self._prepared = prepared
        self._folder = folder
        self._out = out
        self._known = results
        self._scores = choices.command == "eval"
        self._unit = "rollout" if self._scores else "row"
        self._summary = Summary()
        self._failed: list[RowResult] = []
        """The first failed results, at most MOST_FAILURES."""
        self._noted = Noted(rewards=not prepared.functions)
        self._unfinished = ""
        """Why the run ended before its last row, in one word."""
        again = {(row.number, row.run_index) for row in prepared.pending(choices, results)} if results else set()
        kept = [result for key, result in results.items() if key not in again]
        self._total = len(kept) + (len(again) if results else prepared.total * choices.n)
        """The number of results when the run has ended."""
        for result in kept:
            self._count(result)

    def run(self) -> int:
        """Run the rows, print the end, and return the exit code: 0, 1, 2 or 130."""
        options, began = self._options, time.monotonic()
        self._out.write("started", run=str(self._folder.path), **self._folder.about)
        if self._scores and not options.quiet and not self._known:
            self._out.say(f"If it is stopped, continue it: {program()} eval --resume {self._name}")
        interrupted, problem = False, ""
        stepped = self._choices.interactive
        plain = options.plain or stepped
        show: dict[str, Any] = {"json": self._choices.json, "debug": options.debug, "unit": self._unit}
        with shown(self._out, self._total, plain=plain, quiet=options.quiet, **show) as display:
            try:
                run_in_daemon_thread(lambda: self._rows(display), stopping=STOPPING)
            except KeyboardInterrupt:
                interrupted = True
            except (DatasetError, JournalError, CallError, RunError, OSError) as error:  # a file has changed or failed
                problem = printable(str(error))
        try:
            self._folder.end("interrupted" if interrupted or problem else "finished", self._summary.record())
        except OSError as error:
            problem = problem or printable(str(error))
        self._unfinished = "interrupted" if interrupted else "stopped" if problem else ""
        self._say_summary(time.monotonic() - began)
        if options.output and not self._write_output(options.output):
            return 2
        if problem:
            usage_error(self._choices.command, problem)
        if interrupted:
            return 130
        return int(not stepped and bool(self._summary.failed or self._summary.unscored))

    async def _rows(self, display: Display) -> None:
        """Run the rows; with -i, only the rows that the user chooses."""
        prepared, choices = self._prepared, self._choices
        scorer = Scorer(prepared.functions, prepared.config.agent_timeout) if self._scores else None
        policy, rows = prepared.policy, prepared.pending(choices, self._known)
        session = Session(prepared.dataset, choices.row or 0, prepared.total) if choices.interactive else None
        if session is not None:
            policy, rows = SteppedPolicy(policy, session), session.rows()
        run = Run(prepared.agent_loop, policy, self._folder, prepared.config, scorer)
        if session is not None:
            session.leave = run.cancel
        async with prepared.serving():
            await run.run(rows, lambda result, outcome: self._ended(display, result, outcome))

    def _count(self, result: RowResult) -> None:
        self._summary.add(result)
        self._noted.add(result)
        if not result.good and len(self._failed) < MOST_FAILURES:
            self._failed.append(result)

    def _ended(self, display: Display, result: RowResult, outcome: RolloutOutcome | None) -> None:
        self._count(result)
        self._out.write("row", **result.record())
        lines = row_lines(result, self._options.dataset or "")
        if self._options.debug and outcome is not None:
            lines += (f"  {line}" for line in transcript(outcome, ()))
        display.row("\n".join(lines), result, self._summary)

    @property
    def _quoted(self) -> str:
        return shlex.quote(str(self._folder.path))

    @property
    def _name(self) -> str:
        return shlex.quote(short_name(self._folder.path))

    @cached_property
    def _results(self) -> Results:
        return self._folder.newest_results()

    @cached_property
    def _summaries(self) -> "dict[str, ScoreSummary]":
        """The statistics of each eval function, over all results in the folder."""
        from osmosis_grpc.trainer.score_statistics import Scores  # imports gRPC, which test does not need

        names = [function.name for function in self._prepared.functions] or [OWN_REWARD]
        scores = {name: Scores(self._choices.pass_threshold) for name in names}
        for result in self._results.values():
            for name, each in scores.items():
                each.add(result.row_index, (result.scores or {}).get(name), completed=result.completed)
        return {name: each.summary() for name, each in scores.items()}

    def _record(self) -> dict[str, Any]:
        record = self._summary.record()
        if self._scores:
            rows = {row for row, _ in self._results}
            record |= {"total_rows": len(rows), "total_runs": self._summary.total, "unscored": self._summary.unscored}
            record["eval_fns"] = {name: each.record() for name, each in self._summaries.items()}
        return record

    def _say_summary(self, seconds: float) -> None:
        """Write the record and the lines of the summary. The last lines show the commands to use next."""
        summary, where = self._summary, Place(self._folder.path).words
        failed = next((result.name for result in self._failed if result.token_usage), None)
        show = f"{program()} show {failed} {where}" if failed else None
        self._out.write("summary", run=str(self._folder.path), seconds=round(seconds, 3), show=show, **self._record())
        done, state = summary.passed, "COMPLETED"
        if self._scores:
            from osmosis_grpc.cli.compare import score_lines  # imports gRPC, too

            done, state = summary.passed - summary.unscored, "scored"
            screen = Screen.of(self._out)
            for name, each in self._summaries.items():
                for line in score_lines(name, each, self._total, screen.width):
                    screen.say(line)
        if self._options.quiet:
            for result in self._failed:
                for text in failed_lines(result, self._options.dataset or ""):
                    say_wrapped(self._out, text)
        sums = [f"{done} of {counted(self._total, self._unit)} {state}", *figures(summary, scores=False)]
        sums += [counted(summary.num_llm_calls, "chat"), f"{seconds:.1f} s"]
        say_wrapped(self._out, f"{self._unfinished}: " * bool(self._unfinished) + ", ".join(sums))
        for text, name in self._noted.lines():
            say_wrapped(self._out, f"{text}: {program()} show {name} {where}" if name else text)
        continued = self._scores and bool(self._unfinished)
        if not (summary.passed or failed or continued):
            return
        self._out.say(f"The run is in {self._quoted}.")
        self._out.say(f"In a browser: {program()} view {where}{f' --rollout {failed}' * bool(failed)}")
        if continued:  # no file has the API key, so the user has to give it again
            more = " --retry-failed" * self._choices.retry_failed + " --api-key KEY" * bool(self._options.api_key)
            self._out.say(f"To continue it: {program()} eval --resume {self._name}{more}")
            return
        if self._prepared.model is not None:
            self._out.say(f"Again without a model: {program()} {self._choices.command} --replay {self._name}")
        if before := self._folder.before():
            self._out.say(f"Beside the run before: {program()} compare {short_name(before)} {self._name}")

    def _write_output(self, path: str) -> bool:
        """Write the JSON of -o. Print the problem and return False if the file cannot be written."""
        try:
            text = json_module.dumps(self._output(), indent=2, ensure_ascii=False)
            Path(path).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            say_error(printable(f"{self._choices.command}: -o {path}: cannot be written: {error.strerror}"))
            return False
        return True

    def _output(self) -> dict[str, Any]:
        """Return the content of the file of -o. Fields that the Osmosis SDK also has use its names."""
        about = {name: value for name, value in self._folder.about.items() if name not in ("summary", "inputs")}
        facts = {**about, "folder": str(self._folder.path)}
        head = {"schema_version": SCHEMA_VERSION, "summary": self._record(), "run": facts}
        if not self._scores:
            return {**head, "results": sorted(self._folder.results(), key=lambda result: result["row_index"])}
        rows: dict[int, list[dict[str, Any]]] = {}
        for _, result in sorted(self._results.items()):
            tokens = result.token_usage.get("total_tokens", 0)
            rows.setdefault(result.row_index, []).append({**result.record(), "tokens": tokens})
        config = {
            "model": self._folder.about["model"],
            "n_runs": self._choices.n,
            "pass_threshold": self._choices.pass_threshold,
            "eval_fns": list(self._summaries),
        }
        rows_of_runs = [{"row_index": row, "runs": runs} for row, runs in rows.items()]
        return {**head, "config": config, "rows": rows_of_runs}
