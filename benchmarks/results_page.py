"""Writes the result tables of docs/ from committed results: nothing is copied by hand.

    python -m benchmarks.results_page --write

Needs no data and trains nothing. A test compares the pages with the records (`tests/benchmarks/test_results_page.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from benchmarks import tuned as search
from benchmarks.frontier import SCORES, page_table
from benchmarks.marked import filled, table
from benchmarks.scores import read
from benchmarks.study_remarks import surprises
from relief_ray.records.cells import figure_text
from relief_ray.report.claims import ClaimResults, bound_text, judge, registry_of
from relief_ray.report.comparison import Comparison, MethodResult, by_setting, compare_runs
from relief_ray.report.remarks import stand_ins
from relief_ray.report.runs import Loaded, Replicate, read_small, take_inventory
from relief_ray.report.statistics import paired
from relief_ray.report.tables.columns import LINK

ROOT = Path(__file__).parent.parent
STUDY = Path("results/dsa_study")
CANDIDATE = Path("results/frontier_test")
PLUS = Path("results/plus")
PLUS_PILOT = Path("results/plus_pilot")
PLUS_PARTS = Path("results/plus_parts")
# RELIEF+ in settings other than the study's: folders of committed runs.
PLUS_ELSEWHERE = (Path("results/plus_elsewhere"), Path("results/plus_mhealth"))
# The same methods with an optimizer and a rate of their own, and those without that `TABLE_ONE` has at another length.
TUNED = Path("results/dsa_tuned")
SHORT_RUNS = Path("results/dsa_short")
COUPLING = Path("results/dsa_coupling")
SENSITIVITY = Path("results/dsa_sensitivity")
MOMENT = Path("results/moment")
# Setting of Table I's methods, and the folder of its committed runs.
TABLE_ONE: Mapping[str, Path] = {
    "held out": Path("results/dsa_methods"),
    "within": Path("results/dsa_methods_within"),
}
NAMES: Mapping[str, str] = {
    "fedavg": "FedAvg",
    "relief": "RELIEF (V0)",
    "relief (slots_slowest=3)": "RELIEF, 3 groups for the slowest",
    "relief (fill=time)": "RELIEF, budget by time",
    "v1": "V1: no budget",
    "v2": "V2: no cohorts",
    "v3": "V3: random groups",
    "v2_mandatory": "`v2_mandatory`: V2 with own blocks",
    "v3_mandatory (slots_slowest=3)": "`v3_mandatory`: random groups, 3 for the slowest",
}
# Page of docs/strategies, and the labels of the methods that it describes.
CARDS: Mapping[str, Sequence[str]] = {
    "fedavg": ["fedavg"],
    "fedprox": ["fedprox"],
    "fedel": ["fedel"],
    "fedicu": ["FedICU (reconstructed)"],
    "darkdistill": ["darkdistill"],
    "harmony": ["harmony"],
    "pilot": ["pilot"],
    "fedsa_lora": ["fedsa_lora"],
    "helora": ["helora"],
    "fedlease": ["fedlease"],
    "relief": ["relief"],
    "bounds": ["central", "local", "full_only", "drop_slow"],
}
_PAIR: Mapping[str, str] = {
    "fedavg": "FedAvg, SGD",
    "v2_mandatory (slots_slowest=3)": "the candidate, SGD",
}
_FORMATS: Mapping[str, str] = {"": "", "-int8": ", int8 and float16"}
_EPOCHS: Mapping[int, str] = {2: "2 epochs", 1: "1 epoch"}
_PILOT: Mapping[str, str] = {
    "fedavg": "FedAvg, 5 epochs",
    "fedavg (int8)": f"FedAvg, 5 epochs{_FORMATS['-int8']}",
    **{f"fedavg (e{n}{end})": f"FedAvg, {e}{coded}" for n, e in _EPOCHS.items() for end, coded in _FORMATS.items()},
    **{f"v2_mandatory (until5{end})": f"own reach, epochs by T\\*{coded}" for end, coded in _FORMATS.items()},
    **{f"v1 (reach{n}{end})": f"own reach, {e}{coded}" for n, e in _EPOCHS.items() for end, coded in _FORMATS.items()},
    **{f"v1 (zero1{end})": f"own reach, 1 epoch{coded}, features 0" for end, coded in _FORMATS.items()},
}
_CODED = _FORMATS["-int8"]
_PLUS: Mapping[str, str] = {
    "fedavg": "FedAvg, 5 epochs",
    "fedavg (e1-int8)": f"FedAvg, 1 epoch{_CODED}",
    "relief_plus (int8)": f"RELIEF+{_CODED}",
}
# Methods whose costs by format have a table of their own.
_BY_FORMAT: Mapping[str, str] = {
    "fedavg": "FedAvg, 5 epochs",
    "fedavg (int8)": f"FedAvg, 5 epochs{_CODED}",
    "fedavg (e1)": "FedAvg, 1 epoch",
    "fedavg (e1-int8)": f"FedAvg, 1 epoch{_CODED}",
    "relief": "RELIEF (V0), 5 epochs",
    "relief (int8)": f"RELIEF (V0), 5 epochs{_CODED}",
    "relief_plus": "RELIEF+ (own reach, 1 epoch)",
    "relief_plus (int8)": f"RELIEF+{_CODED}",
}
_PARTS: Mapping[str, str] = {
    **_BY_FORMAT,
    "relief (groups-cohort)": "groups by T\\*, mean of cohorts",
    "relief (epochs-cohort)": "epochs by T\\*, mean of cohorts",
    "v1 (none-cohort)": "no budget, mean of cohorts",
    "v2_mandatory (groups-participants)": "groups by T\\*, mean of all",
    "v2_mandatory (epochs-participants)": "epochs by T\\*, mean of all",
    "v1 (none-participants)": "no budget, mean of all",
    "v2_mandatory (until-int8)": f"epochs by T\\*, mean of all{_CODED}",
    "v2_mandatory (until-late-int8)": f"the same, by the T\\* of float32{_CODED}",
    "fedprox": "FedProx, epochs by T\\*",
    "fednova": "FedNova, epochs by T\\*",
}
# What one part changes in ``plus_parts``: in words, and the labels of the runs with it and without it.
_STEPS: Sequence[tuple[str, str, str]] = (
    ("epochs in place of groups by T\\*, mean of cohorts", "relief (epochs-cohort)", "relief (groups-cohort)"),
    (
        "epochs in place of groups by T\\*, mean of all",
        "v2_mandatory (epochs-participants)",
        "v2_mandatory (groups-participants)",
    ),
    ("mean of all in place of cohorts, groups by T\\*", "v2_mandatory (groups-participants)", "relief (groups-cohort)"),
    ("mean of all in place of cohorts, epochs by T\\*", "v2_mandatory (epochs-participants)", "relief (epochs-cohort)"),
    ("mean of all in place of cohorts, no budget", "v1 (none-participants)", "v1 (none-cohort)"),
    ("own reach comes down in place of the whole model, V0", "relief (groups-cohort)", "relief"),
    ("one epoch in place of epochs by T\\*", "relief_plus", "v2_mandatory (epochs-participants)"),
    (f"one epoch in place of epochs by T\\*{_CODED}", "relief_plus (int8)", "v2_mandatory (until-int8)"),
    ("one epoch in place of five, FedAvg", "fedavg (e1)", "fedavg"),
    ("int8 and float16 in place of float32, FedAvg", "fedavg (int8)", "fedavg"),
    ("int8 and float16 in place of float32, FedAvg with 1 epoch", "fedavg (e1-int8)", "fedavg (e1)"),
    ("int8 and float16 in place of float32, V0", "relief (int8)", "relief"),
    ("int8 and float16 in place of float32, RELIEF+", "relief_plus (int8)", "relief_plus"),
)
_ELSEWHERE: Mapping[str, str] = {
    **_PLUS,
    "v2_mandatory (int8, budget=epochs, max_epochs=5)": f"RELIEF+ with up to 5 epochs{_CODED}",
}
# What the settings of ``PLUS_ELSEWHERE`` may change, with the study's value, and in words.
_WHERE: Mapping[str, tuple[str, str]] = {
    "data.num_clients": ("-", "{} clients"),
    "fleet.gap": ("-", "gap {}"),
    "fleet.coupling": ("coupled", "coupling {}"),
    "data.name": ("dsa", "MHEALTH"),
}
_NONE = "–"
PAGES = (
    Path("docs/results.md"),
    Path("docs/results_methods.md"),
    Path("docs/results_settings.md"),
    Path("docs/moment.md"),
    *(Path(f"docs/strategies/{page}.md") for page in CARDS),
)


@cache
def comparison(results: Path) -> Comparison:
    """Return the committed runs of a folder as one comparison."""
    return compare_runs([*read_small(ROOT / results).values()])


def comparisons(results: Path, words: Callable[[Loaded], str]) -> Mapping[str, Comparison]:
    """Return a comparison for every setting in a folder's committed runs; ``words`` names a run's setting."""
    groups: dict[str, list[Loaded]] = {}
    for loaded in read_small(ROOT / results).values():
        groups.setdefault(words(loaded), []).append(loaded)
    return {value: compare_runs(runs) for value, runs in groups.items()}


def _row(study: Comparison, label: str) -> MethodResult:
    """Return a method's figures.

    Raises:
        KeyError: it has no committed runs there.
    """
    row = study.row(label)
    if row is None:
        raise KeyError(f"{study.title}: no runs of {label!r}")
    return row


# Heading, key of the statistic, how its mean is written.
Column: TypeAlias = tuple[str, str, Callable[[float], str]]
_POINTS, _TIMES, _MIB, _WHOLE = "{:.1f}".format, "{:.2f}x".format, "{:.2f}".format, "{:.0f}".format
_SPEEDS: Sequence[Column] = (
    ("speed", "speedup", _TIMES),
    ("compute", "speedup_compute", _TIMES),
    ("link, %", "link_percent", LINK.rounded),
    ("at 1,900 x 5", "speedup_paper", _TIMES),
)
_COLUMNS: Sequence[Column] = (
    ("own sensors, %", "f1_own_sensors_percent", _POINTS),
    *_SPEEDS,
    ("J a round", "energy_j", _WHOLE),
)
_UP: Column = ("upload, MiB", "up_mib", _MIB)
_METHOD_COLUMNS: Sequence[Column] = (
    ("all sensors, %", "f1_canonical_percent", _POINTS),
    *_COLUMNS,
    _UP,
)
_MINUS = "minus FedAvg [95 %]"
_METHOD_HEAD = (
    _METHOD_COLUMNS[0][0],
    _MINUS,
    _METHOD_COLUMNS[1][0],
    _MINUS,
    *(heading for heading, _, _ in _METHOD_COLUMNS[2:]),
)
_COUPLINGS: Mapping[str, str] = {
    "coupled": "few on slow devices (the paper's)",
    "independent": "anywhere",
    "inverted": "many on slow devices",
}
_GAPS_AND_CLIENTS = (
    *(f"gap {gap}, 8 clients" for gap in (10, 55, 100)),
    *(f"gap 55, {clients} clients" for clients in (20, 50, 100)),
)
_OWN_SUBJECTS: Column = ("own people, %", "f1_own_subjects_percent", _POINTS)
_RARE: Column = ("rare sensor alone, %", "f1_rare_percent", _POINTS)
_SHARES: Sequence[Column] = (
    ("trained, %", "trained_percent", _POINTS),
    ("upload saved, %", "up_saved_percent", _POINTS),
    _RARE,
)
_AT_SECONDS: Column = ("at equal seconds, %", "f1_at_seconds_percent", _POINTS)
_OWN_AT_SECONDS: Column = ("own at equal seconds, %", "f1_own_sensors_at_seconds_percent", _POINTS)
_PLUS_COLUMNS: Sequence[Column] = (_COLUMNS[0], _AT_SECONDS, _OWN_AT_SECONDS, *_SPEEDS[:-1], _COLUMNS[-1])
_COSTS: Sequence[Column] = (
    ("s a round", "round_s", _MIB),
    *_SPEEDS[:-1],
    _COLUMNS[-1],
    _UP,
    ("download, MiB", "down_mib", _MIB),
)
_MORE: Sequence[Column] = (
    *_COLUMNS,
    _AT_SECONDS,
    _RARE,
    _UP,
)


def methods(results: Path, names: Mapping[str, str], columns: Sequence[Column]) -> str:
    """Return a table with a row per method: F1, its paired difference from FedAvg, and further columns.

    ``names``: what the table calls each method, by the label that the records have.
    """
    return table(["", *_scored_head(columns)], _scored(comparison(results), names, columns))


def _scored_head(columns: Sequence[Column]) -> Sequence[str]:
    return ("F1, %", _MINUS, *(heading for heading, _, _ in columns))


def _scored(study: Comparison, names: Mapping[str, str], columns: Sequence[Column]) -> list[list[str]]:
    """Return a row per method: what the table calls it, F1, its difference from FedAvg, further columns."""
    rows = []
    for row in (_row(study, label) for label in names):
        score = row.stats["f1_percent"]
        f1 = f"{score.mean:.1f} ± {score.std:.1f}"
        rows.append([names[row.label], f1, str(row.f1 or _NONE), *_values(row, columns)])
    return rows


def costs(results: Path, names: Mapping[str, str]) -> str:
    """Return a table with a row per method: seconds, joules and bytes of a round, without scores."""
    rows = [[names[label], *_values(_row(comparison(results), label), _COSTS)] for label in names]
    return table(["", *(heading for heading, _, _ in _COSTS)], rows)


def steps(results: Path, changes: Sequence[tuple[str, str, str]]) -> str:
    """Return a table with a row per change of one part: paired differences, and the speed without it and with it."""
    study = comparison(results)
    rows = []
    for words, changed, usual in changes:
        found = [study.difference(changed, usual, figure) for figure in ("f1", "f1_own_sensors")]
        gains = ["equal bits" if gain is not None and gain.is_still else str(gain or _NONE) for gain in found]
        speeds = [_TIMES(_row(study, label).stats["speedup"].mean) for label in (usual, changed)]
        rows.append([words, *gains, " to ".join(speeds)])
    return table(["change", "F1 [95 %], points", "own sensors [95 %], points", "speed"], rows)


def elsewhere(names: Mapping[str, str], columns: Sequence[Column]) -> str:
    """Return ``methods`` for every setting of the folders of ``PLUS_ELSEWHERE``."""
    studies = by_setting(take_inventory([ROOT / folder for folder in PLUS_ELSEWHERE]))
    rows = []
    for study in studies:
        usual = study.runs_of("fedavg")[0]
        told = [words.format(usual.text(key)) for key, (value, words) in _WHERE.items() if usual.text(key) != value]
        named = {**names, "fedavg": f"FedAvg, {usual.text('training.epochs')} epochs"}
        rows += [
            [", ".join(told) or f"{usual.small.means.num_clients} clients", *row]
            for row in _scored(study, named, columns)
        ]
    return table(["", "", *_scored_head(columns)], rows)


def all_methods(study: Comparison, more: Sequence[Column] = ()) -> str:
    """Return a table with a row per method: F1 of the server's model and through clients' own sensors, and costs.

    ``more``: further columns, as ``methods`` has them.
    """
    rows = [[*_method_row(study, row), *_values(row, more)] for row in study.rows]
    return table(["", *_METHOD_HEAD, *(heading for heading, _, _ in more)], rows)


def _values(row: MethodResult, columns: Sequence[Column]) -> list[str]:
    """Return a method's means in these columns; a dash where it has none."""
    return [written(row.stats[key].mean) if key in row.stats else _NONE for _, key, written in columns]


def card(labels: Sequence[str]) -> str:
    """Return the rows of FedAvg and of the methods on one card, for every committed setting that has them."""
    rows = []
    for setting, results in TABLE_ONE.items():
        found = [row for row in comparison(results).rows if row.label in ("fedavg", *labels)]
        if any(row.label in labels for row in found):
            rows += [[setting, *_method_row(comparison(results), row)] for row in found]
    return table(["", "", *_METHOD_HEAD], rows)


def tuned(results: Path, before: Sequence[Path]) -> str:
    """Return a row per method that was given a searched optimizer and rate: F1 with the paper's values, and with these.

    F1 is a method's headline: of the server's model, or of clients' own models. ``before``: folders of runs with the
    paper's values; the first that has the method, at the same round, counts.
    """
    study = comparison(results)
    rows = []
    for row in study.rows:
        runs = study.runs_of(row.label)
        last = runs[0].rounds[-1].round
        scores = _headlines(runs, last)
        candidates = (_headlines(comparison(folder).runs_of(row.label), last) for folder in before)
        earlier = next(filter(None, candidates), {})
        gain = paired([scores[replicate] - earlier[replicate] for replicate in scores.keys() & earlier.keys()])
        rows.append(
            [
                _method_row(study, row)[0],
                _choice(runs[0]),
                _mean(earlier),
                _mean(scores),
                str(gain or _NONE),
                *_values(row, _SPEEDS),
            ]
        )
    scored = ("chosen", "paper's values, %", "chosen values, %", "difference [95 %]")
    return table(["", *scored, *(heading for heading, _, _ in _SPEEDS)], rows)


def _headlines(runs: Iterable[Loaded], round_: int) -> dict[Replicate, float]:
    """Return the headline F1 in percent after a round, by replicate; none where that round was not tested."""
    tested = ((run.replicate, r.metrics) for run in runs for r in run.rounds if r.round == round_)
    return {at: 100 * m.headline for at, m in tested if m is not None and m.headline is not None}


def _mean(scores: Mapping[Replicate, float]) -> str:
    return f"{fmean(scores.values()):.1f}" if scores else _NONE


def _choice(loaded: Loaded) -> str:
    """Return optimizer and rate; a dagger where a value lies at the edge of what was tried."""
    edge = loaded.value("choice.at_edge")
    return f"{loaded.text('training.optimizer')}, {loaded.text('training.lr')}{'†' if edge else ''}"


def settings(results: Path, words: Callable[[Loaded], str], order: Sequence[str]) -> str:
    """Return a table with a row per setting and method, as ``all_methods`` lays it out.

    ``words`` names the setting of a run; ``order`` lists these names.
    """
    found = comparisons(results, words)
    rows = [[name, *_method_row(found[name], row)] for name in order for row in found[name].rows]
    return table(["", "", *_METHOD_HEAD], rows)


def _size(loaded: Loaded) -> str:
    return loaded.text("backbone.size")


def _coupling(loaded: Loaded) -> str:
    return _COUPLINGS[loaded.text("fleet.coupling")]


def _gap_and_clients(loaded: Loaded) -> str:
    return f"gap {loaded.text('fleet.gap', '55')}, {loaded.small.means.num_clients} clients"


def _method_row(study: Comparison, row: MethodResult) -> list[str]:
    """Return the cells of a method, its name first; the marks are explained on docs/results_methods.md."""
    own = "\\*" if row.personalised else ""
    stand_in = "‡" if row.label in stand_ins(study.runs_of(row.label)) else ""
    all_sensors, own_sensors, *costs = _values(row, _METHOD_COLUMNS)
    own_gain = study.difference(row.label, "fedavg", "f1_own_sensors")
    name = f"{row.method.title or row.label}{' (reconstructed)' if row.method.reconstructed else ''}"
    scores = (
        all_sensors,
        str(row.over_reference("f1_canonical_percent") or _NONE),
        own_sensors,
        str(own_gain or _NONE),
    )
    return [f"{name}{own}{stand_in}", *scores, *costs]


def claims(results: Path) -> str:
    """Return a table with a row per claim that was named before the first run: difference, test, verdict."""
    rows = []
    for judged in judgement(results).claims:
        outcome = judged.outcome
        if outcome is None:
            rows.append([judged.claim.text or judged.claim.brief, judged.evidence, _NONE, _NONE, judged.verdict])
            continue
        unit = f"{outcome.num_pairs} {'replicate means' if outcome.on_means else 'pairs'}"
        adjusted = _NONE if judged.p_holm is None else f"{judged.p_holm:.2g}"
        bound = bound_text(judged.claim, outcome)
        difference = f"{outcome}, at least {bound}" if bound else str(outcome)
        rows.append([judged.claim.text or judged.claim.brief, difference, unit, adjusted, judged.verdict])
    return table(["claim", "difference [95 %], points", "unit of the test", "p (Holm)", "verdict"], rows)


def sources_of_scatter(results: Path) -> str:
    """Return a table with a row per tested difference: how far its pairs scatter, and what that consists of."""
    rows = []
    for judged in judgement(results).claims:
        if (shares := judged.shares) is not None:
            claim = judged.claim
            parts = [f"{100 * part:.0f} %" for part in shares.of_difference]
            what = f"{claim.first} - {claim.second}, {figure_text(claim.figure)}"
            rows.append([what, f"{shares.sd_difference:.1f}", *parts])
    return table(["difference", "sd of a pair, points", "from folds", "from replicates", "from single runs"], rows)


def false_alarms(results: Path) -> str:
    """Return a table with a row per tested figure: how often the test calls a method unlike itself (A/A rate)."""
    rows = []
    for rate in judgement(results).rates:
        interval = "" if rate.interval is None else f" [{100 * rate.interval[0]:.0f}, {100 * rate.interval[1]:.0f}]"
        share = f"{100 * rate.num_called / rate.num_tests:.0f} %{interval}"
        rows.append([figure_text(rate.figure), f"{rate.num_called} of {rate.num_tests}", share, "5 %"])
    return table(["figure", "methods called unlike themselves", "rate [95 %]", "expected"], rows)


@cache
def judgement(results: Path) -> ClaimResults:
    """Return the verdicts on the claims that the committed results carry.

    Raises:
        KeyError: they carry none.
    """
    (judged,), problems = judge([comparison(results)], registry_of([ROOT / results]))
    if judged is None:
        raise KeyError(f"{results}: {problems or 'no claims'}")
    return judged


BLOCKS: Mapping[str, Callable[[], str]] = {
    "study_all": partial(methods, STUDY, NAMES, _MORE),
    "study_remarks": lambda: "\n".join(f"- {sentence}" for sentence in surprises(comparison(STUDY))),
    "study_claims": partial(claims, STUDY),
    "study_scatter": partial(sources_of_scatter, STUDY),
    "study_alarms": partial(false_alarms, STUDY),
    "frontier": lambda: page_table(read(SCORES)),
    "candidate": partial(methods, CANDIDATE, _PAIR, (*_COLUMNS, _AT_SECONDS)),
    "candidate_claim": partial(claims, CANDIDATE),
    "plus": partial(methods, PLUS, _PLUS, _PLUS_COLUMNS),
    "plus_claims": partial(claims, PLUS),
    "plus_scatter": partial(sources_of_scatter, PLUS),
    "plus_alarms": partial(false_alarms, PLUS),
    "plus_parts": partial(methods, PLUS_PARTS, _PARTS, (_COLUMNS[0], _AT_SECONDS, *_SPEEDS[:-1], _COLUMNS[-1])),
    "plus_costs": partial(costs, PLUS_PARTS, _BY_FORMAT),
    "plus_steps": partial(steps, PLUS_PARTS, _STEPS),
    "plus_elsewhere": partial(elsewhere, _ELSEWHERE, _PLUS_COLUMNS),
    "plus_pilot": partial(methods, PLUS_PILOT, _PILOT, (_COLUMNS[0], *_SPEEDS[:-1], _COLUMNS[-1], _AT_SECONDS)),
    "methods_held_out": lambda: all_methods(comparison(TABLE_ONE["held out"])),
    "methods_within": lambda: all_methods(comparison(TABLE_ONE["within"]), [_OWN_SUBJECTS]),
    "methods_moment": lambda: all_methods(comparisons(MOMENT, _size)["tiny"], _SHARES),
    "search_optimizer": lambda: search.page_table(read(search.SCORES)),
    "tuned": partial(tuned, TUNED, [SHORT_RUNS, TABLE_ONE["within"]]),
    "coupling": partial(settings, COUPLING, _coupling, tuple(_COUPLINGS.values())),
    "sensitivity": partial(settings, SENSITIVITY, _gap_and_clients, _GAPS_AND_CLIENTS),
    **{f"card_{page}": partial(card, labels) for page, labels in CARDS.items()},
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="Write the pages; without it the tables are printed.")
    if not parser.parse_args().write:
        for make in BLOCKS.values():
            print(make(), end="\n\n")
        return
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        (ROOT / page).write_text(filled(text, BLOCKS), encoding="utf-8")


if __name__ == "__main__":
    main()
