"""Rules that every strategy keeps, in words; ``runner`` judges them by running the strategy."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from relief_ray.support.errors import ClientFailed, UserCodeFailed

RuleOutcome = Literal["kept", "broken", "not judged"]


class Broken(Exception):
    """Raised where a rule does not hold, with the reason."""

    def __init__(self, rule: str, found: str) -> None:
        """Name the rule and the reason."""
        super().__init__(f"{rule}: {found}")
        self.rule, self.found = rule, found


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A rule in words.

    Attributes:
        says: the requirement.
        fix: remedy where it does not hold.
    """

    says: str
    fix: str


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "configuration": Rule(
            says="its fields survive JSON and build() returns a Strategy",
            fix="keep plain numbers, texts and tuples in fields; let build() return rr.Strategy(..)",
        ),
        "travels": Rule(
            says="what build() returns can be sent to another process",
            fix="use functions of the module and functools.partial of them, no lambda, no function inside a function",
        ),
        "finishes": Rule(says="its rounds run to the end", fix="mend the line that is named"),
        "allocation": Rule(
            says="assignments name participants, once each, and existing groups and models; up is within train",
            fix="build selections with context.layout.select(..) and assignments from context.participants",
        ),
        "purity": Rule(
            says="every function, the client's too, leaves the models and states that it is given as they are",
            fix="return a new ServerState or update; write theta + step, not theta.add_(step)",
        ),
        "bytes": Rule(
            says="receipts charge at least the length of what is sent, its statistics too",
            fix="leave Receipt.bytes_up as it is, or take relief_ray.core.codec.encoded_nbytes or sparse_nbytes",
        ),
        "state": Rule(
            says="the state is float32 vectors of all groups per model, tensors, and JSON values",
            fix="keep tensors in ServerState.tensors, numbers, texts and lists of them in ServerState.facts",
        ),
        "evaluation": Rule(
            says="evaluation names models, clients and groups that exist, each target by a label of its own",
            fix="build EvalTargets from state.models and fleet.clients",
        ),
        "randomness": Rule(
            says="no global random generator is used",
            fix="draw from context.streams.numpy(purpose, round, client) or .torch(..)",
        ),
        "globals": Rule(
            says="variables of modules and classes and the settings of torch stay as they are",
            fix="carry it in ServerState.facts, ServerState.tensors or the client's state",
        ),
        "moves": Rule(
            says="after three rounds the model that is evaluated is no longer the one that it began with",
            fix="return the moved model from aggregate; is the update in the sums or among the single updates that it "
            "reads? A method that trains nothing on purpose says so by Insight.rests",
        ),
        "repeats": Rule(
            says="a second run has the same bits",
            fix="take no clock, no id() and no order of a set into account; draw from context.streams",
        ),
        "resumes": Rule(
            says="a run that is interrupted after every round has the bits of one that is not",
            fix="carry everything in ServerState or in the client's state: what build() made is made anew",
        ),
        "participation": Rule(
            says="a round of a single client runs", fix="reckon with reduced.receipts and sums of any number of clients"
        ),
        "received": Rule(
            says="what clients return depends on nothing that they neither received, nor kept, nor began with",
            fix="send it (Assignment.down), keep it (.keep), or leave out what absent sensors feed (.omit_absent)",
        ),
        "missing": Rule(
            says="the model stays finite where absent modalities are left out (training.missing=zero_feature)",
            fix="expect groups without an update, and divide by no number that may be 0",
        ),
        "executors": Rule(
            says="on Ray it has the bits of the plain loop",
            fix="let nothing depend on the process that it runs in (os.getpid(), hash() of a text, files)",
        ),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Judgement of one rule.

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

    def fix(self, rules: Mapping[str, Rule]) -> str:
        """The rule's remedy; empty where ``found`` has a better one."""
        return "" if self.has_remedy else rules[self.rule].fix


def not_judged(rule: str, first: str) -> Verdict:
    """Return the verdict on a rule that builds on another one, which is broken."""
    return Verdict(rule=rule, status="not judged", found=f"first mend {first!r}")


def what_broke(error: Exception, rules: tuple[str, ...], modules: Collection[str]) -> tuple[str, str]:
    """Return the broken rule and the reason, with the line in the user's ``modules``.

    For a failed client it is the error that was raised inside it.
    """
    cause = error.__cause__ if isinstance(error, ClientFailed) and error.__cause__ else error
    if isinstance(cause, UserCodeFailed):
        # It names the file; the lines after it are for a run.
        return cause.rule if cause.rule in rules else rules[0], str(cause).partition("\n")[0]
    if isinstance(cause, Broken):
        return cause.rule if cause.rule in rules else rules[0], cause.found
    return rules[0], f"{type(cause).__name__}: {cause}{_line_of(cause, modules)}"


def _line_of(error: BaseException, modules: Collection[str]) -> str:
    """Return the innermost line of the user's files in the error's traceback."""
    user_files = {f"{module.replace('.', '/')}.py" for module in modules}
    frames = [f for f in traceback.extract_tb(error.__traceback__) if any(f.filename.endswith(n) for n in user_files)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
