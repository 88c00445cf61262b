"""Verdicts on claims that were named before the first run: one rule for all of them, Holm's correction over the file.

A claim is *supported* where Holm's adjusted p is below 0.05 and the difference has its sign (with a margin: where the
one-sided test rejects that the first method is worse by the margin), *contradicted* where a two-sided test finds the
other sign, else *undecided*. What cannot be tested says why: a study that no result could decide, runs that are too
short, methods that did the same work, runs that are missing or were there before the claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from relief_ray.records.claims import FIGURE_TEXT, Claim, Claims
from relief_ray.report.comparison import Comparison
from relief_ray.report.document import Paragraphs
from relief_ray.report.headline import described, faster
from relief_ray.report.registered import Registered, Registry, is_about
from relief_ray.report.statistics import ALPHA, Paired, holm
from relief_ray.report.testing import (
    AaRate,
    Outcome,
    RunPair,
    aa_rate,
    have_equal_work,
    judge_pairs,
    run_pairs,
    too_short,
)
from relief_ray.strategies import DESCRIBED
from relief_ray.support.errors import counted, listed
from relief_ray.support.table import NONE, Cell, Row, Table, Tone
from relief_ray.support.text import with_title

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
        found = [(i, c) for i, c in enumerate(comparisons) if c and is_about(file.claims, c.runs[0].run.config)]
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
    pairs = run_pairs(comparison, claim.first, claim.second, claim.figure)
    obstacle = _tested_late(comparison, claim, pairs) or _obstacle(pairs, claim, file)
    if obstacle is not None:
        return JudgedClaim(claim=claim, verdict=obstacle[0], evidence=obstacle[1])
    outcome = judge_pairs(pairs, claim.margin)
    least = min(1.0, num_claims * outcome.smallest_p)
    evidence = _evidence(outcome, claim, pairs)
    if least > ALPHA:
        why = f"this study cannot decide: {_units(outcome)} give no adjusted p below {least:.2g}; {evidence}"
        return JudgedClaim(claim=claim, verdict="cannot decide", evidence=why, outcome=outcome)
    return JudgedClaim(claim=claim, verdict="undecided", evidence=evidence, outcome=outcome)


def _tested_late(comparison: Comparison, claim: Claim, pairs: Sequence[RunPair]) -> tuple[Verdict, str] | None:
    """The verdict where runs of both methods are there, but a first test came after the budget; else None."""
    if claim.figure not in ("f1_at_seconds", "f1_at_joules"):
        return None
    first, second = ({run.replicate for run in comparison.runs_of(label)} for label in (claim.first, claim.second))
    number = len(first & second)
    if number == len(pairs):
        return None
    late = f"in {number - len(pairs)} of {counted(number, 'pair')} the first test came after the cheaper run's end"
    return "not tested early enough", f"{late}; test after every round: --set evaluation.every=1"


def _obstacle(pairs: Sequence[RunPair], claim: Claim, file: Registered) -> tuple[Verdict, str] | None:
    """The verdict without a test, and its reason; None where the claim can be tested."""
    if not pairs:
        return "no runs", f"needs runs of {claim.first} and {claim.second} with {FIGURE_TEXT[claim.figure]}"
    early = [p for p in pairs if min(p.first.run.created, p.second.run.created) < file.at]
    if early:
        return "refused", f"{len(early)} of {len(pairs)} pairs were begun before the claims were named ({file.at})"
    planned = file.planned_pairs(claim.first, claim.second)
    if missing := len(planned - {p.first.replicate for p in pairs}):
        done = f"{len(planned) - missing} of {len(planned)} planned pairs are finished"
        return "not finished", f"{done}; judged once, when all are there"
    if reason := too_short(pairs):
        return "too short to judge", reason
    if not claim.same_work and have_equal_work(pairs):
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


def _evidence(outcome: Outcome, claim: Claim, pairs: Sequence[RunPair]) -> str:
    folds = len({p.fold for p in pairs})
    design = f"{counted(folds, 'fold')} x {counted(outcome.num_replicates, 'replicate')}"
    result = outcome.paired
    if result.mean == 0.0 and not any(p.scores[0] - p.scores[1] for p in pairs):
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
    return (" ".join([*mark, head]), *(f"{part};" for part in parts[:-1]), f"{parts[-1]}.",
            *unlike, *problems, *fair, *speed)  # fmt: skip


_ORDER: tuple[Verdict, ...] = (
    "supported", "contradicted", "undecided", "cannot decide", "too short to judge", "not finished", "refused",
    "not tested early enough", "no runs",
)  # fmt: skip


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
