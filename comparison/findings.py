"""What happened in the cells that are not exact: a sentence for each cause, found in the engine's log and the rows."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Why cases of a system have another verdict than exact. `models` is empty if both models show it."""

    cases: Sequence[str]
    says: str
    models: Sequence[str] = ()


STOP_STRING = (
    "The agent's text is decoded from the sampled ids, so it holds the stop string that OpenAI's API leaves out. The "
    "rows have what was sampled."
)
ONE_CHAIN = (
    "One chain of calls is delivered for a rollout, the one that ends with the verified response. The metrics give the "
    "share of the sampled tokens that it has."
)
NO_PARENT = (
    "The capture finds no parent for a call whose history, tools or system message changed, or whose parent has no "
    "text, and masks the rollout: parent_unresolved."
)
LEFT_CALL = (
    "A call that the agent left is still not committed when the rollout ends. The capture counts as incomplete, and "
    "the rollout is masked."
)
ABORTED = (
    "Its type of a reply has no finish reason abort, so the agent gets an error 500 and asks again. The call that was "
    "never committed masks the rollout."
)
ONE_CHOICE = "It refuses requests for two choices while tokens are captured."
NEMO_GYM = (
    Finding(NEMO_GYM_CHAIN := ("compaction", "subagent", "concurrent", "bestof"), ONE_CHAIN),
    Finding(NEMO_GYM_PARENT := ("newtools", "edited", "shorten", "window", "system", "empty", "eosonly"), NO_PARENT),
    Finding(NEMO_GYM_LEFT := ("timeout", "streamcut", "cancel"), LEFT_CALL),
    Finding(("abort",), ABORTED),
    Finding(("twochoices",), ONE_CHOICE),
)
FINDINGS: dict[str, Sequence[Finding]] = {
    "agent_lightning": (
        Finding(("stream", "streamtool"), "Its proxy refuses requests that stream with an error 400."),
        Finding(
            ("branchfirst", "bestof"),
            "Its triplets keep the last of several requests with one prompt, so the reply that the agent went on with "
            "is not trained.",
        ),
    ),
    "verifiers": (
        Finding(
            ("brokencall",),
            "Its parser takes a tool call with broken JSON out of the text, so the agent gets an empty reply, and the "
            "next prompt shows an empty turn to the model.",
        ),
        Finding(("stopstring",), STOP_STRING),
        Finding(
            ("resultparts",),
            "Its client renders the template itself and gives it the list of parts of a tool's result, which this "
            "template writes as Python writes a list: [{'type': 'text', ...}]. Its renderer for Qwen3 joins the parts.",
            ("brackets",),
        ),
        Finding(
            ("abort",),
            "The finish reason abort becomes stop, so the agent goes on with half a reply, which is trained.",
        ),
        Finding(("twochoices",), "It answers a request for two choices with an error 400."),
    ),
    "nemo_gym": (
        Finding(
            ("nonround", "tooljson", "stopstring"),
            "The engine renders the history again and gets other ids than it sampled, so the rollout is masked: "
            "parent_digest_mismatch. Required prefixes avoid that.",
        ),
        Finding(
            ("reasoning", "reasontool"),
            "The template drops the reasoning of earlier turns, so the ids differ, and the rollout is masked.",
            ("chatml",),
        ),
        Finding(
            ("blanks",), "The template trims the reply, so the ids differ, and the rollout is masked.", ("brackets",)
        ),
        *NEMO_GYM,
    ),
    "nemo_gym_prefix": NEMO_GYM,
    "rllm_gateway": (
        Finding(
            ("every other case",),
            "It is run with `sync_traces`. By default it writes traces in the background, and its `flush` waits for "
            "nothing with SQLite, so the traces of a session that had just ended were missing under load. Those of "
            "streams are still written in the background.",
        ),
    ),
    "art": (
        Finding(
            ("parts", "reserial"),
            "It takes a reply that the agent writes back in another form for another history, so each turn is a row.",
        ),
        Finding(
            ("cancel",),
            "A trajectory whose agent did not end is an exception of its group, so what it had sampled is not trained.",
        ),
    ),
    "atropos": (
        Finding(
            ("parts", "resultparts"),
            "Its proxy takes no contents as lists of parts: it answers 422, and the agent cannot go on.",
        ),
        Finding(("stopstring",), STOP_STRING),
        Finding(
            ("stream", "streamtool"),
            "Its proxy ignores stream and answers with one JSON object, in which clients of streams find no event: the "
            "agent gets empty replies.",
        ),
        Finding(
            ("every other case",),
            "A prompt that goes on with a reply ends its turn twice: the recorded ids have the end of the turn, the "
            "recorded text has not, and what the template writes behind it is appended. Rows and prompts agree: what "
            "is trained was sampled, but behind prompts that the template does not write.",
        ),
    ),
    "trl": (
        Finding(
            ("reminder",),
            "A system message in the middle is moved to the head of the prompt, so the model sees it before what was "
            "said before it, and a new row begins.",
        ),
        Finding(
            ("newtools", "subagent"),
            "Where one call has tools, the capture takes conversations without tools for auxiliary ones, such as those "
            "that write titles, and leaves them out.",
        ),
        Finding(
            ("bestof", "concurrent"),
            "Of two calls with one prompt, the one that nothing goes on from is a discarded retry, and is left out.",
        ),
        Finding(
            ("empty",),
            "A reply of no tokens makes the capture invalid, so the rollout has no rows; in TRL that error stops the "
            "worker.",
        ),
        Finding(("twochoices",), ONE_CHOICE),
    ),
    "openinference": (
        Finding(
            ("bestof", "twochoices"),
            "A span is a reply, and nothing says which one the agent kept: both candidates are trained, and the second "
            "choice of n=2 makes a row of its own.",
        ),
        Finding(
            ("abort",), "The half of a reply that the engine aborted has a span like any other, so it is trained, too."
        ),
    ),
}
