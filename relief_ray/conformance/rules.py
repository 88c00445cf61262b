"""The judge: checks that run something and find which rules it violates; and the rules of a strategy, in words.

Methods, backbones, data sets and pairs of equal methods are four lists of checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from relief_ray.plugins.blame import blamed, text_of
from relief_ray.support.errors import ClientFailed, UserError

RuleOutcome = Literal["kept", "broken", "not judged"]


class Broken(Exception):
    """Raised where a rule does not hold, with the violation in words."""

    def __init__(self, rule: str, text: str, has_remedy: bool = False) -> None:
        """``has_remedy``: the text says what to do, better than the rule's own ``fix``."""
        super().__init__(f"{rule}: {text}")
        self.rule, self.text, self.has_remedy = rule, text, has_remedy


class NotJudged(Exception):
    """Raised if a check cannot be made; its text says why. Other checks go on."""


class Rule(NamedTuple):
    """A rule in words."""

    says: str
    """The requirement."""
    fix: str
    """Remedy where it does not hold."""


Rules = Mapping[str, Rule]

RULES: Rules = {
    "configuration": Rule(
        "its fields survive JSON and build() returns a Strategy",
        "keep plain numbers, texts and tuples in fields; let build() return rr.Strategy(..)",
    ),
    "travels": Rule(
        "what build() returns can be sent to another process",
        "use functions of the module and functools.partial of them, no lambda, no function inside a function",
    ),
    "finishes": Rule("its rounds run to the end", "mend the line that is named"),
    "allocation": Rule(
        "assignments name participants, once each, and existing groups and models; up is within train",
        "build selections with context.layout.select(..) and assignments from context.participants",
    ),
    "purity": Rule(
        "every function, the client's too, leaves the models, states and labels that it is given as they are",
        "return a new ServerState or update; write theta + step, not theta.add_(step), and change a copy of the labels "
        "(labels.clone())",
    ),
    "bytes": Rule(
        "receipts charge at least the length of the statistics that are sent beside the update",
        "let `after` add their bytes to Receipt.bytes_up; the update's own are added when it is sent",
    ),
    "state": Rule(
        "the state is float32 vectors of all groups per model, tensors, and JSON values",
        "keep tensors in ServerState.tensors, numbers, texts and lists of them in ServerState.facts",
    ),
    "evaluation": Rule(
        "evaluation names models, clients and groups that exist, each target by a label of its own",
        "build EvalTargets from state.models and fleet.clients",
    ),
    "randomness": Rule(
        "no global random generator is used",
        "draw from context.streams.numpy(purpose, round, client) or .torch(..)",
    ),
    "globals": Rule(
        "variables of modules and classes, the settings of torch and functions of others stay as they are",
        "carry it in ServerState.facts, ServerState.tensors or the client's state",
    ),
    "moves": Rule(
        "after three rounds the model that is evaluated is no longer the one that it began with",
        "return the moved model from aggregate; is the update in the sums or among the single updates that it "
        "reads? A method that trains nothing on purpose says so by Insight.rests",
    ),
    "repeats": Rule(
        "a second run has the same bits",
        "take no clock, no id() and no order of a set into account; draw from context.streams",
    ),
    "resumes": Rule(
        "a run that is interrupted after every round has the bits of one that is not",
        "carry everything in ServerState or in the client's state: what build() made is made anew",
    ),
    "participation": Rule(
        "a round of a single client runs", "reckon with reduced.receipts and sums of any number of clients"
    ),
    "received": Rule(
        "what clients return depends on nothing that they neither received, nor kept, nor began with",
        "send it (Assignment.down), keep it (.keep), or leave out what absent sensors feed (.omit_absent)",
    ),
    "missing": Rule(
        "the model stays finite where absent modalities are left out (training.missing=zero_feature)",
        "expect groups without an update, and divide by no number that may be 0",
    ),
    "executors": Rule(
        "on Ray it has the bits of the plain loop",
        "let nothing depend on the process that it runs in (os.getpid(), hash() of a text, files)",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Result of one rule.

    Attributes:
        rule: name of the rule.
        status: kept, broken or not judged.
        found: violation, or the reason why it was not judged.
        has_remedy: ``found`` says what to do, better than the rule's own ``fix``.
    """

    rule: str
    status: RuleOutcome
    found: str = ""
    has_remedy: bool = False

    def fix(self, rules: Rules) -> str:
        """The rule's remedy; empty where ``found`` has a better one."""
        return "" if self.has_remedy else rules[self.rule].fix


B = TypeVar("B")


@dataclass(frozen=True, kw_only=True, slots=True)
class Check(Generic[B]):
    """One run, which may take minutes, and the rules that it judges.

    Attributes:
        rules: names of the rules.
        run: tries what is judged. It returns the violated rules with the violations in words, or raises ``Broken``;
            any other error violates the first rule.
        needs: rules without which the run means nothing: it is left out where one of them is not kept.
        apart: rules that are judged where another of this check is broken, too.
        lets_through: errors that are no violation, such as a cluster that fails.
    """

    rules: tuple[str, ...]
    run: Callable[[B], Mapping[str, str] | None]
    needs: tuple[str, ...] = ()
    apart: frozenset[str] = frozenset()
    lets_through: tuple[type[Exception], ...] = ()


def judge(checks: Sequence[Check[B]], subject: B) -> Iterator[Verdict]:
    """Make each check once, in order, and yield the verdict on each of its rules.

    What builds on a broken rule is not judged, so that one mistake is reported once.

    Raises:
        Exception: one that its check lets through.
    """
    verdicts: dict[str, Verdict] = {}
    first: dict[str, str] = {}  # a rule that is not kept, and the broken one that has to be mended first
    for check in checks:
        root = next((first[rule] for rule in check.needs if rule in first), "")
        reached = {} if root else _reached(check, subject)
        verdicts |= reached
        root = root or next((rule for rule, verdict in reached.items() if verdict.status == "broken"), "")
        for rule in check.rules:
            if root and rule not in verdicts and not (reached and rule in check.apart):
                verdicts[rule] = Verdict(rule=rule, status="not judged", found=f"first mend {root!r}")
            verdict = verdicts.get(rule, Verdict(rule=rule, status="kept"))
            if root and verdict.status != "kept":
                first[rule] = rule if verdict.status == "broken" else root
            yield verdict


def _reached(check: Check[B], subject: B) -> dict[str, Verdict]:
    """Verdicts of a check's run on rules that are not kept."""
    try:
        violations = check.run(subject) or {}
    except check.lets_through:
        raise
    except NotJudged as why:
        return {rule: Verdict(rule=rule, status="not judged", found=str(why)) for rule in check.rules}
    except Exception as error:
        verdict = _broken_by(error, check.rules)
        return {verdict.rule: verdict}
    return {rule: Verdict(rule=rule, status="broken", found=text) for rule, text in violations.items()}


def _broken_by(error: Exception, rules: tuple[str, ...]) -> Verdict:
    """The verdict that an error stands for; it names the user's line, also of an error that was raised in a client."""
    if isinstance(error, ClientFailed) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    rule = getattr(error, "rule", "")
    rule = rule if rule in rules else rules[0]
    if isinstance(error, Broken):
        found = error.text
    elif isinstance(error, UserError):
        found = str(error)
    elif users := blamed(error):
        found = str(users).partition("\n")[0]
    else:
        found = f"{type(error).__name__}: {text_of(error)}"
    has_remedy = isinstance(error, Broken) and error.has_remedy
    return Verdict(rule=rule, status="broken", found=found, has_remedy=has_remedy)
