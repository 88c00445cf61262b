"""`relief-ray plan-study`: how many paired runs are needed to find a difference, and which claims a plan can decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.commands.options import StudyQuestion
from actors.terminal.exit_codes import Result
from relief_ray.records.cells import CLAIMS_FILE, MAX_CLAIMS, figure_named, figure_text, read_claims
from relief_ray.report.claims import registry_of
from relief_ray.report.frames import Cells, read_cells
from relief_ray.report.power_analysis import ClaimPower, Scatter, claim_powers, scatter_of
from relief_ray.report.statistics import ALPHA, Sides, detectable, pairs_needed, power, smallest_p
from relief_ray.strategies import PROPOSED, REFERENCE
from relief_ray.studies.plan import Plan, row_of
from relief_ray.support.errors import UserError, counted
from relief_ray.support.text import filled, table

_DIFFERENCES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)


def plan_study_command(folders: Sequence[Path], question: StudyQuestion) -> Result:
    """Run `relief-ray plan-study`.

    Raises:
        UserError: neither runs nor a spread, both, an unknown figure, or scipy is missing.
    """
    if bool(folders) == (question.sd is not None):
        raise UserError("plan-study: expected folders of finished runs, or --sd POINTS, one of the two")
    if question.sd is not None:
        figure_named(question.figure, "--figure")
        if question.sd <= 0:
            raise UserError(f"--sd {question.sd:g}: expected points above 0")
    cells = read_cells(folders) if folders else None
    question = _completed(question, folders, cells)
    scatter = None if cells is None else _scatter(cells, question)
    if scatter is not None and scatter.sd == 0:
        raise UserError(
            f"plan-study: all {scatter.num_pairs} paired differences of {question.first} and {question.second} are the "
            "same, so they say nothing of scatter; expected runs that differ, or --sd POINTS"
        )
    facts = _study_facts(question, scatter)
    return Result(_study_lines(question, scatter, facts), facts)


def _completed(question: StudyQuestion, folders: Sequence[Path], cells: Cells | None) -> StudyQuestion:
    """The question with the pair and the number of claims that the folders name, where the user named none."""
    registry = registry_of(folders)
    claim = next((one for file in registry.files for one in file.claims.claims), None)
    ran = [] if cells is None else [name for name in cells.runs["method"].unique() if name != REFERENCE]
    usual = (claim.first, claim.second) if claim else (ran[0] if len(ran) == 1 else PROPOSED, REFERENCE)
    first, second = question.first or usual[0], question.second or usual[1]
    return replace(question, first=first, second=second, claims=question.claims or registry.num_claims)


def _scatter(cells: Cells, question: StudyQuestion) -> Scatter:
    assert question.first is not None and question.second is not None
    if question.setting is not None:
        titles, wanted = cells.runs["setting"].str.lower(), question.setting.lower()
        chosen = titles == wanted if (titles == wanted).any() else titles.str.contains(wanted, regex=False)
        cells = replace(cells, runs=cells.runs[chosen])
    figure = figure_named(question.figure, "--figure", cells.metrics)
    return scatter_of(cells, question.first, question.second, figure)


def _study_facts(question: StudyQuestion, scatter: Scatter | None) -> dict[str, Any]:
    """All answers: power of the planned number, runs that are needed, and the smallest reachable adjusted p."""
    sd = question.sd if scatter is None else scatter.sd
    assert sd is not None
    per_unit = scatter.num_folds if scatter is not None and scatter.on_means else 1
    units = question.pairs // per_unit
    # One-sided where a margin is given.
    sides: Sides = 2 if question.margin is None else 1
    # Level of the strictest step of Holm's correction.
    num_claims = question.claims or MAX_CLAIMS
    alpha = ALPHA / num_claims

    def needed(difference: float, scatter_sd: float = sd) -> int | None:
        number = pairs_needed(difference, scatter_sd, alpha, sides, question.power)
        return None if number is None else number * per_unit

    interval = None if scatter is None else scatter.interval
    asked = question.difference if question.margin is None else question.margin
    return {
        "event": "study",
        "sd": sd,
        "sd_interval": interval,
        "unit": "replicate mean" if per_unit > 1 else "paired run",
        "pairs": question.pairs,
        "units": units,
        "claims": num_claims,
        "sides": sides,
        "difference": asked,
        "power": power(units, asked, sd, alpha, sides),
        "pairs_needed": needed(asked),
        "pairs_needed_interval": interval and [needed(asked, end) for end in interval],
        "data": [] if scatter is None else scatter.origins,
        "wanted_power": question.power,
        "detectable": detectable(units, sd, alpha, sides, question.power),
        "smallest_adjusted_p": smallest_p(units, sides, num_claims),
        "table": [
            {"difference": d, "pairs_needed": needed(d), "power": power(units, d, sd, alpha, sides)}
            for d in _DIFFERENCES
        ],
    }


def _study_lines(question: StudyQuestion, scatter: Scatter | None, facts: Mapping[str, Any]) -> list[str]:
    """The take-home sentence, then a table by difference, then where the scatter was taken from."""
    asked, wanted = facts["difference"], 100 * question.power
    what = f"a difference of {asked:g} points"
    if question.margin is not None:
        what = f"that one of two equal methods is not worse by {asked:g} points"
    if (least := facts["smallest_adjusted_p"]) > ALPHA:
        head = f"This study cannot decide: {question.pairs} paired runs give no adjusted p below {least:.2g}."
    else:
        head = f"{question.pairs} paired runs find {what} in {100 * facts['power']:.0f} of 100 studies."
    smallest, sides = facts["detectable"], "two" if facts["sides"] == 2 else "one"
    lines = [
        head,
        f"{_number(facts['pairs_needed']).capitalize()} paired runs find it in {wanted:.0f} of 100"
        f"{_interval_text(facts)}.",
        "" if smallest is None else f"{question.pairs} find {smallest:.1f} points in {wanted:.0f} of 100.",
        f"Test: {sides}-sided, level 0.05 over {counted(facts['claims'], 'claim')} "
        "(the strictest step of Holm's correction), scatter "
        f"{facts['sd']:.1f} points a {facts['unit']}.",
    ]
    rows = [
        [
            f"{r['difference']:g}",
            "-" if r["pairs_needed"] is None else str(r["pairs_needed"]),
            f"{100 * r['power']:.0f}",
        ]
        for r in facts["table"]
    ]
    head_row = ["points", f"paired runs for {wanted:.0f} %", f"found by {question.pairs}, %"]
    said = [filled(line) for line in lines if line]
    return [*said, "", table(head_row, rows, left=0), *map(filled, _source(question, scatter))]


def _number(pairs: object) -> str:
    return "more than 100,000" if pairs is None else str(pairs)


def _interval_text(facts: Mapping[str, Any]) -> str:
    """``; 41 to 389 do if the scatter is 3.7 or 11.4 points, its 95 % interval``, where it was taken from runs."""
    if facts["sd_interval"] is None:
        return ""
    low, high = map(_number, facts["pairs_needed_interval"])
    ends = "{:.1f} or {:.1f}".format(*facts["sd_interval"])
    return f"; {low} to {high} do if the scatter is {ends} points, the ends of its 95 % interval"


def _source(question: StudyQuestion, scatter: Scatter | None) -> list[str]:
    """Lines on the records behind the scatter."""
    if scatter is None:
        return []
    interval = "" if scatter.interval is None else " (95 % interval {:.1f} to {:.1f})".format(*scatter.interval)
    data = "" if scatter.origins == ("real",) else f" on {' and '.join(scatter.origins)} data"
    figure = figure_text(question.figure)
    lines = [
        "",
        f"Scatter: {scatter.sd:.1f} points{interval}, from {scatter.num_pairs} paired runs of {question.first} and "
        f"{question.second}{data} ({figure}, mean difference {scatter.mean:+.1f}).",
    ]
    if scatter.shares is not None:
        lines.append(f"Variance of the {scatter.shares}.")
    if scatter.is_unsure:
        lines.append(
            f"Pairs may depend on each other; {scatter.num_replicates} replicates cannot tell, a pilot of six could."
        )
    if scatter.on_means:
        lines.append(f"Pairs depend on each other: the unit is a replicate's mean, {scatter.num_folds} runs each.")
    return lines


def powers_of(plan: Plan) -> list[ClaimPower]:
    """Return the prospects of each of the plan's claims, before their file is written or after."""
    path = plan.claims_file or (plan.out / CLAIMS_FILE if plan.claims is not None else None)
    return [] if path is None else claim_powers(read_claims(path)[0], [row_of(cell) for cell in plan.cells])


def claims_text(found: Sequence[ClaimPower]) -> str:
    """Lines on a plan's claims for `--dry-run`: pairs, what they can find, or that they cannot decide."""
    judged = [_line(o) for o in found if o.num_pairs]
    head = f"\n\nclaims: {len(judged)}, judged over paired runs"
    rest = [f"  {sentence}" for sentence in _not_judged(found)]
    return "" if not found else "\n".join([head, *(filled(line, rest="    ") for line in [*judged, *rest])])


def _not_judged(claim_powers: Sequence[ClaimPower]) -> list[str]:
    """One sentence with all claims about methods that the plan has no runs of; none where there is no such claim."""
    unplanned = [o for o in claim_powers if not o.num_pairs]
    briefs = "; ".join(o.claim.brief for o in unplanned)
    return [f"not judged: {briefs} ({unplanned[0].verdict})"] if unplanned else []


def cannot_decide(plan: Plan) -> list[str]:
    """A sentence for each claim that the plan's runs will not decide, whatever they give."""
    found = powers_of(plan)
    undecided = [f"{o.claim.brief}: {o.verdict}" for o in found if o.verdict and o.num_pairs]
    return [*undecided, *_not_judged(found)]


def _line(claim_power: ClaimPower) -> str:
    folds, replicates = counted(claim_power.num_folds, "fold"), counted(claim_power.num_replicates, "replicate")
    design = f"{claim_power.num_pairs} pairs ({folds} x {replicates})"
    if claim_power.verdict:
        return f"  {claim_power.claim.brief}: {design}; {claim_power.verdict}"
    parts = [design, f"smallest adjusted p {claim_power.smallest_p:.2g}"]
    if claim_power.detectable_sds is not None:
        parts.append(f"finds {claim_power.detectable_sds:.2f} standard deviations of a paired difference in 80 of 100")
    if claim_power.smallest_p_means > ALPHA:
        parts.append(f"means of replicates alone cannot decide (adjusted p {claim_power.smallest_p_means:.2g} at best)")
    return f"  {claim_power.claim.brief}: {'; '.join(parts)}"


def claims_facts(found: Sequence[ClaimPower]) -> list[dict[str, object]]:
    """``claims_text`` as JSON."""
    return [
        {
            "claim": claim_power.claim.brief,
            "pairs": claim_power.num_pairs,
            "folds": claim_power.num_folds,
            "replicates": claim_power.num_replicates,
            "smallest_adjusted_p": claim_power.smallest_p,
            "smallest_adjusted_p_of_means": claim_power.smallest_p_means,
            "detectable_sds": claim_power.detectable_sds,
            "cannot_decide": claim_power.verdict or None,
        }
        for claim_power in found
    ]
