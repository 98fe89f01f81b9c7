"""Lists what a history can record: the name of each operation, its details, and a sentence for a reader."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of record."""

    text: str
    """What happened, with the details in braces."""
    details: tuple[str, ...] = ()
    """The names of the details that every record of this kind has."""
    fault: bool = False
    """Whether it is a fault, or the end of one. Faults are shown around the rollouts that they meet."""


OPERATIONS: Mapping[str, Operation] = {
    # What the run is made of, as the first records. `settings` are pairs of a name and a value: of a trainer `ledger`
    # (bool), of a server `journal` (bool), `max_concurrent`, `max_queued`, `owners`, `trainer_grace` and `retry_delay`.
    "configured": Operation("is configured: {settings}", ("settings",)),
    # The application of a trainer.
    # `plan` is a tuple of words for what may happen to the rollout: cancelled, superseded, deadline, policy fails, and
    # how its agent misbehaves (agents.py).
    "submitted": Operation("the application asks for the rollout (agent {agent}; {plan})", ("agent", "plan")),
    # `samples` has each sample's name and its segments: ids, mask runs, chat numbers, and logprobs of the sampled ids.
    "applied": Operation(
        "the application gets the outcome {result}: {status} {reason}",
        ("result", "status", "reason", "boundary", "retryable", "reward", "samples"),
    ),
    "again": Operation(
        "the application gets the outcome {result} again, and only confirms it: {status} {reason}",
        ("result", "status", "reason", "boundary", "retryable", "reward", "samples"),
    ),
    "refused": Operation("the application gets the error {error}: {text}", ("error", "text")),
    "given up": Operation("the application stops waiting", ()),
    "confirmed": Operation("the application confirms {result}", ("result",)),
    # A call of Init, Cancel or Complete at the network (`taps`). A call without `answered` may have had its effect.
    # Init has the digest of its spec as argument and (started,) as value; Cancel has the pair (disposition, state) as
    # value, and attempt 0 for all attempts; Complete has (result id, status) as argument and the receipt as value.
    "called": Operation("-> {to}: {method} (call {call}) {argument}", ("call", "method", "to", "argument")),
    "answered": Operation("{method} (call {call}) is answered {status} {value}", ("call", "method", "status", "value")),
    # A trainer that has lost a rollout's server begins a higher attempt by itself (a line of its log).
    "runs again": Operation("the trainer begins this attempt: {why}", ("why",)),
    # The policy of a trainer. A draw names one sampling; `ids` are the sampled token ids.
    "sampled": Operation("the policy samples {sample}/{chat} (draw {draw})", ("sample", "chat", "draw")),
    "replied": Operation("the policy replies to {sample}/{chat} (draw {draw})", ("sample", "chat", "draw", "ids")),
    "policy failed": Operation("the policy raises at {sample}/{chat}: {error}", ("sample", "chat", "draw", "error")),
    "policy cancelled": Operation("the sampling of {sample}/{chat} is cancelled", ("sample", "chat", "draw")),
    # The agent's code on a server. `run` numbers the runs of all agents in the history.
    "run": Operation("agent {agent} starts (run {run})", ("agent", "run")),
    "asked": Operation("the agent asks for {sample}/{chat} (run {run})", ("sample", "chat", "run")),
    "got": Operation("the agent gets {sample}/{chat} (draw {draw}, run {run})", ("sample", "chat", "draw", "run")),
    "chat raised": Operation("the agent's chat {sample}/{chat} raises {error}", ("sample", "chat", "error", "run")),
    "returned": Operation("the agent returns (run {run}, reward {reward})", ("run", "reward")),
    "raised": Operation("the agent raises {error} (run {run})", ("run", "error")),
    "cancel ignored": Operation("the agent ignores a cancel (run {run})", ("run",)),
    "stopped agent": Operation("the agent is cancelled (run {run})", ("run",)),
    # A reader of events. `kind` is the name of the event's class.
    "event": Operation("reader {reader} reads event {number}: {kind}", ("reader", "number", "kind")),
    "events failed": Operation("reader {reader} gets the error {error}", ("reader", "error")),
    "events begin": Operation("reader {reader} reads from event {number} on", ("reader", "number")),
    # Messages at the network, `kind` by the name of the frame or the call.
    "sent": Operation("-> {to}: {kind} {what}", ("to", "kind", "what")),
    "arrived": Operation("<- {sender}: {kind} {what}", ("sender", "kind", "what")),
    "beyond window": Operation(
        "sends chat {chat} to {to}: {open} are open, and the window is {window}", ("chat", "to", "open", "window")
    ),
    # Disks. `store` is journal or ledger.
    "commit": Operation("{store}: commit of {size} statements", ("store", "size")),
    # What a server says about itself while it runs.
    "capacity": Operation(
        "{running} of {max_concurrent} run, {queued} of {max_queued} wait, {abandoned} do not stop",
        ("running", "max_concurrent", "queued", "max_queued", "abandoned"),
    ),
    # A log line of level ERROR. `message` is the text of the code, before values are put in.
    "logged": Operation("logs an error: {text}", ("message", "text")),
    # Faults, and their ends.
    "crash": Operation("crashes ({where})", ("where",), fault=True),
    "restart": Operation("starts", (), fault=True),
    "stop": Operation("is stopped, as by SIGSTOP", (), fault=True),
    "continue": Operation("continues, as after SIGCONT", (), fault=True),
    "asked to stop": Operation("is asked to end in good order", (), fault=True),
    "close": Operation("is closed in good order", (), fault=True),
    "pause": Operation("the trainer pauses its policy", (), fault=True),
    "resume": Operation("the trainer resumes its policy", (), fault=True),
    "asks to cancel": Operation("the application cancels the rollout", (), fault=True),
    "asks to supersede": Operation("the application asks for a higher attempt", (), fault=True),
    "asks twice": Operation("the application asks for the rollout a second time", (), fault=True),
    "asks otherwise": Operation("the application asks for another rollout under this id", (), fault=True),
    "spike": Operation("messages take up to {seconds} s", ("seconds",), fault=True),
    "cut": Operation("the stream to {to} is cut", ("to",), fault=True),
    "half open": Operation("the stream to {to} loses everything in one direction", ("to",), fault=True),
    "partition": Operation("cannot reach {to}", ("to",), fault=True),
    "heal": Operation("can reach {to} again", ("to",), fault=True),
    "lost": Operation("the message to {to} is lost: {kind}", ("to", "kind"), fault=True),
    "commit failed": Operation("{store}: a commit fails ({error})", ("store", "error"), fault=True),
    "disk full": Operation("{store}: the disk is full", ("store",), fault=True),
    "disk free": Operation("{store}: the disk has space again", ("store",), fault=True),
    "slow disk": Operation("journal or ledger: commits take up to {seconds} s", ("seconds",), fault=True),
    "clock jump": Operation("the wall clock jumps by {seconds} s", ("seconds",), fault=True),
    "forget": Operation("loses its disk", (), fault=True),
    "readdress": Operation("comes back at another address", (), fault=True),
    "window": Operation("its window becomes {size}", ("size",), fault=True),
    "drain": Operation("drains", (), fault=True),
    "drain cancelled": Operation("stops draining", (), fault=True),
    "unnamed": Operation("its list no longer names {server}", ("server",), fault=True),
    "named": Operation("its list names {server}, too", ("server",), fault=True),
    "named again": Operation("its list names {server} again", ("server",), fault=True),
    "fewer workers": Operation("names {listed} workers from its next start on", ("listed",), fault=True),
    "more workers": Operation("names {listed} workers from its next start on", ("listed",), fault=True),
    "rolling restart": Operation("its workers are restarted, one after the other", (), fault=True),
    "faults over": Operation("no more faults", (), fault=True),
    # What is left at the end of the run, read from outside: journals, ledgers, folders, counters.
    "in journal": Operation(
        "the journal has attempt {attempt}: {state}, settled {settled}, receipts {receipts}",
        ("state", "settled", "receipts", "events"),
    ),
    "in ledger": Operation("the ledger still has the rollout ({what})", ("what",)),
    "credentials": Operation("a file of credentials is left", ()),
    "left": Operation("{count} {what} are left", ("what", "count")),
}
