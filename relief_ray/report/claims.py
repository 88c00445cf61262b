"""Verdicts on claims that were named before the first run: one rule for all of them, Holm's correction over the file.

A claim is *supported* where Holm's adjusted p is below 0.05 and the difference has its sign (with a margin: where the
one-sided test rejects that the first method is worse by the margin), *contradicted* where a two-sided test finds the
other sign, else *undecided*. What cannot be tested says why: a study that no result could decide, runs that are too
short, methods whose final models are the same, runs that are missing or were there before the claims.

A pair is two runs of one fold and one replicate: two methods with the same seed, start, data and devices. Where fold or
replicate holds more than a tenth of the scatter of paired differences, pairs depend on each other and the means of
whole replicates are tested instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from relief_ray.records.cells import (
    CLAIMS_FILE,
    MAX_CLAIMS,
    PLAN_FILE,
    Claim,
    Claims,
    PlannedCell,
    PlannedClaims,
    figure_text,
    parse_claims,
    read_plan_file,
)
from relief_ray.records.committed import CommittedClaims, read_committed
from relief_ray.records.identity import flat
from relief_ray.report.comparison import Comparison, pairs, scored
from relief_ray.report.document import Paragraphs
from relief_ray.report.remarks import headline, headlines, what_they_do
from relief_ray.report.results import COSTS, KEY
from relief_ray.report.runs import (
    Config,
    Repetition,
    Replicate,
    below,
    choice_kind,
    is_committed,
    repetition_of,
    replicate_of,
    variant_names,
)
from relief_ray.report.statistics import (
    ALPHA,
    MIN_REPLICATES,
    Paired,
    Sides,
    VarianceShares,
    fewest_pairs,
    holm,
    paired,
    rate_interval,
    smallest_p,
    units_of,
    variance_shares,
)
from relief_ray.strategies import DESCRIBED
from relief_ray.support.errors import UserError, counted, listed
from relief_ray.support.files import read_whole, sha256_of
from relief_ray.support.table import NONE, Cell, Row, Table, Tone
from relief_ray.support.text import with_title

if TYPE_CHECKING:
    from pandas import DataFrame

ClaimVerdict = Literal[
    "supported",
    "contradicted",
    "undecided",
    "cannot decide",
    "too short to judge",
    "not finished",
    "refused",
    "same model",
    "not tested early enough",
    "no runs",
]
_TONES: Mapping[ClaimVerdict, Tone] = {
    "supported": "good",
    "contradicted": "bad",
    "no runs": "gap",
    "not finished": "gap",
    "not tested early enough": "gap",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimResult:
    """A claim with its verdict."""

    claim: Claim
    """As it was named."""
    verdict: ClaimVerdict
    """The verdict."""
    evidence: str
    """The figures behind it, or the reason why there is none."""
    outcome: Paired | None = None
    """Of the test, over the units that were tested; None where none was made."""
    shares: VarianceShares | None = None
    """Where the scatter comes from; None below two folds and two complete replicates."""
    needed: int = 0
    """Fewest units with which it can be decided; 0 where no test was made."""
    p_holm: float | None = None
    """p adjusted over all claims of the page; None where no test was made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimResults:
    """Verdicts of one setting."""

    claims: tuple[ClaimResult, ...]
    """In the order of the file."""
    num_claims: int
    """Number of claims over which p-values were corrected."""
    at: str
    """When the claims were named (UTC)."""
    rates: tuple[AaRate, ...]
    """The A/A rate of every figure that a claim names, where there are enough runs."""


def judge(comparisons: Sequence[Comparison], registry: Registry) -> tuple[list[ClaimResults | None], tuple[str, ...]]:
    """Verdicts for each comparison, None where no claim is about it, and sentences on claims that fit none or several.

    Claims that could not be tested count in Holm's correction as well: leaving runs out makes it no milder.
    """
    problems, number = [*registry.problems], registry.num_claims
    judged: dict[int, tuple[Registered, list[ClaimResult]]] = {}
    for file in registry.files:
        claims = file.claims.claims
        found = [c for c in comparisons if c.runs and is_about(file.claims, c.runs[0].run.config)]
        # Of several settings the claims are about the one in which the methods of one of them ran.
        ran = [c for c in found if any(c.row(one.first) and c.row(one.second) for one in claims)]
        found = ran if len(ran) == 1 else found
        if len(found) == 1 and (place := comparisons.index(found[0])) not in judged:
            judged[place] = file, [_judge(found[0], claim, file, number) for claim in claims]
        else:
            many = f"{len(found)} settings here fit, none is judged; name what tells them apart"
            why = f"{many} (`data`, `split`, `where`)" if found else "no finished runs of that here, none is judged"
            about = ", ".join(filter(None, (file.claims.data, file.claims.split))) or "any data"
            problems.append(f"The claims about {about}: {why}.")
    tested = [c.outcome.p for _, of_file in judged.values() for c in of_file if c.outcome is not None]
    adjusted = iter(holm([*tested, *[1.0] * (number - len(tested))]))
    judgements = {
        place: ClaimResults(
            claims=tuple(c if c.outcome is None else _decided(c, c.outcome, next(adjusted)) for c in of_file),
            num_claims=number,
            at=file.committed.at,
            rates=tuple(
                filter(None, (aa_rate(comparisons[place], f) for f in dict.fromkeys(c.claim.figure for c in of_file)))
            ),
        )
        for place, (file, of_file) in judged.items()
    }
    return [judgements.get(place) for place in range(len(comparisons))], tuple(problems)


def _decided(judged: ClaimResult, outcome: Paired, p_holm: float) -> ClaimResult:
    verdict = judged.verdict
    if verdict == "undecided" and p_holm < ALPHA:
        is_for = judged.claim.margin is not None or outcome.mean > 0
        verdict = "supported" if is_for else "contradicted"
    return replace(judged, verdict=verdict, p_holm=p_holm)


def _judge(comparison: Comparison, claim: Claim, file: Registered, num_claims: int) -> ClaimResult:
    """The claim's test, still without the correction, or the reason why there is none."""
    found = run_pairs(comparison, claim.first, claim.second, claim.figure)
    if obstacle := _obstacle(comparison, found, claim, file):
        return ClaimResult(claim=claim, verdict=obstacle[0], evidence=obstacle[1])
    outcome, sides = judge_pairs(found, claim.margin), sides_of(claim)
    least, needed = smallest_p(outcome.num_pairs, sides, num_claims), fewest_pairs(num_claims, sides)
    verdict: ClaimVerdict = "undecided"
    evidence = _evidence(outcome, claim, found)
    if least > ALPHA:
        verdict = "cannot decide"
        evidence = (
            f"this study cannot decide: {_units(outcome)} give no adjusted p below {least:.2g}, at least {needed} are "
            f"needed; {evidence}"
        )
    shares = variance_shares(found)
    return ClaimResult(claim=claim, verdict=verdict, evidence=evidence, outcome=outcome, shares=shares, needed=needed)


def sides_of(claim: Claim) -> Sides:
    """Sides of a claim's test: one where it has a margin."""
    return 2 if claim.margin is None else 1


def _obstacle(
    comparison: Comparison, scores: DataFrame, claim: Claim, file: Registered
) -> tuple[ClaimVerdict, str] | None:
    """The verdict without a test, and its reason; None where the claim can be tested."""
    _, _, score = COSTS.get(claim.figure, ("", "", claim.figure))
    # Of pairs that have the score at all: where it was never recorded, no earlier test would show it.
    number = len(run_pairs(comparison, claim.first, claim.second, score))
    if number != len(scores):
        late = f"in {number - len(scores)} of {counted(number, 'pair')} the first test came after the cheaper run's end"
        return "not tested early enough", f"{late}; test after every round: --set evaluation.every=1"
    if scores.empty:
        return "no runs", f"needs runs of {claim.first} and {claim.second} with {figure_text(claim.figure)}"
    both = [[comparison.runs[i] for i in pair] for pair in zip(scores["run"], scores["run_second"], strict=True)]
    if early := sum(min(loaded.run.created for loaded in pair) < file.committed.at for pair in both):
        late = f"{early} of {len(scores)} pairs were begun before the claims were named ({file.committed.at})"
        return "refused", late
    planned = file.planned_pairs(claim.first, claim.second)
    if missing := len(planned - set(scores[KEY].itertuples(index=False, name=None))):
        done = f"{len(planned) - missing} of {len(planned)} planned pairs are finished"
        return "not finished", f"{done}; judged once, when all are there"
    if reason := too_short(comparison, scores, claim):
        return "too short to judge", reason
    if all(one.rounds[-1].model_sha256 == two.rounds[-1].model_sha256 for one, two in both):
        return "same model", f"both methods end with the same model, bit for bit, in all {counted(len(both), 'pair')}"
    return None


def _units(outcome: Paired) -> str:
    return f"{outcome.num_pairs} {outcome.unit}s"


def bound_text(claim: Claim, result: Paired) -> str:
    """One-sided 95 % bound of a claim with a margin, with as many digits as tell it from the margin; else empty."""
    if claim.margin is None or result.bound is None:
        return ""
    for digits in (1, 2, 3):
        shown = f"{result.bound:+.{digits}f}"
        if float(shown) != -claim.margin:
            break
    return shown


def _evidence(outcome: Paired, claim: Claim, scores: DataFrame) -> str:
    folds, replicates = counted(scores["fold"].nunique(), "fold"), counted(scores["repetition"].nunique(), "replicate")
    runs = f"{len(scores)} paired runs ({folds} x {replicates})"
    if outcome.mean == 0.0 and (scores["first"] == scores["second"]).all():
        return f"no difference at all in {runs}"
    parts = [f"{claim.first} - {claim.second}: {outcome} points, {runs}"]
    if bound := bound_text(claim, outcome):
        parts.append(f"one-sided 95 % bound {bound}, margin -{claim.margin:g}")
    parts.append(f"p = {outcome.p:.3g}")
    if outcome.on_means:
        parts.append(f"tested on {_units(outcome)}, since pairs of one fold or replicate are alike")
    return ", ".join(parts)


def last_lines(
    comparison: Comparison, judgement: ClaimResults | None = None, problems: Sequence[str] = ()
) -> tuple[str, ...]:
    """Sentence on what the runs decide about the claims that were named before them.

    It comes in the parts that a reader looks at one by one: a line per verdict; one without claims.
    """
    mark = () if comparison.is_real else (_SYNTHETIC,)
    told = tuple(filter(None, [headline(comparison)]))
    if judgement is None:
        none = () if problems else (_untested(is_named=False),)
        return (" ".join([*mark, *problems, *told, *none]),)
    parts, name = [], "p" if judgement.num_claims == 1 else "adjusted p"
    for verdict in _ORDER:
        if shown := [_worded(judged, name) for judged in judgement.claims if judged.verdict == verdict]:
            parts.append(f"{verdict}: {listed(shown)}")
    head = f"Of {counted(len(judgement.claims), 'claim')} named before the first run:"
    tested = any(judged.p_holm is not None for judged in judgement.claims) and judgement.num_claims > 1
    unlike = [f"p is adjusted over {judgement.num_claims} claims (Holm), intervals are not."] if tested else []
    return (" ".join([*mark, head]), *(f"{p};" for p in parts[:-1]), f"{parts[-1]}.", *unlike, *problems, *told)


_SYNTHETIC = "SYNTHETIC data: nothing follows for methods."


def _untested(*, is_named: bool) -> str:
    why = "no claim is about these runs" if is_named else "no claim was named before these runs"
    return f"Described, not tested: {why}."


def in_words(comparison: Comparison, judgement: ClaimResults | None, *, is_named: bool) -> tuple[str, ...]:
    """What the runs say, a line per method, and how many claims they support: for a page that has the claims' table."""
    mark, methods = () if comparison.is_real else (_SYNTHETIC,), what_they_do(comparison)
    if judgement is None:
        return (*mark, *headlines(comparison), _untested(is_named=is_named), *methods)
    number = Counter(judged.verdict for judged in judgement.claims)
    counts = listed(f"{number[verdict]} {verdict}" for verdict in _ORDER if number[verdict])
    were = "was" if len(judgement.claims) == 1 else "were"
    named = f"{counted(len(judgement.claims), 'claim')} {were} named before the first run: {counts}."
    return (*mark, *headlines(comparison), named, *methods)


_ORDER: tuple[ClaimVerdict, ...] = get_args(ClaimVerdict)


def _worded(judged: ClaimResult, name: str) -> str:
    """``v1 > fedavg in F1 (+3.1 [+1.0, +5.2] points, adjusted p = 0.01)``; the reason where nothing was decided."""
    shown, outcome = judged.evidence, judged.outcome
    if outcome is not None and judged.verdict == "cannot decide":
        shown = f"{_units(outcome)} are too few for any result, at least {judged.needed} are needed, {outcome} points"
    elif outcome is not None:
        least = f", at least {bound}" if (bound := bound_text(judged.claim, outcome)) else ""
        shown = f"{outcome} points{least}, {name} = {judged.p_holm:.2g}"
    return f"{judged.claim.brief} ({shown})"


NOTE = (
    "Paired runs are compared: both methods on the same fold, seed, start, data and devices. If runs of one fold or "
    "replicate resemble each other (more than a tenth of the variance), means of replicates are tested instead. `p` "
    "comes from a sign-flip test, over all patterns of signs; above 32 pairs over patterns that a fixed seed draws. "
    "It is two-sided, or one-sided for a claim with a margin. `p (Holm)` is adjusted over all {} claims of the "
    "file and decides. An interval in brackets is Student's 95 % interval of that difference alone, so it may leave "
    "out 0 although `p (Holm)` is above 0.05. Claims are about these subjects under new starts, not about new people. "
    "They were named {}, before the first run."
)


def verdict_table(judgement: ClaimResults) -> Table:
    """Table with one row per claim; a note gives the titles of presets, which claims name by what one types."""
    labels = (label for judged in judgement.claims for label in (judged.claim.first, judged.claim.second))
    presets = (label.partition(" (")[0] for label in labels)
    titles = {name: DESCRIBED[name].title for name in presets if name in DESCRIBED}
    shown = [f"`{name}`: {title}" for name, title in titles.items() if with_title(name, title) != title]
    names = [f"Names: {'; '.join(shown)}."] if shown else []
    return Table(
        caption="Claims named before the first run.",
        head=("claim", "verdict", "p", "p (Holm)", "evidence"),
        rows=tuple(_row(judged) for judged in judgement.claims),
        notes=(NOTE.format(judgement.num_claims, judgement.at), *names),
        is_text=True,
    )


def _row(judged: ClaimResult) -> Row:
    ps = {"p": None if judged.outcome is None else judged.outcome.p, "p_holm": judged.p_holm}
    cells = (
        Cell(judged.verdict, tone=_TONES.get(judged.verdict, "")),
        *(Cell(NONE if p is None else f"{p:.3g}", numbers={name: p}) for name, p in ps.items()),
        Cell(judged.evidence),
    )
    # A sentence of its own says nothing of the rows' names, which `brief` has.
    name = f"{judged.claim.text} ({judged.claim.brief})" if judged.claim.text else judged.claim.brief
    return Row(name, cells)


def scatter(judgement: ClaimResults) -> Paragraphs:
    """Paragraphs on the sources of every tested claim's scatter, and on the A/A rate of the same test."""
    lines = [
        f"{judged.claim.first} and {judged.claim.second}, {figure_text(judged.claim.figure)}: variance of the "
        f"{judged.shares}"
        for judged in judgement.claims
        if judged.shares is not None
    ]
    lines += map(str, judgement.rates or [_NO_RATE])
    return Paragraphs(lines=tuple(lines), is_list=True)


_NO_RATE = (
    "A/A rate (how often the test calls a method unlike itself): none, no method has six pairs of its own replicates"
)


# Points above guessing that a method has to reach before a difference between methods is worth a verdict.
_ABOVE_CHANCE = 5.0
# Figures that are a macro-F1 on all test windows, as guessing's is.
_HELD = ("f1", "f1_rare", "f1_own_sensors", *COSTS)
_MIN_AA_UNITS = 6


def run_pairs(comparison: Comparison, first: str, second: str, figure: str) -> DataFrame:
    """All pairs of two methods that have the figure, in order of replicate and fold."""
    return pairs(comparison.table, comparison.rounds, first, second, figure).sort_values(["repetition", "fold"])


def judge_pairs(scores: DataFrame, margin: float | None = None) -> Paired:
    """Test of paired scores (points) by fold and replicate: two-sided, or one-sided against a margin.

    With a margin the hypothesis is that the first method is worse by the margin or more.
    """
    units = units_of(scores)
    result = paired(units.values, on_means=units.on_means, margin=margin)
    assert result is not None, "a test needs a pair"
    return result


def too_short(comparison: Comparison, scores: DataFrame, claim: Claim) -> str:
    """Reason why nothing can be judged yet; empty where it can.

    Below three replicates, or where a method is less than five points above a model that knows nothing: one fixed
    answer, or guessing all classes alike. Through whatever sensors, such a model has the same macro-F1 on the test
    windows. Of another figure nobody knows what it has: there the methods' F1 decides.
    """
    number = scores["repetition"].nunique()
    if number < MIN_REPLICATES:
        return f"{number} replicate{'s' if number != 1 else ''}, expected {MIN_REPLICATES} or more"
    # Of each fold the first run's.
    runs = reversed(comparison.runs)
    chances = {run.replicate[0]: 100 * chance for run in runs if (chance := run.small.chance) is not None}
    is_held = claim.figure in _HELD
    held = scores if is_held else run_pairs(comparison, claim.first, claim.second, "f1")
    known = held[held["fold"].isin(list(chances))]
    for label, column in ((claim.first, "first"), (claim.second, "second")) if len(known) else ():
        score, chance = known[column].mean(), known["fold"].map(chances).mean()
        if score < chance + _ABOVE_CHANCE:
            found = f"{label} has {'' if is_held else 'an F1 of '}{score:.1f} %"
            return f"{found}, less than {_ABOVE_CHANCE:g} points above guessing ({chance:.1f} %)"
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AaRate:
    """Rate at which the test calls a method different from itself: other replicates, the same test at level 0.05."""

    figure: str
    num_called: int
    """Tests with p below 0.05."""
    num_tests: int
    """Methods with at least six units; methods that train the same bits count once."""
    interval: tuple[float, float] | None
    """Clopper and Pearson's 95 %, as if methods were independent, which share seeds; None without scipy."""

    def __str__(self) -> str:
        """The rate in percent with its interval, and what was expected."""
        interval = "" if self.interval is None else " [{:.0f}, {:.0f}]".format(*(100 * end for end in self.interval))
        return (
            f"A/A rate, {figure_text(self.figure)}: the test called {self.num_called} of {self.num_tests} methods "
            f"unlike themselves (other replicates, p < {ALPHA}): {100 * self.num_called / self.num_tests:.0f} %"
            f"{interval}, expected 5 %"
        )


def aa_rate(comparison: Comparison, figure: str) -> AaRate | None:
    """The A/A rate of a figure over all methods; None where no method has six units."""
    models: dict[frozenset[object], DataFrame] = {}
    for _, runs in comparison.table.groupby("method", sort=False):
        models.setdefault(frozenset(runs[[*KEY, "model_sha256"]].itertuples(index=False, name=None)), runs)
    outcomes = [o for runs in models.values() if (o := _aa_test(runs, comparison.rounds, figure)) is not None]
    if not outcomes:
        return None
    called, number = sum(o.p < ALPHA for o in outcomes), len(outcomes)
    return AaRate(figure=figure, num_called=called, num_tests=number, interval=rate_interval(called, number))


def _aa_test(runs: DataFrame, rounds: DataFrame, figure: str) -> Paired | None:
    """A method against itself: first and second, third and fourth ... replicate of each rotation.

    Each fold of each two replicates is a pair. Replicates with other rotations differ in more than their seeds.
    """
    number = runs.groupby("rotation")["repetition"].rank(method="dense").astype(int) - 1
    numbered = runs.assign(two=number // 2)
    one, two = (numbered[number % 2 == side] for side in (0, 1))
    scores = scored(one, two, ["rotation", "two", "fold"], rounds, figure)
    if scores.empty:
        return None
    outcome = judge_pairs(scores)
    return outcome if outcome.num_pairs >= _MIN_AA_UNITS else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    """Claims of a plan."""

    claims: Claims
    """The claims."""
    committed: CommittedClaims
    """Their file's text, since when they have been there, and the replicates that the plan has of each method."""

    def planned_pairs(self, first: str, second: str) -> frozenset[Replicate]:
        """The replicates that were planned for both methods, in the claims' data and split."""
        one, two = ({row[:3] for row in self.committed.planned.get(name, ())} for name in (first, second))
        return frozenset(one & two)


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry:
    """All claims of a page, each file once, and sentences on those that cannot be used."""

    files: tuple[Registered, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def num_claims(self) -> int:
        """Number of claims over which p-values are corrected."""
        return sum(len(f.claims.claims) for f in self.files)


def registry_of(folders: Iterable[Path]) -> Registry:
    """The claims of every plan in, below or right above the folders, and of committed results among them.

    None where they are more than six in all.
    """
    files: dict[str, Registered] = {}
    problems: list[str] = []
    folders = list(map(Path, folders))
    # Plans in and below the folders, and those that are right above them.
    plans = [
        path
        for folder in folders
        for path in (*map(Path.resolve, below(folder, PLAN_FILE)), folder.resolve().parent / PLAN_FILE)
    ]
    for path in filter(Path.exists, dict.fromkeys(plans)):
        try:
            plan = read_plan_file(path)
            if plan.claims is not None:
                file = _registered(path.parent / CLAIMS_FILE, plan.claims, plan.cells)
                files.setdefault(file.committed.text, file)
        except UserError as error:
            problems.append(str(error))
    for path in filter(is_committed, folders):
        if (kept := read_committed(path).claims) is not None:
            claims = parse_claims(kept.text.encode(), f"{path}: claims")
            files.setdefault(kept.text, Registered(claims=claims, committed=kept))
    known = Registry(files=tuple(files.values()), problems=tuple(problems))
    if known.num_claims <= MAX_CLAIMS:
        return known
    many = (
        f"{len(known.files)} claims files with {known.num_claims} claims stand on this page, expected at most "
        f"{MAX_CLAIMS}: none is judged; report one study at a time"
    )
    return Registry(problems=(*known.problems, many))


def _registered(path: Path, planned: PlannedClaims, cells: Sequence[PlannedCell]) -> Registered:
    try:
        content = read_whole(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): no claim of it is judged; restore it") from error
    if sha256_of(content) != planned.sha256:
        raise UserError(
            f"{path}: was changed after the plan was made (sha256 {sha256_of(content)[:12]}, in the plan "
            f"{planned.sha256[:12]}): no claim of it is judged; restore the file"
        )
    claims = parse_claims(content, str(path))
    planned_of = {
        name: tuple((*replicate, *repetition) for replicate, repetition in replicates.items())
        for name, replicates in planned_replicates(claims, cells).items()
    }
    committed = CommittedClaims(text=content.decode(), at=planned.at, planned=planned_of)
    return Registered(claims=claims, committed=committed)


def planned_replicates(claims: Claims, cells: Sequence[PlannedCell]) -> dict[str, dict[Replicate, Repetition]]:
    """Replicates by method of the planned cells that the claims are about."""
    planned = [cell for cell in cells if is_about(claims, cell.config)]
    about = [(cell.method.name, cell.config) for cell in planned]
    replicates: dict[str, dict[Replicate, Repetition]] = {}
    for name, (_, config) in zip(variant_names(about, [cell.method for cell in planned]), about, strict=True):
        replicates.setdefault(name, {})[replicate_of(config)] = repetition_of(config)
    return replicates


def is_about(claims: Claims, config: Config) -> bool:
    """True for a run of the claims' data, split and further values; a search's cells only where the claims say so."""
    kind = choice_kind(config)
    values = flat(config) | {"choice": "" if kind == "level" else kind}
    wanted = {"data.split": claims.split or values.get("data.split"), "choice": "", **claims.where}
    return claims.is_of(str(values.get("data.name"))) and all(values.get(key) == value for key, value in wanted.items())
