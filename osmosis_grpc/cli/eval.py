"""The eval command: runs each row several times, scores the rollouts with eval functions, and computes pass@k.

A run that was stopped continues with --resume, or with the same command if that has --save-dir. It is refused if
something else would run now.
"""

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from osmosis_grpc.agent.loader import LoadError
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.cli.dataset_run import DatasetRun, Prepared, Rows, about, inputs, parsed, prepare, stored
from osmosis_grpc.cli.program import program
from osmosis_grpc.cli.run_display import Display
from osmosis_grpc.cli.run_options import RunOptions
from osmosis_grpc.cli.score_text import score_lines
from osmosis_grpc.cli.screen import Screen
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.evaluate import DatasetError, ModelError, Run, RunError, RunFolder
from osmosis_grpc.records.evaluate.dataset import Row
from osmosis_grpc.records.evaluate.errors import EvalFunctionError
from osmosis_grpc.records.evaluate.eval_functions import OWN_REWARD, EvalFunction, Scorer, load_eval_functions
from osmosis_grpc.records.evaluate.inputs import Inputs, changes, function_inputs
from osmosis_grpc.records.evaluate.results import RowResult
from osmosis_grpc.records.evaluate.row_choice import RowChoice
from osmosis_grpc.records.evaluate.run_folder import SCHEMA_VERSION
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.serve.json_output import Records, records, say_error
from osmosis_grpc.serve.startup import usage_error
from osmosis_grpc.trainer.score_stats import Scores, ScoreSummary

COMMAND = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """The options of this command only."""

    eval_fn: tuple[str, ...]
    n: int
    pass_threshold: float
    rows: str | None
    resume: str | None
    fresh: bool
    retry_failed: bool
    json: bool


def run_eval(run: RunOptions, options: EvalOptions, given: frozenset[str]) -> int:
    """Run what has no result yet, print the scores, and return the exit code: 0, 1, 2 or 130.

    `given` has the names of the options that are on the command line. The others of a resumed run are those of then.
    """
    with records(options.json, drops_text=True) as out:
        try:
            old = _earlier(run, options)
            if options.resume and old is not None:
                run, options = _with_stored(run, options, old, given)
            evaluation = _Preparation(run, options, given)
            results = evaluation.results(old)
            prepared, total = evaluation.prepared, evaluation.prepared.total * options.n
            pending = evaluation.pending(results)
            if pending:
                prepared.probe()
            folder = evaluation.opened(old)
        except (DatasetError, ModelError, RunError, LoadError, EvalFunctionError, OSError) as error:
            usage_error(COMMAND, printable(str(error)))
        if results:
            done = counted(len(results), "rollout")
            retried = f", and {pending} of {total} run now" if pending else ", and none is left to run"
            say_error(printable(f"{folder.path} has the results of {done}{retried}"))
        return _Eval(evaluation, options, folder, out, results).run(json=options.json, plain=False)


def _earlier(run: RunOptions, options: EvalOptions) -> RunFolder | None:
    """Return the run that the options name, if it exists."""
    if options.resume and run.save_dir:
        usage_error(COMMAND, "--resume and --save-dir name a run each; give one of them")
    if options.fresh and options.retry_failed:
        usage_error(COMMAND, "--fresh begins again, and --retry-failed keeps what is good; give one of them")
    found = None
    if options.resume:
        found = RunFolder.open(options.resume, command=COMMAND)
    elif run.save_dir and RunFolder.exists(Path(run.save_dir)):
        found = RunFolder.open(run.save_dir)
    if found is not None and found.about.get("command") != COMMAND:
        raise RunError(f"{found.path} has a run of the command {found.about.get('command')}; name another folder")
    if found is None and options.retry_failed:
        usage_error(COMMAND, "--retry-failed needs an earlier run; name it with --resume or --save-dir")
    return found


def _with_stored(
    run: RunOptions, options: EvalOptions, old: RunFolder, given: frozenset[str]
) -> tuple[RunOptions, EvalOptions]:
    """Return the options of an earlier run. Those on the command line stay."""
    known = old.about.get("options", {})
    left = {name: value for name, value in known.items() if name not in given}
    of_run = {name: left[name] for name in stored(run) if name in left}
    own = {name: left[name] for name in ("eval_fn", "n", "pass_threshold") if name in left}
    if "eval_fn" in own:
        own["eval_fn"] = tuple(own["eval_fn"])
    if "rows" in left and not given & {"limit", "offset"}:
        own["rows"] = left["rows"]
    if options.rows is not None:
        of_run |= {"limit": run.limit, "offset": run.offset}
    return replace(run, **of_run), replace(options, **own)


class _Preparation:
    """Checks the options, and compares the inputs with those of an earlier run."""

    def __init__(self, run: RunOptions, options: EvalOptions, given: frozenset[str]) -> None:
        self.run = run
        self.options = options
        if not math.isfinite(options.pass_threshold):
            usage_error(COMMAND, f"--pass-threshold {options.pass_threshold} is not a finite number")
        chosen = parsed(COMMAND, "--rows", RowChoice, options.rows) if options.rows else None
        if chosen is not None and (run.offset or run.limit is not None):
            usage_error(COMMAND, "--rows chooses rows by number; leave out --offset and --limit")
        self.functions = load_eval_functions(options.eval_fn)
        rows = Rows(run.offset, run.limit) if chosen is None else Rows(0, chosen.last + 1, chosen)
        prepared = prepare(COMMAND, run, rows, given, runs=options.n)
        agent = prepared.agent_loop
        if not self.functions and not (isinstance(agent, WorkflowRunnable) and agent.grader is not None):
            why = "--eval-fn names a function that scores: --eval-fn MODULE:FUNCTION; it is repeatable"
            usage_error(COMMAND, f"{why}. Without it, the agent has to be a workflow with a grader")
        missing = None if chosen is None else chosen.after(prepared.total)
        if missing is not None:
            usage_error(COMMAND, printable(f"--rows {options.rows}: {prepared.dataset.path} has no row {missing}"))
        self.prepared = replace(prepared, config=replace(prepared.config, evaluation=True))
        self.inputs = _inputs(run, options, self.prepared, self.functions)

    def results(self, old: RunFolder | None) -> dict[tuple[int, int], RowResult]:
        """Return the results that count. Raises RunError if the inputs of the earlier run were others."""
        if old is None or self.options.fresh:
            return {}
        different = changes(old.about.get("inputs", {}), self.inputs)
        if different:
            new = "; rescore scores its rollouts with other eval functions" if _only_functions(different) else ""
            raise RunError(
                f"{old.path} is a run with other inputs: {'; '.join(different)}; "
                f"name another folder, or begin again with --fresh, which moves the old results away{new}"
            )
        return old.newest_results()

    def rows(self, results: dict[tuple[int, int], RowResult]) -> Iterator[Row]:
        """Yield each run of each row that has to run, or whose score is missing. Raises DatasetError."""
        chosen, n = self.prepared.rows, self.options.n
        for row in self.prepared.dataset.rows(chosen.offset, chosen.limit, chosen.chosen):
            for index in range(n):
                known = results.get((row.number, index))
                if known is None:
                    yield replace(row, run_index=index, runs=n)
                elif self.options.retry_failed and not known.good:
                    attempt = known.attempt + (not known.completed)  # a rollout that completed is only scored again
                    yield replace(row, run_index=index, runs=n, attempt=attempt)

    def pending(self, results: dict[tuple[int, int], RowResult]) -> int:
        """Return how many runs have to run."""
        return sum(1 for _ in self.rows(results)) if results else self.prepared.total * self.options.n

    def opened(self, old: RunFolder | None) -> RunFolder:
        """Return the folder of the run, for this process only."""
        options = {**stored(self.run), "eval_fn": list(self.options.eval_fn), "n": self.options.n}
        options |= {"pass_threshold": self.options.pass_threshold, "rows": self.options.rows}
        facts = {
            **about(COMMAND, self.run, self.prepared),
            "eval_fns": list(self.options.eval_fn),
            "n": self.options.n,
            "pass_threshold": self.options.pass_threshold,
            "inputs": self.inputs,
            "options": options,
        }
        path = Path(self.run.save_dir) if self.run.save_dir else None
        if old is None:
            return RunFolder.create(path, facts)
        if self.options.fresh:
            path = old.path
            say_error(printable(f"the old results are in {old.archive()}"))
            return RunFolder.create(path, facts)
        old.resume(facts)
        return old


def _inputs(run: RunOptions, options: EvalOptions, prepared: Prepared, functions: list[EvalFunction]) -> Inputs:
    """Return what the results depend on."""
    own = {"eval functions": function_inputs(functions), "runs": {"n": options.n}}
    return {**inputs(run, prepared), **own}


def _only_functions(different: list[str]) -> bool:
    return all(text.startswith("eval functions ") for text in different)


class _Eval(DatasetRun):
    """One run of the rows that have no result yet. The summary is about all results in the folder."""

    unit = "rollout"

    def __init__(
        self,
        evaluation: _Preparation,
        options: EvalOptions,
        folder: RunFolder,
        out: Records,
        results: dict[tuple[int, int], RowResult],
    ) -> None:
        super().__init__(evaluation.run, evaluation.prepared, folder, out)
        self._evaluation = evaluation
        self._again = options.retry_failed
        self._n = options.n
        self._threshold = options.pass_threshold
        self._known = results
        again = {(row.number, row.run_index) for row in evaluation.rows(results)} if results else set()
        kept = [result for key, result in results.items() if key not in again]
        self.total = len(kept) + (len(again) if results else self.prepared.total * self._n)
        for result in kept:
            self.count(result)

    def say_start(self) -> None:
        """Print the folder, so that a run that is killed can continue."""
        if not self.options.quiet and not self._known:
            folder = shlex.quote(str(self.folder.path))
            self.out.say(f"If it is stopped, continue it: --resume {folder}")

    @property
    def continued(self) -> str:
        """See DatasetRun. The key is in no file, so the user gives it again."""
        more = " --retry-failed" * self._again + " --api-key KEY" * bool(self.options.api_key)
        return f"{program()} eval --resume {shlex.quote(str(self.folder.path))}{more}"

    async def rows(self, display: Display) -> None:
        """See DatasetRun."""
        prepared = self.prepared
        scorer = Scorer(self._evaluation.functions, prepared.config.agent_timeout)
        run = Run(prepared.agent_loop, prepared.policy, self.folder, prepared.config, scorer)
        rows = self._evaluation.rows(self._known)
        await run.run(rows, lambda result, outcome: self.ended(display, result, outcome))

    def say_summary(self, seconds: float) -> None:
        """See DatasetRun."""
        found, summary = self._summaries, self.summary
        record = {
            **summary.record(),
            **self._counts(),
            "eval_fns": {name: each.record() for name, each in found.items()},
        }
        self.out.write("summary", run=str(self.folder.path), seconds=round(seconds, 3), show=self.show, **record)
        screen = Screen.of(self.out)
        for name, each in found.items():
            for line in score_lines(name, each, self.total, screen.width):
                screen.say(line)
        scored = summary.passed - summary.unscored
        self.say_end(seconds, f"{scored} of {counted(self.total, self.unit)} scored")

    def output(self) -> dict[str, Any]:
        """See DatasetRun. The fields of the Osmosis SDK have its names."""
        rows: dict[int, list[dict[str, Any]]] = {}
        for _, result in sorted(self._results.items()):
            tokens = result.token_usage.get("total_tokens", 0)
            rows.setdefault(result.row_index, []).append({**result.record(), "tokens": tokens})
        found = {name: each.record() for name, each in self._summaries.items()}
        return {
            "schema_version": SCHEMA_VERSION,
            "config": {
                "model": self.folder.about["model"],
                "n_runs": self._n,
                "pass_threshold": self._threshold,
                "eval_fns": list(found),
            },
            "summary": {**self.summary.record(), **self._counts(), "eval_fns": found},
            "run": self.facts(),
            "rows": [{"row_index": row, "runs": runs} for row, runs in rows.items()],
        }

    @cached_property
    def _results(self) -> dict[tuple[int, int], RowResult]:
        """All results at the end of the run."""
        return self.folder.newest_results()

    def _counts(self) -> dict[str, int]:
        rows = {row for row, _ in self._results}
        return {"total_rows": len(rows), "total_runs": self.summary.total, "unscored": self.summary.unscored}

    @cached_property
    def _summaries(self) -> dict[str, ScoreSummary]:
        """The statistics of each eval function, over all results in the folder."""
        names = [function.name for function in self._evaluation.functions] or [OWN_REWARD]
        scores = {name: Scores(self._threshold) for name in names}
        for result in self._results.values():
            for name, each in scores.items():
                each.add(result.row_index, (result.scores or {}).get(name), completed=result.completed)
        return {name: each.summary() for name, each in scores.items()}
