"""``docs/results.md``: the whole study as one generated page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from relief_ray.report.compare import Comparison, by_setting, compare_runs
from relief_ray.report.diagnostics import sections
from relief_ray.report.facts import listed, mark
from relief_ray.report.labels import split_name
from relief_ray.report.load import Loaded, load_runs, text, whole
from relief_ray.report.paper import PaperCell, read_paper
from relief_ray.report.render import markdown, markdown_table
from relief_ray.report.surprises import surprises
from relief_ray.report.tables import NONE
from relief_ray.report.verdict import claims, last_line

WORDS = {"yes": "supported", "no": "**not supported**", "undecided": "undecided"}
# our preset, the paper's row
METHODS = (("fedavg", "FedAvg"), ("fedprox", "FedProx"), ("relief", "RELIEF"))
VARIANTS = (("relief", "V0"), ("v1", "V1"), ("v2", "V2"), ("v3", "V3"))


def study_markdown(folders: Iterable[Path], clock: str | None = None) -> str:
    """The page: settings, one section per experiment (data and split), claims, diagnostics, the paper beside it.

    Raises:
        UserError: nothing to read, or no complete run in an experiment.
    """
    runs = load_runs(folders)
    comparisons = [compare_runs(group, clock) for group in by_setting(runs)]
    parts = [
        "# Results",
        "Generated from run records by `relief_ray.report.study_markdown`; do not edit.",
        "## Settings",
        settings(runs),
        *(experiment(c) for c in comparisons),
        "## The paper beside it",
        beside(comparisons),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def settings(runs: Sequence[Loaded]) -> str:
    """What was run, where, with which versions."""
    return markdown_table(["setting", "value"], settings_rows(runs), numeric=False)


def settings_rows(runs: Sequence[Loaded]) -> list[list[str]]:
    """``settings`` as rows of words."""
    machines = _distinct(
        f"{r.run.machine.cpu}, {r.run.machine.num_cores} cores, {r.run.machine.num_threads} thread(s) per run"
        for r in runs
    )
    versions = _distinct(
        f"relief-ray {r.run.code_version} (sources {r.run.source_digest[:12]}), Python {r.run.machine.python}, "
        f"torch {r.run.machine.torch}, numpy {r.run.machine.numpy}"
        for r in runs
    )
    hours = sum(record.wall_s for r in runs for record in r.rounds) / 3600
    return [
        ["data", _distinct(f"{text(r.run, 'data.name')} ({r.run.data_origin})" for r in runs)],
        ["splits", _distinct(split_name(text(r.run, "data.split")) for r in runs)],
        ["folds", _distinct(r.replicate[0] for r in runs)],
        ["seeds", _distinct(r.replicate[2] for r in runs)],
        ["methods", _distinct(f"`{r.label}`" for r in runs)],
        ["rounds R", _distinct(r.planned for r in runs)],
        ["local epochs E", _distinct(whole(r.run, "training.epochs") for r in runs)],
        ["window stride", _distinct(f"{text(r.run, 'data.stride_s')} s" for r in runs)],
        ["missing modality", _distinct(text(r.run, "training.missing") for r in runs)],
        ["rounds between evaluations", _distinct(text(r.run, "evaluation.every") for r in runs)],
        ["engine", _distinct(f"{r.run.engine}, planned by `{r.run.planning_model}`" for r in runs)],
        ["machine", machines],
        ["versions", versions],
        ["computed", f"{len(runs)} runs, {sum(len(r.rounds) for r in runs)} rounds, {hours:.1f} process hours"],
    ]


def _distinct(values: Iterable[object]) -> str:
    return listed(dict.fromkeys(str(v) for v in values))


def experiment(comparison: Comparison) -> str:
    """One experiment: table, claims with their statistics, what surprised, diagnostics."""
    first = comparison.runs[0]
    title = f"{mark(first)}`{text(first.run, 'data.name')}`, {split_name(text(first.run, 'data.split'))}"
    odd = "\n".join(f"- {sentence}" for sentence in surprises(comparison))
    parts = [
        f"## {title}",
        markdown(comparison),
        "### Claims",
        "Paired differences by test subject, seeds averaged first; exact sign-flip test, Holm's correction over the "
        "claims that could be tested. Subjects of one fold share a model, so they are not fully independent.",
        claims_table(comparison),
        last_line(comparison),
        "### What surprised",
        odd or "Nothing.",
        "### Updates, per block and device type",
        sections(comparison),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part)


def claims_table(comparison: Comparison) -> str:
    """The claims with verdict and evidence."""
    rows = [
        [
            c.text,
            WORDS[c.supported] if c.is_tested else "no runs",
            NONE if c.p_holm is None else f"{c.p_holm:.3g}",
            c.evidence,
        ]
        for c in claims(comparison)
    ]
    return markdown_table(["claim", "verdict", "p (Holm)", "evidence"], rows, numeric=False)


def beside(comparisons: Sequence[Comparison]) -> str:
    """The paper's cells beside ours: other data, other rounds, so for orientation only."""
    paper = read_paper()
    ours = [
        f"ours: {text(c.runs[0].run, 'data.name')}, {split_name(text(c.runs[0].run, 'data.split'))}"
        for c in comparisons
    ]
    head = ["method", "paper", "PAMAP2 F1 %", "MHEALTH F1 %", "speedup", *(f"{o} F1 %, speedup" for o in ours)]
    rows = []
    for table, pairs, prefix in (("I", METHODS, ""), ("III", VARIANTS, "B1 ")):
        for mine, theirs in pairs:
            row = paper[table][theirs]
            cells = [row.cells[f"{prefix}{key}"] for key in ("PAMAP2 F1 (%)", "MHEALTH F1 (%)", "speedup")]
            where = f"Table {table}, row {row.row}"
            rows.append([f"`{mine}`", where, *(_printed(c) for c in cells), *(_ours(c, mine) for c in comparisons)])
    note = (
        "For orientation only: other data sets, splits that the paper does not state, 200 rounds of 5 epochs. "
        "No deviation is computed and no verdict rests on it."
    )
    return f"{note}\n\n{markdown_table(head, rows)}"


def _printed(cell: PaperCell) -> str:
    if cell.value is None:
        return NONE
    return str(cell.value) if cell.std is None else f"{cell.value}±{cell.std}"


def _ours(comparison: Comparison, label: str) -> str:
    row = comparison.row(label)
    if row is None or "f1_percent" not in row.stats:
        return NONE
    speedup = row.stats.get("speedup")
    return f"{row.stats['f1_percent'].mean:.1f}, {NONE if speedup is None else f'{speedup.mean:.2f}'}"
