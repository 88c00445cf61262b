"""Verdicts on claims that were named before the first run: one rule for all of them, Holm's correction over the file.

A claim is *supported* where Holm's adjusted p is below 0.05 and the difference has its sign (with a margin: where the
one-sided test rejects that the first method is worse by the margin), *contradicted* where a two-sided test finds the
other sign, else *undecided*. What cannot be tested says why: a study that no result could decide, runs that are too
short, methods that did the same work, runs that are missing or were there before the claims.

A pair is two runs of one fold and one replicate: two methods with the same seed, start, data and devices. Where fold or
replicate holds more than a tenth of the scatter of paired differences, pairs depend on each other and the means of
whole replicates are tested instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from pydantic import JsonValue

from relief_ray.records.cells import (
    CLAIMS_FILE,
    FIGURE_TEXT,
    MAX_CLAIMS,
    PLAN_FILE,
    Claim,
    Claims,
    Figure,
    PlannedCell,
    PlannedClaims,
    claims_digest,
    parse_claims,
    read_plan_file,
)
from relief_ray.records.committed import CommittedClaims, read_committed
from relief_ray.report.comparison import Comparison, pairs, scored
from relief_ray.report.document import Paragraphs
from relief_ray.report.remarks import described, faster
from relief_ray.report.results import COSTS, KEY
from relief_ray.report.runs import (
    Repetition,
    Replicate,
    below,
    choice_kind,
    flat,
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
    holm,
    paired,
    rate_interval,
    sign_flip,
    smallest_p,
    units_of,
)
from relief_ray.strategies import DESCRIBED
from relief_ray.support.errors import UserError, counted, listed
from relief_ray.support.table import NONE, Cell, Row, Table, Tone
from relief_ray.support.text import with_title

if TYPE_CHECKING:
    from pandas import DataFrame

Verdict = Literal[
    "supported",
    "contradicted",
    "undecided",
    "cannot decide",
    "too short to judge",
    "not finished",
    "refused",
    "not tested early enough",
    "no runs",
]
_TONES: Mapping[Verdict, Tone] = {
    "supported": "good",
    "contradicted": "bad",
    "no runs": "gap",
    "not finished": "gap",
    "not tested early enough": "gap",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedClaim:
    """A claim with its verdict.

    Attributes:
        claim: as it was named.
        verdict: the verdict.
        evidence: the figures behind it, or the reason why there is none.
        outcome: of the test; None where none was made.
        p_holm: p adjusted over all claims of the page; None where no test was made.
    """

    claim: Claim
    verdict: Verdict
    evidence: str
    outcome: Outcome | None = None
    p_holm: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Verdicts of one setting.

    Attributes:
        claims: in the order of the file.
        num_claims: number of claims over which p-values were corrected.
        at: when the claims were named (UTC).
        rates: the A/A rate of every figure that a claim names, where there are enough runs.
    """

    claims: tuple[JudgedClaim, ...]
    num_claims: int
    at: str
    rates: tuple[AaRate, ...]


def judge(
    comparisons: Sequence[Comparison | None], registry: Registry
) -> tuple[list[Judgement | None], tuple[str, ...]]:
    """Verdicts for each comparison, None where no claim is about it, and sentences on claims that fit none or several.

    Claims that could not be tested count in Holm's correction as well: leaving runs out makes it no milder.
    """
    problems = [*registry.problems]
    judged: list[Judgement | None] = [None] * len(comparisons)
    for file in registry.files:
        found = [(i, c) for i, c in enumerate(comparisons) if c and _is_about(file.claims, c.runs[0].run.config)]
        if len(found) != 1 or judged[found[0][0]] is not None:
            problems.append(_misfit(file.claims, len(found)))
            continue
        place, comparison = found[0]
        raw = [_judge(comparison, claim, file, registry.num_claims) for claim in file.claims.claims]
        figures = dict.fromkeys(claim.figure for claim in file.claims.claims)
        rates = (aa_rate(comparison, figure) for figure in figures)
        judged[place] = Judgement(
            claims=tuple(raw),
            num_claims=registry.num_claims,
            at=file.at,
            rates=tuple(r for r in rates if r is not None),
        )
    return _corrected(judged, registry.num_claims), tuple(problems)


def _misfit(claims: Claims, number: int) -> str:
    place = f"The claims about {claims.data}, {claims.split}"
    if not number:
        return f"{place}: no finished runs of that here, none is judged."
    return f"{place}: {number} settings here fit, none is judged; name what tells them apart in the file's `where`."


def _corrected(judged: Sequence[Judgement | None], number: int) -> list[Judgement | None]:
    """The judgements with adjusted p-values; claims of the page without a test enter with p = 1."""
    known = [c.outcome.p for j in judged if j is not None for c in j.claims if c.outcome is not None]
    adjusted = iter(holm([*known, *[1.0] * (number - len(known))]))
    return [
        j and replace(j, claims=tuple(_decided(c, next(adjusted)) if c.outcome is not None else c for c in j.claims))
        for j in judged
    ]


def _decided(judged: JudgedClaim, p_holm: float) -> JudgedClaim:
    outcome, verdict = judged.outcome, judged.verdict
    assert outcome is not None
    if verdict == "undecided" and p_holm < ALPHA:
        is_for = judged.claim.margin is not None or outcome.paired.mean > 0
        verdict = "supported" if is_for else "contradicted"
    return replace(judged, verdict=verdict, p_holm=p_holm)


def _judge(comparison: Comparison, claim: Claim, file: Registered, num_claims: int) -> JudgedClaim:
    """The claim's test, still without the correction, or the reason why there is none."""
    found = run_pairs(comparison, claim.first, claim.second, claim.figure)
    obstacle = _tested_late(comparison, claim, len(found)) or _obstacle(comparison, found, claim, file)
    if obstacle is not None:
        return JudgedClaim(claim=claim, verdict=obstacle[0], evidence=obstacle[1])
    outcome = judge_pairs(found, claim.margin)
    least = min(1.0, num_claims * outcome.smallest_p)
    evidence = _evidence(outcome, claim, found)
    if least > ALPHA:
        why = f"this study cannot decide: {_units(outcome)} give no adjusted p below {least:.2g}; {evidence}"
        return JudgedClaim(claim=claim, verdict="cannot decide", evidence=why, outcome=outcome)
    return JudgedClaim(claim=claim, verdict="undecided", evidence=evidence, outcome=outcome)


def _tested_late(comparison: Comparison, claim: Claim, num_pairs: int) -> tuple[Verdict, str] | None:
    """The verdict where runs of both methods are there, but a first test came after the budget; else None."""
    first, second = ({run.replicate for run in comparison.runs_of(label)} for label in (claim.first, claim.second))
    number = len(first & second)
    if claim.figure not in COSTS or number == num_pairs:
        return None
    late = f"in {number - num_pairs} of {counted(number, 'pair')} the first test came after the cheaper run's end"
    return "not tested early enough", f"{late}; test after every round: --set evaluation.every=1"


def _obstacle(comparison: Comparison, scores: DataFrame, claim: Claim, file: Registered) -> tuple[Verdict, str] | None:
    """The verdict without a test, and its reason; None where the claim can be tested."""
    if scores.empty:
        return "no runs", f"needs runs of {claim.first} and {claim.second} with {FIGURE_TEXT[claim.figure]}"
    begun = (
        min(comparison.runs[i].run.created for i in both)
        for both in zip(scores["run"], scores["run_second"], strict=True)
    )
    if early := sum(at < file.at for at in begun):
        return "refused", f"{early} of {len(scores)} pairs were begun before the claims were named ({file.at})"
    planned = file.planned_pairs(claim.first, claim.second)
    if missing := len(planned - set(scores[KEY].itertuples(index=False, name=None))):
        done = f"{len(planned) - missing} of {len(planned)} planned pairs are finished"
        return "not finished", f"{done}; judged once, when all are there"
    if reason := too_short(comparison, scores, claim):
        return "too short to judge", reason
    if not claim.same_work and have_equal_work(comparison, scores):
        same = "both methods' clients trained and sent the same groups in every round"
        return "refused", f"{same}; a claim about something else needs `same_work: true`, named beforehand"
    return None


def _units(outcome: Outcome) -> str:
    number = outcome.paired.num_pairs
    return f"{number} replicate means" if outcome.on_means else f"{number} paired runs"


def bound_text(claim: Claim, result: Paired) -> str:
    """One-sided 95 % bound of a claim with a margin, with as many digits as tell it from the margin; else empty."""
    if claim.margin is None or result.bound is None:
        return ""
    for digits in (1, 2, 3):
        shown = f"{result.bound:+.{digits}f}"
        if float(shown) != -claim.margin:
            break
    return shown


def _evidence(outcome: Outcome, claim: Claim, scores: DataFrame) -> str:
    design = f"{counted(scores['fold'].nunique(), 'fold')} x {counted(outcome.num_replicates, 'replicate')}"
    result = outcome.paired
    if result.mean == 0.0 and (scores["first"] == scores["second"]).all():
        return f"no difference at all in {outcome.num_pairs} paired runs ({design})"
    parts = [f"{claim.first} - {claim.second}: {result} points, {outcome.num_pairs} paired runs ({design})"]
    if bound := bound_text(claim, result):
        parts.append(f"one-sided 95 % bound {bound}, margin -{claim.margin:g}")
    parts.append(f"p = {outcome.p:.3g}")
    if outcome.on_means:
        parts.append(f"tested on {_units(outcome)}, since pairs of one fold or replicate are alike")
    return ", ".join(parts)


def last_line(comparison: Comparison, judgement: Judgement | None = None, problems: Sequence[str] = ()) -> str:
    """Sentence on what the runs decide about the claims that were named before them."""
    return " ".join(last_lines(comparison, judgement, problems))


def last_lines(
    comparison: Comparison, judgement: Judgement | None = None, problems: Sequence[str] = ()
) -> tuple[str, ...]:
    """``last_line`` in the parts that a reader looks at one by one: a line per verdict; one without claims."""
    mark = [] if comparison.runs[0].run.data_origin == "real" else ["SYNTHETIC data: nothing follows for methods."]
    told, speed = ([sentence] if sentence else [] for sentence in (described(comparison), faster(comparison)))
    if judgement is None:
        none = ["No claim was named before these runs: their differences are described, not tested."]
        return (" ".join([*mark, *(problems or none), *told, *speed]),)
    groups: dict[Verdict, list[JudgedClaim]] = {}
    for judged in judgement.claims:
        groups.setdefault(judged.verdict, []).append(judged)
    parts = [_group(verdict, groups[verdict]) for verdict in _ORDER if verdict in groups]
    number = len(judgement.claims)
    head = f"Of {number} claim{'s' if number > 1 else ''} named before the first run:"
    tested = any(judged.p_holm is not None for judged in judgement.claims) and judgement.num_claims > 1
    unlike = [f"p is adjusted over {judgement.num_claims} claims (Holm), intervals are not."] if tested else []
    fair = [f"Not tested: {sentence}" for sentence in told if comparison.is_at_rounds]
    return (
        " ".join([*mark, head]),
        *(f"{part};" for part in parts[:-1]),
        f"{parts[-1]}.",
        *unlike,
        *problems,
        *fair,
        *speed,
    )


_ORDER: tuple[Verdict, ...] = get_args(Verdict)


def _group(verdict: Verdict, claims: Sequence[JudgedClaim]) -> str:
    """``supported: v1 > fedavg in F1 (+3.1 [+1.0, +5.2])``; reasons instead where nothing was tested."""
    shown = []
    for judged in claims:
        if judged.outcome is None:
            shown.append(f"{judged.claim.brief} ({judged.evidence})")
        elif verdict == "cannot decide":
            units = f"{_units(judged.outcome)} are too few for any result, {judged.outcome.paired} points"
            shown.append(f"{judged.claim.brief} ({units})")
        else:
            result, p = judged.outcome.paired, f"adjusted p = {judged.p_holm:.2g}" if judged.p_holm is not None else ""
            bound = bound_text(judged.claim, result)
            least = f", at least {bound}" if bound else ""
            shown.append(f"{judged.claim.brief} ({result} points{least}, {p})")
    return f"{verdict}: {listed(shown)}"


NOTE = (
    "The unit is a paired run: both methods on the same fold, seed, start, data and devices. Where fold or replicate "
    "holds more than a tenth of the scatter of the differences, means of replicates are tested. `p` is of an exact "
    "sign-flip test (seeded draws above 32 pairs), two-sided, or one-sided where a claim names a margin. `p (Holm)` is "
    "the same, adjusted over all {} claims of the file; it decides. An interval in brackets is Student's 95 % interval "
    "of that difference alone, without the adjustment: it may leave out 0 where `p (Holm)` is above 0.05. Claims are "
    "about these subjects under new starts, not about new people; their F1 is that after the last round, when a method "
    "with a bootstrap has aggregated once more. They were named {}, before the first run."
)


def verdict_table(judgement: Judgement, slug: str) -> Table:
    """Table with one row per claim."""
    head = ("claim", "verdict", "p", "p (Holm)", "evidence")
    return Table(
        slug=slug,
        caption="Claims named before the first run.",
        head=head,
        rows=tuple(_row(judged) for judged in judgement.claims),
        notes=(NOTE.format(judgement.num_claims, judgement.at), *_names(judgement)),
        is_text=True,
    )


def _names(judgement: Judgement) -> list[str]:
    """Sentence with the titles of the presets that claims name by what one types, as rows of tables do."""
    labels = dict.fromkeys(label for judged in judgement.claims for label in (judged.claim.first, judged.claim.second))
    presets = dict.fromkeys(label.partition(" (")[0] for label in labels)
    titles = {name: DESCRIBED[name].title for name in presets if name in DESCRIBED}
    shown = [f"`{name}`: {title}" for name, title in titles.items() if with_title(name, title) != title]
    return [f"Names: {'; '.join(shown)}."] if shown else []


def _row(judged: JudgedClaim) -> Row:
    p = None if judged.outcome is None else judged.outcome.p
    cells = (
        Cell(text=judged.verdict, tone=_TONES.get(judged.verdict, "")),
        Cell(text=NONE if p is None else f"{p:.3g}", numbers={"p": p}),
        Cell(text=NONE if judged.p_holm is None else f"{judged.p_holm:.3g}", numbers={"p_holm": judged.p_holm}),
        Cell(text=judged.evidence),
    )
    # A sentence of its own says nothing of the rows' names, which `brief` has.
    name = f"{judged.claim.text} ({judged.claim.brief})" if judged.claim.text else judged.claim.brief
    return Row(name=name, cells=cells)


def scatter(judgement: Judgement) -> Paragraphs:
    """Paragraphs on the sources of every tested claim's scatter, and on the A/A rate of the same test."""
    lines = [
        f"{judged.claim.first} and {judged.claim.second}, {FIGURE_TEXT[judged.claim.figure]}: variance of the "
        f"{judged.outcome.shares}"
        for judged in judgement.claims
        if judged.outcome is not None and judged.outcome.shares is not None
    ]
    lines += [_rate(rate) for rate in judgement.rates]
    if not judgement.rates:
        lines.append(_NO_RATE)
    return Paragraphs(lines=tuple(lines), is_list=True)


_NO_RATE = (
    "A/A rate (how often the test calls a method unlike itself): none, no method has six pairs of its own replicates"
)


def _rate(rate: AaRate) -> str:
    interval = "" if rate.interval is None else f" [{100 * rate.interval[0]:.0f}, {100 * rate.interval[1]:.0f}]"
    return (
        f"A/A rate, {FIGURE_TEXT[rate.figure]}: the test called {rate.num_called} of {rate.num_tests} methods unlike "
        f"themselves (other replicates, p < {ALPHA}): {100 * rate.num_called / rate.num_tests:.0f} %{interval}, "
        "expected 5 %"
    )


# Points above guessing that a method has to reach before a difference between methods is worth a verdict.
_ABOVE_CHANCE = 5.0
_MIN_AA_UNITS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of one test."""

    paired: Paired
    """Mean and interval over the units that were tested."""
    p: float
    """Of the sign-flip test; one-sided against the margin where there is one."""
    sides: Sides
    num_pairs: int
    num_replicates: int
    on_means: bool
    """The units are means of replicates, since pairs depend on each other."""
    shares: VarianceShares | None
    """Where the scatter comes from; None below two folds and two complete replicates."""

    @property
    def smallest_p(self) -> float:
        """Smallest p that this number of units can give."""
        return smallest_p(self.paired.num_pairs, self.sides)


def run_pairs(comparison: Comparison, first: str, second: str, figure: Figure) -> DataFrame:
    """All pairs of two methods that have the figure, in order of replicate and fold."""
    return pairs(comparison.table, comparison.rounds, first, second, figure).sort_values(["repetition", "fold"])


def judge_pairs(scores: DataFrame, margin: float | None = None) -> Outcome:
    """Test of paired scores (points) by fold and replicate: two-sided, or one-sided against a margin.

    With a margin the hypothesis is that the first method is worse by the margin or more.
    """
    units = units_of(scores)
    result = paired(units.values, on_means=units.on_means)
    assert result is not None, "a test needs a pair"
    sides: Sides = 2 if margin is None else 1
    return Outcome(
        paired=result,
        p=result.p if margin is None else sign_flip([value + margin for value in units.values], sides=1),
        sides=sides,
        num_pairs=len(scores),
        num_replicates=scores["repetition"].nunique(),
        on_means=units.on_means,
        shares=units.shares,
    )


def too_short(comparison: Comparison, scores: DataFrame, claim: Claim) -> str:
    """Reason why nothing can be judged yet; empty where it can.

    Below three replicates, or where a method is less than five points above a model that knows nothing: one fixed
    answer, or guessing all classes alike.
    """
    number = scores["repetition"].nunique()
    if number < MIN_REPLICATES:
        return f"{number} replicate{'s' if number != 1 else ''}, expected {MIN_REPLICATES} or more"
    chances: dict[int, float] = {}
    for run in comparison.runs:
        if (chance := run.chance) is not None:
            chances.setdefault(run.replicate[0], 100 * chance)
    known = scores[scores["fold"].isin(list(chances))]
    for label, column in ((claim.first, "first"), (claim.second, "second")) if len(known) else ():
        score, chance = known[column].mean(), known["fold"].map(chances).mean()
        if score < chance + _ABOVE_CHANCE:
            return f"{label} has {score:.1f} %, less than {_ABOVE_CHANCE:g} points above guessing ({chance:.1f} %)"
    return ""


def have_equal_work(comparison: Comparison, scores: DataFrame) -> bool:
    """True where both methods' clients trained and sent the same groups in every round 1..R of every pair."""
    both = zip(scores["run"], scores["run_second"], strict=True)
    return all(comparison.runs[one].work == comparison.runs[two].work for one, two in both)


@dataclass(frozen=True, kw_only=True, slots=True)
class AaRate:
    """Rate at which the test calls a method different from itself: other replicates, the same test at level 0.05."""

    figure: Figure
    num_called: int
    """Tests with p below 0.05."""
    num_tests: int
    """Methods with at least six units; methods that train the same bits count once."""
    interval: tuple[float, float] | None
    """Clopper and Pearson's 95 %, as if methods were independent, which share seeds; None without scipy."""


def aa_rate(comparison: Comparison, figure: Figure) -> AaRate | None:
    """The A/A rate of a figure over all methods; None where no method has six units."""
    models: dict[frozenset[object], DataFrame] = {}
    for row in comparison.rows:
        runs = comparison.table[comparison.table["method"] == row.label]
        models.setdefault(frozenset(runs[[*KEY, "model_sha256"]].itertuples(index=False, name=None)), runs)
    outcomes = [o for runs in models.values() if (o := _aa_test(runs, comparison.rounds, figure)) is not None]
    if not outcomes:
        return None
    called = sum(o.p < ALPHA for o in outcomes)
    return AaRate(
        figure=figure, num_called=called, num_tests=len(outcomes), interval=rate_interval(called, len(outcomes))
    )


def _aa_test(runs: DataFrame, rounds: DataFrame, figure: Figure) -> Outcome | None:
    """A method against itself: first and second, third and fourth ... replicate of each rotation.

    Each fold of each two replicates is a pair. Replicates with other rotations differ in more than their seeds.
    """
    number = runs.groupby("rotation")["repetition"].rank(method="dense").astype(int) - 1
    numbered = runs.assign(two=number // 2)
    one, two = (numbered[number % 2 == side] for side in (0, 1))
    scores = scored(one, two, ["rotation", "two", "fold"], rounds, figure)
    outcome = judge_pairs(scores) if len(scores) else None
    return outcome if outcome is not None and outcome.paired.num_pairs >= _MIN_AA_UNITS else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    """Claims of a plan.

    Attributes:
        claims: the claims.
        text: content of their file.
        at: since when they have been there (UTC, ISO 8601).
        planned: replicates of each method that the plan has in the claims' data and split, with what they repeat.
    """

    claims: Claims
    text: str
    at: str
    planned: Mapping[str, Mapping[Replicate, Repetition]]

    @property
    def sha256(self) -> str:
        """Digest of the claims file."""
        return claims_digest(self.text.encode())

    def planned_pairs(self, first: str, second: str) -> frozenset[Replicate]:
        """The replicates that were planned for both methods."""
        return frozenset(self.planned.get(first, {}).keys() & self.planned.get(second, {}).keys())

    @property
    def committed(self) -> CommittedClaims:
        """The form in which a file of committed results keeps them."""
        planned = {
            name: tuple((*replicate, *repetition) for replicate, repetition in replicates.items())
            for name, replicates in self.planned.items()
        }
        return CommittedClaims(text=self.text, at=self.at, planned=planned)


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
    folders = [Path(folder) for folder in folders]
    files: dict[str, Registered] = {}
    problems: list[str] = []
    for path in dict.fromkeys(_plans(folders)):
        try:
            plan = read_plan_file(path)
            if plan.claims is not None:
                found = _registered(path.parent / CLAIMS_FILE, plan.claims, plan.cells)
                files.setdefault(found.sha256, found)
        except UserError as error:
            problems.append(str(error))
    for path in filter(is_committed, folders):
        if (kept := read_committed(path).claims) is not None:
            known_claims = _kept(path, kept)
            files.setdefault(known_claims.sha256, known_claims)
    known = Registry(files=tuple(files.values()), problems=tuple(problems))
    if known.num_claims <= MAX_CLAIMS:
        return known
    many = (
        f"{len(known.files)} claims files with {known.num_claims} claims stand on this page, expected at most "
        f"{MAX_CLAIMS}: none is judged; report one study at a time"
    )
    return Registry(problems=(*known.problems, many))


def _plans(folders: Iterable[Path]) -> Iterable[Path]:
    for folder in folders:
        yield from (path.resolve() for path in below(folder, PLAN_FILE))
        if (above := folder.resolve().parent / PLAN_FILE).exists():
            yield above


def _registered(path: Path, planned: PlannedClaims, cells: Sequence[PlannedCell]) -> Registered:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): no claim of it is judged; restore it") from error
    if claims_digest(content) != planned.sha256:
        raise UserError(
            f"{path}: was changed after the plan was made (sha256 {claims_digest(content)[:12]}, in the plan "
            f"{planned.sha256[:12]}): no claim of it is judged; restore the file"
        )
    claims = parse_claims(content, str(path))
    return Registered(claims=claims, text=content.decode(), at=planned.at, planned=planned_replicates(claims, cells))


def _kept(path: Path, kept: CommittedClaims) -> Registered:
    """The claims that committed results carry."""
    return Registered(
        claims=parse_claims(kept.text.encode(), f"{path}: claims"),
        text=kept.text,
        at=kept.at,
        planned={name: {row[:3]: row[3:] for row in rows} for name, rows in kept.planned.items()},
    )


def planned_replicates(claims: Claims, cells: Sequence[PlannedCell]) -> dict[str, dict[Replicate, Repetition]]:
    """Replicates by method of the planned cells that the claims are about."""
    planned = [cell for cell in cells if _is_about(claims, cell.config)]
    about = [(cell.method.name, cell.config) for cell in planned]
    replicates: dict[str, dict[Replicate, Repetition]] = {}
    for name, (_, config) in zip(variant_names(about, [cell.method for cell in planned]), about, strict=True):
        replicates.setdefault(name, {})[replicate_of(config)] = repetition_of(config)
    return replicates


def _is_about(claims: Claims, config: Mapping[str, JsonValue]) -> bool:
    """True for a run of the claims' data, split and further values; a search's cells only where the claims say so."""
    values = flat(config) | {"choice": choice_kind(config)}
    wanted = {"data.name": claims.data, "data.split": claims.split, "choice": "", **claims.where}
    return all(values.get(key) == value for key, value in wanted.items())
