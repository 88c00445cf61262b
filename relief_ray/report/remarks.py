"""Sentences beside tables and figures: captions, differences to FedAvg, remarks on oddities, figures of devices.

RELIEF trains everything once before round 1. So after as many rounds it has aggregated once more than FedAvg, and its
whole run has one round more than the rounds whose speed is compared; both are said here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log
from statistics import mean
from typing import Any

from relief_ray.core.messages import Fleet
from relief_ray.models.registry import BACKBONES
from relief_ray.plugins.load import is_path
from relief_ray.records.identity import changed_files
from relief_ray.report.comparison import Comparison, Experiment, MethodResult, data_title, is_own_method
from relief_ray.report.paper import PAPER_ROWS, TABLES, Paper, PaperCell
from relief_ray.report.results import KEY, client_table
from relief_ray.report.runs import (
    GridItem,
    Loaded,
    config_int,
    config_text,
    device_types,
    fleet_of,
    has_folds,
    run_value,
    split_name,
)
from relief_ray.report.statistics import MIN_INTERVAL, MIN_REPLICATES, Paired
from relief_ray.strategies import PROPOSED, REFERENCE
from relief_ray.support.errors import counted, listed, several
from relief_ray.support.text import install, percent

# Mark of a method for LoRA that was run on a backbone without it.
STAND_IN = "\N{DOUBLE DAGGER}"
# Factor over the first loss of a phase; a loss that stands still wavers by less.
GROWTH = 1.1

_FAILURES = (
    "Training diverged (the last loss is not finite, or above ln K and 10 % above the first of its phase)",
    "Nothing was learned (the last loss is above ln K, and F1 is no better than guessing)",
)


def caption(comparison: Comparison) -> str:
    """Caption of a comparison: data, protocol, clock."""
    first = comparison.runs[0]
    place = f"{mark(first)}{data_title(first.run)}, {_split_text(first)}"
    drawn = ", ".join(_drawn(comparison.runs))
    spread = "; mean ± sample standard deviation over runs" if len(comparison.runs) > len(comparison.rows) else ""
    rounds = f"{counted(first.planned, 'round')}{_looked(comparison.runs)}"
    return (
        f"{place}, {counted(len(comparison.subjects), 'test subject')}; {rounds}, "
        f"E = {config_int(first.run, 'training.epochs')}, window stride {config_text(first.run, 'data.stride_s')} s, "
        f"{_unusual_data(first)}{drawn}. Last evaluated round{spread}. {_clock_sentence(comparison)}"
    )


def _looked(runs: Sequence[Loaded]) -> str:
    """Say how often the runs were tested, where that is not after every round: `rounds to 85 %` depends on it."""
    rounds = runs[0].planned
    intervals = {min(rounds, config_int(r.run, "evaluation.every", default=1)) for r in runs}
    if intervals == {1}:
        return ""
    if intervals == {rounds}:
        return " (tested after the last)"
    shown = " or ".join(str(number) for number in sorted(intervals))
    return f" (tested every {shown} rounds and after the last)"


def _split_text(loaded: Loaded) -> str:
    return split_name(config_text(loaded.run, "data.split"))


def _drawn(runs: Sequence[Loaded]) -> list[str]:
    """Folds, where the split has them, and seeds or replicates of the runs."""
    folds = [r.replicate[0] for r in runs if has_folds(r.run.config)]
    return [*([several("fold", folds)] if folds else []), draws(runs)]


def _unusual_data(loaded: Loaded) -> str:
    """The length of windows and the partition where they are not the usual ones, each with a comma after it."""
    window, partition = (config_text(loaded.run, f"data.{key}", "") for key in ("window_s", "partition"))
    alpha = config_text(loaded.run, "data.dirichlet_alpha")
    skewed = "" if partition in ("", "subject") else f"partition {partition} (alpha {alpha}), "
    return (f"windows of {window} s, " if window else "") + skewed


def mark(loaded: Loaded) -> str:
    """``SYNTHETIC data: `` for such runs, else empty."""
    return "" if loaded.run.data_origin == "real" else "SYNTHETIC data: "


# How simulated seconds are counted, in words.
_CLOCK_WORDS = {
    "flop_proportional": "in proportion to the FLOPs of what is trained",
    "split_naive": "with every pass through every layer counted",
    "split_reuse": "with layers that nothing below trains computed once a round",
    "measured": "with the speeds of the device profile",
}


def _clock_words(clock: str) -> str:
    """``in proportion to the FLOPs of what is trained``; a user's own clock by its import path."""
    return _CLOCK_WORDS.get(clock, f"by the clock `{clock}`")


def _named_clock(clock: str) -> str:
    """`` (clock `split_naive`)``: the name in settings and in the glossary; empty where the words are the name."""
    return f" (clock `{clock}`)" if clock in _CLOCK_WORDS else ""


def _clock_sentence(comparison: Comparison) -> str:
    """Sentence on how seconds and joules were counted, also where the plan or the charge or the engine is unusual."""
    first = comparison.runs[0].run
    joules = 1284 if config_text(first, "backbone.name") == "moment_lora" else 847
    fitted = f"FITTED to FedAvg's {joules} J a round in the RELIEF paper" if comparison.runs[0].is_fitted else "given"
    modes = dict.fromkeys(config_text(r.run, "costs.accounting", "method") for r in comparison.runs)
    planned = first.planning_model
    parts = [
        f"Seconds and joules are simulated {_clock_words(comparison.clock)}{_named_clock(comparison.clock)}",
        "" if comparison.clock == "measured" or is_path(comparison.clock) else f"fleet utilisation {fitted}",
        f"allocation planned {_clock_words(planned)}{_named_clock(planned)}" if planned != comparison.clock else "",
        "" if list(modes) == ["method"] else f"accounting {listed(f'`{m}`' for m in modes)}",
        "" if first.engine == "gemm" else f"training engine `{first.engine}`",
    ]
    return f"{'; '.join(part for part in parts if part)}."


def protocol(experiment: Experiment) -> str:
    """Protocol of the runs in one line, so that whatever was reduced is seen."""
    every = experiment.text("evaluation.every")
    looked = "tested after every round" if every == "1" else f"tested every {every} rounds and after the last"
    looked = "" if experiment.text("rounds") == "1" else looked
    parts = [
        "1 round" if experiment.text("rounds") == "1" else _named(experiment, "{} rounds", "rounds"),
        _named(experiment, "E = {} local epochs", "training.epochs").replace("E = 1 local epochs", "E = 1 local epoch"),
        "values chosen by a search" if experiment.choice else _named(experiment, "learning rate {}", "training.lr"),
        "" if "training.batch_size" in experiment.searched else _named(experiment, "batch {}", "training.batch_size"),
        _named(experiment, "windows of {} s", "data.window_s"),
        _named(experiment, "window stride {} s", "data.stride_s"),
        "" if experiment.text("data.partition") == "subject" else _named(experiment, "partition {}", "data.partition"),
        _named(experiment, "missing modality `{}`", "training.missing"),
        split_name(experiment.text("data.split")),
        looked if every else "",
        *_replicates(experiment.items),
    ]
    share = experiment.text("participation")
    parts += [f"participation {share}"] if share not in ("", "1") else []
    return f"Protocol: {', '.join(p for p in parts if p)}."


def _named(experiment: Experiment, template: str, key: str) -> str:
    value = experiment.text(key)
    return template.format(value) if value else ""


def _replicates(items: Sequence[GridItem]) -> list[str]:
    """Folds and seeds of the finished runs; the column ``runs`` says how many more were planned."""
    done = [s.loaded for s in items if s.status == "done" and s.loaded is not None]
    if not done:
        return []
    return _drawn(done)


def draws(runs: Sequence[Loaded]) -> str:
    """``replicates 0, 1 and 2``, or the seeds of runs that belong to none."""
    numbers = [number for r in runs if isinstance(number := run_value(r.run, "replicate"), int)]
    if len(numbers) == len(runs):
        return several("replicate", numbers)
    return several("seed", (r.replicate[2] for r in runs))


def clock_note(comparison: Comparison | None) -> tuple[str, ...]:
    """``_clock_sentence``; empty without runs."""
    return () if comparison is None else (_clock_sentence(comparison),)


def remarks(comparison: Comparison) -> tuple[str, ...]:
    """One sentence for each oddity: warnings, failures, unequal numbers of runs, personal models, equal models."""
    return (
        *dict.fromkeys(warning for loaded in comparison.runs for warning in loaded.warnings),
        *stand_in_note(comparison.runs),
        *comparison.notes,
        *_without_intervals(comparison),
        *_programs(comparison),
        *_edited(comparison.runs),
        *_diverged(comparison),
        *_uneven(comparison),
        *_personal(comparison),
        *_below_full(comparison),
        *_twins(comparison),
        *_alike(comparison),
        *_committed(comparison.runs),
    )


def _committed(runs: Sequence[Loaded]) -> list[str]:
    """Sentences on what committed cells lack."""
    small = [r for r in runs if r.committed is not None]
    if not small:
        return []
    old = any(r.committed is not None and r.committed.means is None for r in small)
    more = ", bytes of a client, link shares and rare F1 round by round" if old else ""
    return [
        f"Read from a summary of finished runs (`cells.json`), without run folders. It lacks what each client and "
        f"device did{more}; figures that need this are not drawn"
    ]


def stand_ins(runs: Sequence[Loaded]) -> dict[str, str]:
    """Text on what stands for LoRA in methods that need it, by label, where the backbone is known to have none."""
    found = {}
    for loaded in runs:
        backbone = BACKBONES.get(config_text(loaded.run, "backbone.name"))
        if backbone is not None and not backbone.has_lora and loaded.run.method.dense_stand_in:
            found[loaded.label] = loaded.run.method.dense_stand_in
    return found


def stand_in_note(runs: Sequence[Loaded]) -> tuple[str, ...]:
    """Footnote of the rows that ``STAND_IN`` marks; empty where there are none."""
    replaced = stand_ins(runs)
    if not replaced:
        return ()
    return (
        f"{STAND_IN} Methods for LoRA on a backbone without it: their rows are stand-ins of our own making and say "
        f"little about the originals: {'; '.join(f'{label}: {text}' for label, text in replaced.items())}",
    )


def _without_intervals(comparison: Comparison) -> list[str]:
    if all(m.f1 is None or m.f1.low is not None or m.f1.is_still or m.f1.num_pairs == 1 for m in comparison.rows):
        return []
    return [f"No intervals: they need scipy; {install('server')}"]


def _programs(comparison: Comparison) -> list[str]:
    programs = {(r.run.source_digest[:8], r.run.machine.torch, r.run.machine.architecture) for r in comparison.runs}
    mixed = [r.title for r in comparison.runs if any("another program" in w for w in r.run.warnings)]
    lines = []
    if len(programs) > 1:
        shown = listed(sorted(" ".join(program) for program in programs))
        lines.append(f"Computed by {len(programs)} different programs (sources, torch, architecture): {shown}")
    return [*lines, *([f"Resumed by another program than began them: {listed(mixed)}"] if mixed else [])]


def _edited(runs: Sequence[Loaded]) -> list[str]:
    """Sentence on methods whose rows are older than a file of the user's that they were computed with."""
    labels: dict[str, dict[str, None]] = {}
    for loaded in runs:
        for file in changed_files(loaded.run):
            labels.setdefault(file, {})[loaded.label] = None
    return [
        f"{file} has changed since {listed(names)} {'was' if len(names) == 1 else 'were'} computed: the rows show the "
        "old results; compute them again (--rerun-stale)"
        for file, names in labels.items()
    ]


def _diverged(comparison: Comparison) -> list[str]:
    failures = {r.label: failure for r in comparison.runs if (failure := _failure(r))}
    return [f"{why}: {listed(names)}" for why in _FAILURES if (names := [n for n in failures if failures[n] == why])]


def _failure(loaded: Loaded) -> str | None:
    """Kind of training failure that the record shows; None where it shows none.

    Methods add terms to the cross-entropy or sum several, so a loss above ln K alone says nothing: it is held against
    the run's own first round of the same phase, and against the F1 of guessing, which is 1/K at most.
    """
    losses = [(r.phase, r.loss) for r in loaded.rounds if r.loss is not None]
    classes = loaded.run.coverage.get("classes")
    if not losses or not isinstance(classes, list):
        return None
    phase, last = losses[-1]
    first, number = next(loss for p, loss in losses if p == phase), max(2, len(classes))
    if not isfinite(last) or last > max(log(number), GROWTH * first):
        return _FAILURES[0]
    score = next((r.metrics.headline for r in reversed(loaded.trained) if r.metrics is not None), None)
    return _FAILURES[1] if last > log(number) and score is not None and score <= 1 / number else None


def _uneven(comparison: Comparison) -> list[str]:
    most = max(row.num_runs for row in comparison.rows)
    few = [f"{row.label} ({row.num_runs})" for row in comparison.rows if row.num_runs < most]
    if not few:
        return []
    return [
        f"Fewer than {most} runs: {listed(few)}; means over different folds or seeds do not compare, "
        "paired differences use shared ones only"
    ]


def _personal(comparison: Comparison) -> list[str]:
    names = [row.label for row in comparison.rows if row.personalised]
    if not names:
        return []
    return [
        f"* {listed(names)}: clients are tested on models of their own. Their headline is `F1 own %`, the mean over "
        "clients, each seen through its own sensors; `vs fedavg` and rounds to a target take it, although FedAvg's "
        "model is seen through all sensors. `F1 %`, rare F1 and single sensors are of the canonical model, where there "
        "is one: a diagnostic"
    ]


def own_models(comparison: Comparison) -> str:
    """Half-sentence for a caption that names personalised methods; empty where there are none."""
    names = [f"`{row.label}`" for row in comparison.rows if row.personalised]
    return f" Of {listed(names)}: F1 of the clients' own models." if names else ""


def _below_full(comparison: Comparison) -> list[str]:
    full = comparison.row("full_only")
    if full is None or "f1_percent" not in full.stats:
        return []
    limit = full.stats["f1_percent"].mean
    rows = [r for r in comparison.rows if not r.is_bound and not r.personalised and r.num_runs == full.num_runs]
    below = [r.label for r in rows if _f1(r) < limit]
    if not rows:
        return []
    if not below:
        return [
            "full_only (FedAvg of the clients with all sensors) has the lowest mean F1 of the methods with one model, "
            "other bounds aside"
        ]
    return [f"Mean F1 below that of full_only (FedAvg of the clients with all sensors): {listed(below)}"]


def _f1(row: MethodResult) -> float:
    return row.stats["f1_percent"].mean if "f1_percent" in row.stats else 0.0


def _twins(comparison: Comparison) -> list[str]:
    return [f"{listed(names)} trained bit-identical models in every shared run" for names in twins(comparison)]


def twins(comparison: Comparison) -> tuple[tuple[str, ...], ...]:
    """Groups of methods whose final models agree to the bit wherever both ran."""
    models = _by_method(comparison, ["model_sha256"])
    return _grouped(models)


def _by_method(comparison: Comparison, columns: list[str]) -> dict[str, dict[object, tuple[Any, ...]]]:
    """Values of the columns by method and replicate, None for undefined; without runs that lack the first."""
    table = comparison.table.dropna(subset=columns[:1]).set_index(KEY)
    values = table[columns].astype(object).where(table[columns].notna(), None)
    return {
        label: dict(zip(part.index, part.itertuples(index=False, name=None), strict=True))
        for label, part in values.groupby(table["method"], sort=False)
    }


def _alike(comparison: Comparison) -> list[str]:
    """Sentences on methods with other bits, but the same F1, rare F1 and bytes in all runs: one changes nothing.

    A single run or models that guess may agree by chance; at 100 % it is the data that tell nothing.
    """
    results = _by_method(comparison, ["f1_percent", "f1_rare_percent", "up_mib", "up_fleet_mib"])
    same_bits = [set(names) for names in twins(comparison)]
    lines = _saturated({name: [result[0] for result in mine.values()] for name, mine in results.items()})
    for names in _grouped(results):
        shared = [results[names[0]][k] for k in results[names[0]] if all(k in results[name] for name in names)]
        learned = any(_guess(comparison.runs[0]) < result[0] / 100 < 1.0 for result in shared)
        if len(shared) < 2 or not learned or any(set(names) <= group for group in same_bits):
            continue
        does = f"{names[1]} probably does what {names[0]} does" if len(names) == 2 else "they probably do the same"
        lines.append(f"{listed(names)} reached exactly the same F1 in all {len(shared)} shared runs: {does}")
    return lines


def _saturated(scores: Mapping[str, Sequence[float]]) -> list[str]:
    """Sentence on methods that made no mistake in any run, where there are several."""
    names = [name for name, mine in scores.items() if min(mine) == 100.0]
    if len(names) < 2:
        return []
    return [f"{listed(names)} are at 100 % F1 in every run: these data are too easy to tell them apart"]


def _guess(loaded: Loaded) -> float:
    """F1 of guessing: 1/K at most; 0 where the classes are unknown."""
    classes = loaded.run.coverage.get("classes")
    return 1 / len(classes) if isinstance(classes, list) and classes else 0.0


def _grouped(values: Mapping[str, dict[object, tuple[Any, ...]]]) -> tuple[tuple[str, ...], ...]:
    """Methods with equal values wherever both ran, at least two together."""
    groups: list[list[str]] = []
    for label in values:
        home = next((g for g in groups if _same(values[g[0]], values[label])), None)
        if home is None:
            groups.append([label])
        else:
            home.append(label)
    return tuple(tuple(g) for g in groups if len(g) > 1)


def _same(one: dict[object, tuple[Any, ...]], other: dict[object, tuple[Any, ...]]) -> bool:
    shared: Sequence[object] = [k for k in one if k in other]
    return bool(shared) and all(one[k] == other[k] for k in shared)


# Methods that the first sentence describes: more would be the table again.
_MOST_DESCRIBED = 3
_SAME_JOULES = 0.5
# Percent of the slowest client's round above which seconds say nearly nothing of training.
_MOSTLY_LINK = 90.0


def featured(comparison: Comparison) -> list[MethodResult]:
    """Methods that sentences set against FedAvg: RELIEF and a user's own, else the others where they are few."""
    rows = [r for r in comparison.rows if not r.is_bound and r.label != REFERENCE]
    first = [r for r in rows if r.label == PROPOSED or is_own_method(r.label)]
    return (first or (rows if len(rows) <= _MOST_DESCRIBED else []))[:_MOST_DESCRIBED]


def described(comparison: Comparison) -> str:
    """Sentence on each featured method's F1 against FedAvg's, without a test; empty without paired runs."""
    parts = [_gain(comparison, row) for row in featured(comparison) if row.f1 is not None]
    at = " at equal numbers of aggregations" if comparison.is_at_rounds else ""
    return f"F1 against FedAvg's{at}, in points: {'; '.join(parts)}." if parts else ""


def _gain(comparison: Comparison, row: MethodResult) -> str:
    """``relief +4.1 (1 run) (+8.7 (1 run) after its last round, one aggregation more)``."""
    more = "after its last round, one aggregation more" if row.label in comparison.bootstrapped else ""
    if not comparison.is_at_rounds:
        return f"{row.label} {row.f1}{f' ({more}, its bootstrap)' if more else ''}"
    return f"{row.label} {row.at_rounds}{f' ({row.f1} {more})' if more else ''}"


def faster(comparison: Comparison) -> str:
    """Sentence on the featured methods' speed and joules; empty without FedAvg's. Arithmetic on a clock, no test."""
    parts = [_fast(comparison, row) for row in featured(comparison) if "speedup" in row.stats]
    kind = "Simulated with measured speeds" if comparison.clock == "measured" else "Simulated"
    return f"{kind}: {'; '.join(parts)}." if parts else ""


def _fast(comparison: Comparison, row: MethodResult) -> str:
    speedup, saved = row.stats["speedup"].mean, row.stats["energy_saved_percent"].mean
    if f"{speedup:.2f}" == "1.00" and abs(saved) < _SAME_JOULES:
        return f"{row.label}'s rounds are as fast as FedAvg's with as many joules{_whole(comparison, row)}"
    joules = f"{percent(abs(saved))} % {'fewer' if saved >= 0 else 'more'} joules"
    link = row.stats.get("link_percent")
    share = "" if link is None else f" (link: {percent(link.mean)} % of its slowest client's round{_hidden(link.mean)})"
    return f"{row.label}'s rounds are {speedup:.2f}x FedAvg's speed{share} with {joules}{_whole(comparison, row)}"


def _hidden(link_percent: float) -> str:
    """Return what a link of nearly the whole round means: few windows a client, so methods look alike in seconds."""
    return ", so that less training hardly shows" if link_percent >= _MOSTLY_LINK else ""


def _whole(comparison: Comparison, row: MethodResult) -> str:
    """``, its whole run 1.33x (the bootstrap round is 33 % of its seconds)``; empty without a bootstrap."""
    share = comparison.bootstrap_percent(row.label)
    if not share or "speedup_total" not in row.stats:
        return ""
    total = row.stats["speedup_total"].mean
    return f", its whole run {total:.2f}x (the bootstrap round is {percent(share)} % of its seconds)"


def equal_rounds(comparison: Comparison) -> str:
    """Sentence on methods that aggregate once more than others; empty where all aggregate as often."""
    names = comparison.bootstrapped
    if not names or len(names) == len({r.label for r in comparison.runs}):
        return ""
    verb = "aggregates" if len(names) == 1 else "aggregate"
    fair = f"`F1 at equal rounds %`, `{versus(comparison)}` and curves" if comparison.is_at_rounds else "Curves"
    last = "`F1 %` is" if comparison.is_at_rounds else f"`F1 %` and `{versus(comparison)}` are"
    return (
        f"{listed(names)} {verb} once more than the others, in a bootstrap round. {fair} compare equal numbers of "
        f"aggregations; {last} after the last round"
    )


def whose_intervals(comparison: Comparison) -> str:
    """Sentence on what an interval covers: new starts on the people that were tested; empty without intervals."""
    if all(gain is None or gain.low is None for gain in map(comparison.gain, comparison.rows)):
        return ""
    people = counted(len(comparison.subjects), "test subject")
    return f"An interval covers new starts on the same {people}, not new people"


def versus(comparison: Comparison) -> str:
    """Heading of the differences to FedAvg; it says where they are taken at equal numbers of aggregations."""
    return f"vs {REFERENCE}{' at equal rounds' if comparison.is_at_rounds else ''} [95 %]"


def alike_pairs(comparison: Comparison) -> str:
    """Sentence on intervals whose unit is the mean of a replicate, and on what no interval of two replicates says."""
    folds, repetitions = {r.replicate[0] for r in comparison.runs}, {r.repetition for r in comparison.runs}
    gains = {row.label: gain for row in comparison.rows if (gain := comparison.gain(row)) is not None}
    known = {label: gain for label, gain in gains.items() if gain.low is not None}
    if min(len(folds), len(repetitions)) < 2 or not known:
        return ""
    if len(repetitions) < MIN_REPLICATES:
        return (
            f"`{versus(comparison)}` takes paired runs for independent; whether those of a fold or replicate are "
            f"alike is known from {MIN_REPLICATES} replicates on"
        )
    means = [label for label, gain in known.items() if gain.on_means]
    if not means:
        return ""
    return (
        f"`{versus(comparison)}` is taken over paired runs; of {listed(means)} over means of replicates, as in a "
        "claim's test, since pairs of one fold or replicate are alike"
    )


def mean_cosine(runs: Sequence[Loaded], block: str, kinds: tuple[str, str]) -> float | None:
    """Mean cosine of the block's updates between two clients of these device types."""
    values = [
        value
        for loaded in runs
        for types in (device_types(loaded),)
        for record in loaded.trained
        for a, b, value in record.pairwise.get(block, ())
        if tuple(sorted((types.get(a, "?"), types.get(b, "?")))) == kinds
    ]
    return mean(values) if values else None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceShare:
    """Mean round of one device of a type under a method: seconds of computing, link and waiting, and joules."""

    method: str
    kind: str
    compute_s: float
    link_s: float
    wait_s: float
    energy_j: float
    num_devices: int


def device_shares(runs: Sequence[Loaded], method: str, clock: str) -> list[DeviceShare]:
    """Means over devices of a type, rounds 1..R and runs."""
    import pandas as pd

    parts = [client_table(loaded, clock).query("round > 0").assign(run=i) for i, loaded in enumerate(runs)]
    parts = [part for part in parts if len(part)]
    if not parts:
        return []
    rows = pd.concat(parts)
    names = ["compute_s", "link_s", "wait_s", "energy_j"]
    # Folds and rotations give a client another type: devices are counted run by run.
    number = rows.groupby(["type", "run"])["client"].nunique().groupby("type").max()
    shares = rows.groupby("type")[names].mean().to_dict("index")
    return [DeviceShare(method=method, kind=kind, num_devices=number[kind], **row) for kind, row in shares.items()]


# A speedup within 5 % of FedAvg's round is none; one within a fifth of the paper's agrees with it.
SAME, NEAR = 0.05, 1.2

_OURS = (REFERENCE, PROPOSED)


def directions(experiment: Experiment, paper: Paper) -> list[str]:
    """One sentence per baseline and figure whose sign differs from the paper's; none from synthetic data.

    A speedup counts where it differs from 1 by more than 5 % and from the paper's by more than a fifth, an F1 where
    the 95 % interval of the paired difference to FedAvg leaves out 0: without that, it has no direction.
    """
    comparison = experiment.shown
    if comparison is None or not experiment.is_real or experiment.is_own_data:
        return []
    sentences: list[str] = []
    for label, name in PAPER_ROWS.items():
        row = comparison.row(label)
        if row is None or label in _OURS:
            continue
        theirs = paper[TABLES.get(experiment.backbone, "I")]
        if (speedup := row.stats.get("speedup")) is not None:
            sentences += _speed(label, speedup.mean, theirs.get(name, "speedup"), comparison.clock)
        data = experiment.paper_data
        sentences += _score(label, "F1", row.f1, theirs.get(name, f"{data} F1 (%)"), data)
        sentences += _score(label, "rare-modality F1", row.rare, theirs.get(name, "rare-modality F1 (%)"), "PAMAP2")
    return sentences


def _speed(label: str, ours: float, cell: PaperCell | None, clock: str) -> Iterator[str]:
    if cell is None or cell.value is None or _away(ours) == _away(cell.value):
        return
    if max(ours, cell.value) <= NEAR * min(ours, cell.value):
        return
    speed = f"{ours:.2f}x FedAvg's speed, seconds simulated {_clock_words(clock)}"
    yield f"`{label}`: {speed}; the paper prints {cell.value:.2f}x on PAMAP2."


def _away(speedup: float) -> int:
    return (speedup > 1 + SAME) - (speedup < 1 - SAME)


def _score(label: str, figure: str, ours: Paired | None, cell: PaperCell | None, data: str) -> Iterator[str]:
    if (
        ours is None
        or ours.num_pairs < MIN_INTERVAL
        or ours.low is None
        or ours.high is None
        or cell is None
        or cell.delta is None
    ):
        return
    here = (ours.low > 0) - (ours.high < 0)
    there = (cell.delta > 0) - (cell.delta < 0)
    if here and here != there:
        yield (
            f"`{label}`: {figure} is {ours.mean:+.1f} [{ours.low:+.1f}, {ours.high:+.1f}] points from FedAvg's; the "
            f"paper prints {cell.delta:+.1f} on {data}."
        )


def rare_alone(comparison: Comparison) -> Iterator[str]:
    """Sentence on F1 through the rare modality alone, which may be no better than guessing."""
    fleet = fleet_in(comparison)
    scores = [row.stats["f1_rare_percent"].mean for row in comparison.rows if "f1_rare_percent" in row.stats]
    classes = comparison.runs[0].run.coverage.get("classes")
    if fleet is None or not scores or not isinstance(classes, list) or not classes:
        return
    rare = fleet.rare()
    bounds = ", bounds included," if any(row.is_bound for row in comparison.rows) else ""
    alone = [m for m in rare if any(c.modalities == (m,) for c in fleet.clients)]
    guessing = 100 / len(classes)
    reason = "" if alone else " No client owns it alone, so no training window ever looks like this evaluation."
    yield (
        f"Through the rare modality alone ({listed(rare)}) all methods{bounds} reach {span_text(scores, 1)} % "
        f"(guessing among {len(classes)} classes: {guessing:.1f} %).{reason}"
    )


def span_text(values: Sequence[float], decimals: int = 2) -> str:
    """``1.2 to 3.4``, or one number where both ends look alike."""
    low, high = (f"{value:.{decimals}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def fleet_in(comparison: Comparison) -> Fleet | None:
    """The fleet of the first run that has one."""
    return next((f for r in comparison.runs if (f := fleet_of(r)) is not None), None)
