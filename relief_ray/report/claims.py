"""Verdicts on the paper's claims: seven claims named beforehand, one rule for all of them.

A claim about F1 is one paired comparison of methods. It is *supported* where the difference is positive and Holm's
adjusted p is below 0.05, *not supported* (``no``) where it is negative and that p is below 0.05, else *undecided*. The
seventh claim is arithmetic on the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from relief_ray.errors import listed
from relief_ray.report.comparison import Comparison, difference
from relief_ray.report.document import NONE, Cell, Paragraphs, Row, Table, Tone
from relief_ray.report.experiments import Experiment
from relief_ray.report.paper import V0, V1, V2, V3
from relief_ray.report.statistics import ALPHA, Paired, holm, smallest_p
from relief_ray.report.summary import RunSummary
from relief_ray.strategies import REFERENCE

Supported = Literal["yes", "no", "undecided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One claim with its verdict.

    Attributes:
        text: the claim in a sentence.
        brief: its short form.
        supported: the verdict.
        evidence: the figures behind it, or the runs that are needed.
        p: of the paired test; None where none was made.
        p_holm: the same, adjusted over the claims that could be tested.
        direction: sign of the difference.
        is_tested: the runs that it needs are there.
        is_simulated: arithmetic of a cost model, which no run could refute as it does an F1.
    """

    text: str
    brief: str
    supported: Supported
    evidence: str
    p: float | None = None
    p_holm: float | None = None
    direction: int = 0
    is_tested: bool = True
    is_simulated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    text: str
    brief: str
    pair: tuple[str, str]
    is_rare: bool = False


PLANS = (
    _Plan(
        text="cohort-wise aggregation alone (V1) has a higher F1 than FedAvg",
        brief="V1 > FedAvg in F1",
        pair=(V1, REFERENCE),
    ),
    _Plan(
        text="cohort-wise aggregation (V1) beats dilution (FedAvg) on the rare modality's F1",
        brief="V1 > FedAvg in rare-modality F1",
        pair=(V1, REFERENCE),
        is_rare=True,
    ),
    _Plan(
        text="the same with elastic training: V0 beats V2 with V0's mandatory blocks on the rare modality's F1",
        brief="V0 > V2 with mandatory blocks in rare-modality F1",
        pair=(V0, "v2_mandatory"),
        is_rare=True,
    ),
    _Plan(
        text="RELIEF (V0) has a higher F1 on the rare modality than FedAvg, the paper's headline",
        brief="V0 > FedAvg in rare-modality F1",
        pair=(V0, REFERENCE),
        is_rare=True,
    ),
    _Plan(text="V0 has a higher F1 than V2 (no cohort-wise aggregation)", brief="V0 > V2 in F1", pair=(V0, V2)),
    _Plan(text="V2 has a higher F1 than V3 (random allocation)", brief="V2 > V3 in F1", pair=(V2, V3)),
)


def claims(comparison: Comparison) -> list[Claim]:
    """All claims, in the order in which they are named."""
    (judged,) = page_claims([comparison])
    return judged


def page_claims(comparisons: Sequence[Comparison]) -> list[list[Claim]]:
    """Claims of several settings, all tests corrected together: eight families would have eight chances.

    No setting is spared, since which one comes first is chosen by who names the folders.
    """
    raw = [[_judge(comparison, plan) for plan in PLANS] for comparison in comparisons]
    strict = iter(_corrected([claim for setting in raw for claim in setting]))
    judged = [[next(strict) for _ in setting] for setting in raw]
    return [[*setting, _faster(c)] for setting, c in zip(judged, comparisons, strict=True)]


def _corrected(raw: Sequence[Claim]) -> list[Claim]:
    """The claims with their verdicts, Holm's correction over those that could be tested."""
    adjusted = iter(holm([c.p if c.p is not None else 1.0 for c in raw if c.is_tested]))
    return [_decide(c, next(adjusted)) if c.is_tested else c for c in raw]


def _judge(comparison: Comparison, plan: _Plan) -> Claim:
    first, second = plan.pair
    result = difference(comparison.summaries, first, second, _rare if plan.is_rare else _all)
    if result is None:
        rare = " on a fleet with a rare modality" if plan.is_rare else ""
        return Claim(
            text=plan.text,
            brief=plan.brief,
            supported="undecided",
            evidence=f"needs runs of {first} and {second}{rare}",
            is_tested=False,
        )
    return Claim(
        text=plan.text,
        brief=plan.brief,
        supported="undecided",
        evidence=f"{first} - {second}: {_sentence(result)}",
        p=result.p,
        direction=(result.mean > 0) - (result.mean < 0),
    )


def _all(summary: RunSummary) -> dict[str, float]:
    return dict(summary.by_subject)


def _rare(summary: RunSummary) -> dict[str, float]:
    return dict(summary.last.f1_rare_by_subject)


def _sentence(paired: Paired) -> str:
    if paired.mean == 0.0 and paired.low == paired.high == 0.0:
        return f"no difference at all in {paired.num_subjects} subjects"
    detectable = "" if paired.detectable is None else f", smallest detectable difference {paired.detectable:.1f}"
    return f"{paired} points over {paired.num_subjects} subjects, p = {paired.p:.3g}{detectable}"


def _decide(claim: Claim, p_holm: float) -> Claim:
    verdict: Supported = "undecided"
    if p_holm < ALPHA and claim.direction:
        verdict = "yes" if claim.direction > 0 else "no"
    return replace(claim, supported=verdict, p_holm=p_holm)


def _faster(comparison: Comparison) -> Claim:
    statement = "RELIEF (V0) shortens rounds and saves energy (simulated)"
    needed = f"needs runs of {V0}"
    missing = Claim(
        text=statement, brief=statement, supported="undecided", evidence=needed, is_tested=False, is_simulated=True
    )
    row = comparison.row(V0)
    if row is None or "speedup" not in row.stats:
        return missing
    speedup, saved = row.stats["speedup"].mean, row.stats["energy_saved_percent"].mean
    verdict: Supported = "yes" if speedup > 1 and saved > 0 else "no" if speedup < 1 and saved < 0 else "undecided"
    figures = f"{speedup:.2f}x, {saved:.0f} % fewer joules per round"
    return replace(
        missing,
        brief=f"RELIEF (V0) shortens rounds and saves energy (simulated: {figures})",
        supported=verdict,
        evidence=f"{figures} by the clock `{comparison.clock}`; arithmetic, no test",
        is_tested=True,
    )


def last_line(comparison: Comparison, judged: Sequence[Claim] | None = None, family: str = "") -> str:
    """Sentence on the claims that the runs support, speak against, and cannot decide, and why.

    ``judged``: the claims where they were corrected in a larger ``family``, which the sentence then names.
    """
    verdicts = claims(comparison) if judged is None else judged
    yes, no, open_, absent = (
        [c.brief for c in verdicts if c.is_tested and c.supported == "yes"],
        [c.brief for c in verdicts if c.is_tested and c.supported == "no"],
        [c.brief for c in verdicts if c.is_tested and c.supported == "undecided"],
        [c.brief for c in verdicts if not c.is_tested],
    )
    parts = [f"supports that {listed(yes)}" if yes else "supports none of the paper's claims"]
    parts.append(f"speaks against {listed(no)}" if no else "speaks against none")
    parts += [f"cannot decide whether {listed(open_)} ({_why(comparison, family)})"] if open_ else []
    parts += [f"holds no runs to judge {listed(absent)}"] if absent else []
    return f"{_origin(comparison)} {', '.join(parts[:-1])} and {parts[-1]}."


def _origin(comparison: Comparison) -> str:
    real = comparison.runs[0].run.data_origin == "real"
    return "This run" if real else "This run, on SYNTHETIC data,"


def _why(comparison: Comparison, family: str) -> str:
    n = len(comparison.subjects)
    least = smallest_p(n)
    subjects = f"{n} test subject{'s' if n != 1 else ''}"
    if least >= ALPHA:
        return f"{subjects}: no paired test can fall below p = {least:.2g}"
    return f"{subjects}, sign-flip tests, Holm-corrected{family}"


TONES: Mapping[Supported, Tone] = {"yes": "good", "no": "bad", "undecided": ""}

WORDS: Mapping[Supported, str] = {"yes": "supported", "no": "not supported", "undecided": "undecided"}

NOTE = (
    "A claim about F1 is one paired comparison by test subject, seeds averaged first: supported where the difference "
    "is positive and Holm's adjusted p (exact sign-flip test) is below 0.05, not "
    "supported where it is negative and that p is. Subjects of one fold share a model, so they are not fully "
    "independent."
)

USUAL = "The paper's fleet, learning rate, batch and missing modality."

OTHER = "Not the paper's own setting: {}."

FAMILY = "Holm's correction is over all {} F1 tests of this page, whatever their setting and order: one family."


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A setting's claims after the correction over the page's ``num_tests`` tests; ``num_settings``: theirs."""

    claims: Sequence[Claim]
    num_tests: int
    num_settings: int

    @property
    def family(self) -> str:
        """Half-sentence that names the tests over which Holm's correction runs; empty for one setting."""
        return "" if self.num_settings == 1 else f" over the page's {self.num_tests} tests"


def judge(experiments: Sequence[Experiment]) -> dict[int, Judged]:
    """The verdicts of every setting with at least two methods, by its number in the report (from 1)."""
    usable = [(i, e.main) for i, e in enumerate(experiments, 1) if e.main is not None and len(e.main.rows) > 1]
    judged = page_claims([c for _, c in usable])
    tests = sum(c.p is not None for claims in judged for c in claims)
    return {
        i: Judged(claims=claims, num_tests=tests, num_settings=len(usable))
        for (i, _), claims in zip(usable, judged, strict=True)
    }


def verdict_table(experiment: Experiment, judged: Judged, slug: str) -> Table:
    """Table with one row per claim."""
    rows = tuple(_row(c) for c in judged.claims)
    place = OTHER.format(", ".join(experiment.unusual)) if experiment.unusual else USUAL
    caption = "The paper's claims, named before the runs."
    head = ("claim", "verdict", "p (Holm)", "evidence")
    notes = (f"{place} {FAMILY.format(judged.num_tests)}", NOTE)
    return Table(slug=slug, caption=caption, head=head, rows=rows, notes=notes, is_text=True)


def _row(claim: Claim) -> Row:
    verdict = _verdict(claim)
    p = Cell(
        text=NONE if claim.p_holm is None else f"{claim.p_holm:.3g}", numbers={"p": claim.p, "p_holm": claim.p_holm}
    )
    return Row(name=claim.text, cells=(verdict, p, Cell(text=claim.evidence)))


def _verdict(claim: Claim) -> Cell:
    """Verdict in words; simulated figures get no colour, since a cost model's arithmetic is no test of the paper."""
    if not claim.is_tested:
        return Cell(text="no runs", tone="gap")
    if claim.is_simulated:
        return Cell(text=f"simulated: {WORDS[claim.supported]}")
    return Cell(text=WORDS[claim.supported], tone=TONES[claim.supported])


def sentence(comparison: Comparison, judged: Judged) -> Paragraphs:
    """The verdict in one sentence."""
    return Paragraphs(lines=(last_line(comparison, judged.claims, judged.family),))
