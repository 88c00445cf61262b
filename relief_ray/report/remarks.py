"""Sentences beside tables and figures: captions, differences to FedAvg, remarks on oddities, figures of devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite, log
from statistics import mean
from typing import NamedTuple

from relief_ray.models.registry import BACKBONES
from relief_ray.plugins.load import is_path
from relief_ray.records.identity import changed_files, verdict_on
from relief_ray.records.schema import PARTLY, VERIFIED, has_folds
from relief_ray.report.comparison import Comparison, MethodResult, interest, programs
from relief_ray.report.paper import PAPER_ROWS, TABLES, Paper, PaperCell
from relief_ray.report.results import KEY, client_table
from relief_ray.report.runs import Loaded, split_name
from relief_ray.report.statistics import MIN_INTERVAL, MIN_REPLICATES, Paired, fewest_pairs
from relief_ray.strategies import DESCRIBED, PROPOSED, REFERENCE
from relief_ray.support.errors import counted, listed, several
from relief_ray.support.table import grouped
from relief_ray.support.text import install, percent

# Mark of a method for LoRA that was run on a backbone without it.
STAND_IN = "\N{DOUBLE DAGGER}"
# Below so many pairs no exact test of one difference can reach 0.05, and their number is told.
_MIN_EXACT = fewest_pairs(1)
# Heading of the differences to FedAvg.
VERSUS = f"vs {REFERENCE} [95 %]"
# Factor over the first loss of a phase; a loss that stands still wavers by less.
GROWTH = 1.1

_FULL = "full_only (FedAvg of the clients with all sensors)"
_FAILURES = (
    "Training diverged (the last loss is not finite, or above ln K and 10 % above the first of its phase; lower "
    "training.lr or set training.clip_norm)",
    "Nothing was learned (the last loss is above ln K, and F1 is no better than guessing; more rounds or a lower "
    "training.lr may help)",
)


def caption(comparison: Comparison) -> str:
    """Caption of a comparison: data, protocol, clock."""
    runs, first = comparison.runs, comparison.runs[0]
    window, stride, partition, alpha = (
        first.text(f"data.{key}", "") for key in ("window_s", "stride_s", "partition", "dirichlet_alpha")
    )
    parts = (
        "" if "training.epochs" in comparison.searched else f"E = {first.text('training.epochs')}",
        f"window stride {stride or '-'} s",
        f"windows of {window} s" if window else "",
        f"partition {partition} (alpha {alpha or '-'})" if partition not in ("", "subject") else "",
        *_drawn(runs),
    )
    spread = "; mean ± sample standard deviation over runs" if len(runs) > len(comparison.rows) else ""
    return (
        f"{mark(first)}{first.data_title}, {split_name(first.text('data.split'))}, "
        f"{counted(len(comparison.subjects), 'test subject')}; {counted(first.planned, 'round')}{_looked(runs)}, "
        f"{', '.join(filter(None, parts))}. Last evaluated round{spread}. {_clock_sentence(comparison)}"
    )


def _looked(runs: Sequence[Loaded]) -> str:
    """Say how often the runs were tested, where that is not after every round: `rounds to 85 %` depends on it."""
    rounds = runs[0].planned
    intervals = {min(rounds, int(r.text("evaluation.every", "1"))) for r in runs}
    if intervals == {1}:
        return ""
    if intervals == {rounds}:
        return " (tested after the last)"
    return f" (tested every {' or '.join(map(str, sorted(intervals)))} rounds and after the last)"


def _drawn(runs: Sequence[Loaded]) -> list[str]:
    """Folds, where the split has them, and replicates, or seeds of runs that belong to none."""
    folds = [r.replicate[0] for r in runs if has_folds(r.run.config)]
    replicates = [number for r in runs if isinstance(number := r.value("replicate"), int)]
    is_whole = len(replicates) == len(runs)
    draws = several("replicate", replicates) if is_whole else several("seed", (r.replicate[2] for r in runs))
    return [*([several("fold", folds)] if folds else []), draws]


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


def _clock_sentence(comparison: Comparison) -> str:
    """Sentence on how seconds and joules were counted, also where the plan or the charge or the engine is unusual."""
    loaded, clock = comparison.runs[0], comparison.clock
    first, planned = loaded.run, loaded.run.planning_model
    joules = 1284 if loaded.text("backbone.name") == "moment_lora" else 847
    fitted = f"FITTED so that FedAvg would take {joules} J a round on the RELIEF paper's data and fleet"
    if comparison.is_own_data or not loaded.is_fitted:
        fitted = "that of the RELIEF paper's devices" if loaded.is_fitted else "given"
    modes = dict.fromkeys(r.text("costs.accounting", "method") for r in comparison.runs)
    # A clock's name in settings and in the glossary, where the words are not the name.
    named = {name: f"{_clock_words(name)}{f' (clock `{name}`)' * (name in _CLOCK_WORDS)}" for name in (clock, planned)}
    parts = [
        f"Seconds and joules are simulated {named[clock]}",
        "" if clock == "measured" or is_path(clock) else f"fleet utilisation {fitted}",
        "" if planned == clock else f"allocation planned {named[planned]}",
        "" if list(modes) == ["method"] else f"accounting {listed(f'`{m}`' for m in modes)}",
        "" if first.engine in ("gemm", "fused") else f"training engine `{first.engine}`",
    ]
    return f"{'; '.join(filter(None, parts))}."


def protocol(comparison: Comparison) -> str:
    """Protocol of the runs in one line, so that whatever was reduced is seen."""

    def named(template: str, key: str) -> str:
        value = "" if key in comparison.searched else comparison.text(key)
        return template.format(value) if value else ""

    every, is_one = comparison.text("evaluation.every"), comparison.text("rounds") == "1"
    looked = named("tested every {} rounds and after the last", "evaluation.every")
    parts = [
        "1 round" if is_one else named("{} rounds", "rounds"),
        named("E = {} local epochs", "training.epochs").replace("E = 1 local epochs", "E = 1 local epoch"),
        "values chosen by a search" * (comparison.choice in ("tuned", "try"))
        or named("learning rate {}", "training.lr"),
        named("batch {}", "training.batch_size"),
        named("windows of {} s", "data.window_s"),
        named("window stride {} s", "data.stride_s"),
        "" if comparison.text("data.partition") == "subject" else named("partition {}", "data.partition"),
        named("missing modality `{}`", "training.missing"),
        split_name(comparison.text("data.split")),
        "" if is_one else "tested after every round" if every == "1" else looked,
        *(_drawn(comparison.runs) if comparison.runs else ()),
        "" if comparison.text("participation") == "1" else named("participation {}", "participation"),
    ]
    return f"Protocol: {', '.join(filter(None, parts))}."


def premises(comparison: Comparison) -> tuple[str, ...]:
    """Protocol of the runs, and how seconds and joules were counted, where there are runs."""
    return (protocol(comparison), *([_clock_sentence(comparison)] if comparison.runs else ()))


def remarks(comparison: Comparison) -> tuple[str, ...]:
    """One sentence for each oddity: warnings, failures, unequal numbers of runs, personal models, equal models."""
    return tuple(sentence.format(*words) for sentence, when in _REMARKS for words in when(comparison))


Words = Iterator[tuple[object, ...]]


def _names(names: Sequence[str]) -> Words:
    """Words for a sentence that lists names; none without names."""
    if names:
        yield (listed(names),)


def stand_ins(runs: Sequence[Loaded]) -> dict[str, str]:
    """Text on what stands for LoRA in methods that need it, by label, where the backbone is known to have none."""
    dense = (loaded for loaded in runs if (b := BACKBONES.get(loaded.text("backbone.name"))) and not b.has_lora)
    return {loaded.label: text for loaded in dense if (text := loaded.run.method.dense_stand_in)}


def stand_in_note(runs: Sequence[Loaded]) -> tuple[str, ...]:
    """Footnote of the rows that ``STAND_IN`` marks; empty where there are none."""
    if not (replaced := stand_ins(runs)):
        return ()
    return (
        f"{STAND_IN} Methods for LoRA on a backbone without it: their rows are stand-ins of our own making and say "
        f"little about the originals: {'; '.join(f'{label}: {text}' for label, text in replaced.items())}",
    )


def _without_intervals(comparison: Comparison) -> Words:
    gains = [gain for row in comparison.rows if (gain := row.f1)]
    if any(gain.low is None and not gain.is_still and gain.num_pairs >= MIN_INTERVAL for gain in gains):
        yield (install("server"),)


def _programs(comparison: Comparison) -> Words:
    names = sorted(" ".join((digest[:8], *rest)) for digest, *rest in programs(comparison.runs))
    if len(names) > 1:
        yield len(names), listed(names)


def _edited(comparison: Comparison) -> Words:
    """Methods whose rows are older than a file of the user's that they were computed with."""
    labels = grouped((file, loaded.label) for loaded in comparison.runs for file in changed_files(loaded.run))
    for file, names in labels.items():
        yield file, listed(dict.fromkeys(names)), "was" if len(set(names)) == 1 else "were"


def _own_code(comparison: Comparison) -> Words:
    """What came of computing the last rounds of runs with users' code once more."""
    runs = (loaded for loaded in comparison.runs if loaded.run.own_sources and loaded.committed is None)
    titles = grouped((loaded.run.own_code or "never verified", loaded.title) for loaded in runs)
    for verdict, names in titles.items():
        yield verdict, counted(len(names), "run") if verdict in (VERIFIED, PARTLY) else listed(names)


def _judged(comparison: Comparison) -> Words:
    """What `relief-ray conformance` said last of the very files of users' code that runs were computed with."""
    runs = (loaded for loaded in comparison.runs if loaded.run.own_sources)
    parts = ("strategy.name", "backbone.name", "data.name")
    said = dict.fromkeys(verdict_on(run.text(part), run.run.own_sources) for run in runs for part in parts)
    return ((verdict,) for verdict in said if verdict)


def _failed(comparison: Comparison) -> Words:
    failures = {r.label: failure for r in comparison.runs if (failure := _failure(r))}
    for why in _FAILURES:
        if names := [name for name, failure in failures.items() if failure == why]:
            yield why, listed(names)


def _failure(loaded: Loaded) -> str | None:
    """Kind of training failure that the record shows; None where it shows none.

    Methods add terms to the cross-entropy or sum several, so a loss above ln K alone says nothing: it is held against
    the run's own first round of the same phase, and against the F1 of guessing, which is 1/K at most.
    """
    losses = [(r.phase, r.loss) for r in loaded.rounds if r.loss is not None]
    if not losses or not (classes := loaded.covered("classes")):
        return None
    phase, last = losses[-1]
    first, number = next(loss for p, loss in losses if p == phase), max(2, classes)
    if not isfinite(last) or last > max(log(number), GROWTH * first):
        return _FAILURES[0]
    score = loaded.tested.headline
    return _FAILURES[1] if last > log(number) and score is not None and score <= 1 / number else None


def _uneven(comparison: Comparison) -> Words:
    most = max(row.num_runs for row in comparison.rows)
    if few := [f"{row.label} ({row.num_runs})" for row in comparison.rows if row.num_runs < most]:
        yield most, listed(few)


def own_models(comparison: Comparison) -> str:
    """Half-sentence for a caption that names personalised methods; empty where there are none."""
    names = [f"`{label}`" for label in comparison.personalised]
    return f" Of {listed(names)}: F1 of the clients' own models." if names else ""


def _below_full(comparison: Comparison) -> Words:
    """Whether methods with one model have a lower mean F1 than full_only, where that was run."""
    full = comparison.row("full_only")
    if full is None or (limit := full.mean("f1_percent")) is None:
        return
    rows = [r for r in comparison.rows if not r.is_bound and not r.personalised and r.num_runs == full.num_runs]
    if below := [row.label for row in rows if (row.mean("f1_percent") or 0.0) < limit]:
        yield (f"Mean F1 below that of {_FULL}: {listed(below)}",)
    elif rows:
        yield (f"{_FULL} has the lowest mean F1 of the methods with one model, other bounds aside",)


def twins(comparison: Comparison) -> tuple[tuple[str, ...], ...]:
    """Groups of methods whose final models agree to the bit wherever both ran."""
    groups = comparison.table.dropna(subset="model_sha256").groupby("method", sort=False)
    models = {str(label): runs.set_index(KEY)["model_sha256"].to_dict() for label, runs in groups}

    def agree(one: str, other: str) -> bool:
        shared = models[one].keys() & models[other].keys()
        return bool(shared) and all(models[one][key] == models[other][key] for key in shared)

    alike: dict[str, list[str]] = {}
    for label in models:
        first = next((name for name in alike if agree(name, label)), label)
        alike.setdefault(first, []).append(label)
    return tuple(tuple(group) for group in alike.values() if len(group) > 1)


def _saturated(comparison: Comparison) -> Words:
    """Methods that made no mistake in any run, where there are several."""
    scores = comparison.table.dropna(subset="f1_percent").groupby("method", sort=False)["f1_percent"].min()
    names = scores.index[scores == 100.0].tolist()
    return _names(names if len(names) > 1 else [])


def _committed(comparison: Comparison) -> Words:
    """What committed cells lack beside clients and devices."""
    small = [r.committed for r in comparison.runs if r.committed is not None]
    if small:
        yield (" before the last round" if any(cell.stages for cell in small) else "",)


_OF_A_ROUND = re.compile(r"round \d+: ")
# Rounds with the same warning that are named one by one.
_MOST_NAMED = 3


def told_once(warnings: Sequence[str]) -> list[str]:
    """Each warning once; what more than a few rounds warn of, once with the number of those rounds."""
    by_text = grouped((_OF_A_ROUND.sub("", text, count=1), text) for text in warnings)
    told: list[str] = []
    for text, found in by_text.items():
        is_often = len(found) > _MOST_NAMED and _OF_A_ROUND.match(found[0])
        told += [f"in {len(found)} rounds: {text}"] if is_often else dict.fromkeys(found)
    return told


# A sentence, and what finds that of which it is said: the words for its gaps.
_REMARKS: Sequence[tuple[str, Callable[[Comparison], Iterable[Sequence[object]]]]] = (
    ("{}", lambda c: ((warning,) for warning in told_once([w for loaded in c.runs for w in loaded.warnings]))),
    ("{}", lambda c: ((note,) for note in (*stand_in_note(c.runs), *c.notes))),
    ("No intervals: they need scipy; {}", _without_intervals),
    ("Computed by {} different programs (sources, torch, architecture): {}", _programs),
    (
        "Resumed by another program than began them: {}",
        lambda c: _names([r.title for r in c.runs if any("another program" in w for w in r.run.warnings)]),
    ),
    (
        "{} has changed since {} {} computed: the rows show the old results; compute them again (--rerun-stale)",
        _edited,
    ),
    ("Own code: {} ({}); start and rounds of a run are computed once more in another process", _own_code),
    ("`relief-ray conformance` on the same file: {}", _judged),
    ("{}: {}", _failed),
    (
        "Fewer than {} runs: {}; means over different folds or seeds do not compare, paired differences use shared "
        "ones only",
        _uneven,
    ),
    (
        "* {}: clients are tested on models of their own. Their headline is `F1 own %`, the mean over clients, each "
        "seen through its own sensors; `vs fedavg` and rounds to a target take it, although FedAvg's model is seen "
        "through all sensors. `F1 %`, rare F1 and single sensors are of the canonical model, where there is one: a "
        "diagnostic",
        lambda c: _names(c.personalised),
    ),
    ("{}", _below_full),
    ("{} trained bit-identical models in every shared run", lambda c: ((listed(names),) for names in twins(c))),
    ("{} are at 100 % F1 in every run: these data are too easy to tell them apart", _saturated),
    (
        "Read from a summary of finished runs (`cells.json`), without run folders. It lacks what each client and "
        "device did{}; figures that need more are not drawn",
        _committed,
    ),
)

# Methods that the first sentence describes: more would be the table again.
_MOST_DESCRIBED = 3
_SAME_PERCENT = 0.5
# Percent of the slowest client's round above which seconds say nearly nothing of training.
_MOSTLY_LINK = 90.0


def featured(comparison: Comparison) -> list[MethodResult]:
    """Methods that sentences set against FedAvg: RELIEF and a user's own, else variants, else the others if few."""
    rows = [r for r in comparison.rows if not r.is_bound and r.label != REFERENCE]
    first = sorted((r for r in rows if interest(r.label) < 2), key=lambda row: interest(row.label))
    variants = [r for r in rows if interest(r.label) == 2]
    return (first or variants or (rows if len(rows) <= _MOST_DESCRIBED else []))[:_MOST_DESCRIBED]


def headline(comparison: Comparison) -> str:
    """``headlines`` as one text."""
    return " ".join(headlines(comparison))


def headlines(comparison: Comparison) -> list[str]:
    """What each featured method is beside FedAvg: speed, joules, bytes, F1 after the same time and as many rounds.

    Of three methods and more, which have the best means comes last. Speed is arithmetic on a clock; nothing is tested
    here. Empty without paired runs.
    """
    parts = [f"{text}." for row in featured(comparison) if (text := _beside(row))]
    kind = "With measured speeds" if comparison.clock == "measured" else "Simulated"
    return [f"{kind}: {parts[0]}", *parts[1:], *_leaders(comparison)] if parts else []


# What a method may lead in: words, figure, how the mean is printed.
_LEADS = (
    ("F1 after as many rounds", "f1_percent", "{:.1f} %"),
    ("after the same time", "f1_at_seconds_percent", "{:.1f} %"),
    ("through own sensors", "f1_own_sensors_percent", "{:.1f} %"),
    ("speed", "speedup", "{:.2f}"),
    ("joules a round", "energy_j", "{:.0f}"),
)
_FEWEST_TO_LEAD = 3


def what_they_do(comparison: Comparison) -> list[str]:
    """What FedAvg and the featured presets do, for readers who know neither; a user's own method tells nothing."""
    labels = [REFERENCE, *(row.label for row in featured(comparison))]
    known = [(label, DESCRIBED[label].about) for label in labels if label in DESCRIBED]
    return [f"{'; '.join(f'{label}: {about}' for label, about in known)}."] if len(known) > 1 else []


def _leaders(comparison: Comparison) -> list[str]:
    """Sentence on which of three methods and more have the best means: ``.., joules a round v3 (74)``."""
    rows = [row for row in comparison.rows if not row.is_bound]
    if len(rows) < _FEWEST_TO_LEAD:
        return []
    parts = []
    for words, figure, shape in _LEADS:
        means = {row.label: value for row in rows if (value := row.mean(figure)) is not None}
        best = shape.format((min if figure == "energy_j" else max)(means.values(), default=0.0))
        leading = [label for label, value in means.items() if shape.format(value) == best]
        if 0 < len(leading) < len(means):
            parts.append(f"{words} {listed(leading)} ({best})")
    return [f"The best means of {len(rows)} methods: {', '.join(parts)}."] if parts else []


def _beside(row: MethodResult) -> str:
    """``relief is 1.42 times as fast as fedavg, with 18 % fewer joules; after the same time its F1 is ..``."""
    # At the time of the column `F1 at equal s %`, so that both say the same.
    gains = {"the same time": row.over_reference("f1_at_seconds_percent"), "as many rounds": row.f1}
    known = [(when, gain) for when, gain in gains.items() if gain is not None]
    # Methods as fast as FedAvg have had the same time after as many rounds.
    if len(known) == 2 and known[0][1] == known[1][1]:
        known = [("the same time and number of rounds", known[0][1])]
    elif "speedup" in row.stats and _speedup(row) == "1.00":
        known = known[-1:]
    parts = [(f"after {when}", gain) for when, gain in known]
    own = None if row.personalised else row.over_reference("f1_own_sensors_percent")
    parts += [] if own is None else [("through the clients' own sensors", own)]
    scores = [f"{where} {'its F1 is ' * (not i)}{_points(gain)}" for i, (where, gain) in enumerate(parts)]
    if "speedup" not in row.stats:
        return f"{row.label}: {', '.join(scores)}" if scores else ""
    link = row.mean("link_percent") or 0.0
    much = f". {percent(link)} % of its slowest client's round is network time: training still less would save little"
    hidden = much if link >= _MOSTLY_LINK else ""
    return f"{'; '.join(filter(None, [_fast(row), ', '.join(scores)]))}{hidden}"


def _fast(row: MethodResult) -> str:
    saved, speedup = row.stats["energy_saved_percent"].mean, _speedup(row)
    speed = "as fast" if speedup == "1.00" else f"{speedup} times as fast"
    sent = row.mean("up_saved_percent")
    sends = "" if sent is None or abs(sent) < _SAME_PERCENT else f" and {_fewer(sent)} bytes sent"
    return f"{row.label} is {speed} as {REFERENCE}, with {_fewer(saved)} joules{sends}"


def _speedup(row: MethodResult) -> str:
    return f"{row.stats['speedup'].mean:.2f}"


def _fewer(saved: float) -> str:
    """``18 % fewer``, ``as many``."""
    if abs(saved) < _SAME_PERCENT:
        return "as many"
    return f"{percent(abs(saved))} % {'fewer' if saved >= 0 else 'more'}"


def _points(gain: Paired) -> str:
    """``1.1 points higher (95 %: -3.0 to +5.2)``; of too few runs for an interval their number."""
    if gain.is_still:
        return "the same"
    words = f"{abs(gain.mean):.1f} points {'higher' if gain.mean >= 0 else 'lower'}"
    if gain.low is None:
        return f"{words} ({counted(gain.num_pairs, 'run')})"
    few = f", {gain.num_pairs} pairs" if gain.num_pairs < _MIN_EXACT else ""
    return f"{words} (95 %: {gain.low:+.1f} to {gain.high:+.1f}{few})"


def whose_intervals(comparison: Comparison) -> str:
    """Sentence on what an interval covers: new starts on the people that were tested; empty without intervals.

    If windows are dealt at random, it says whether each repetition has a deal of its own.
    """
    fewest = min((f1.num_pairs for row in comparison.rows if (f1 := row.f1) and f1.low is not None), default=0)
    if not fewest:
        return ""
    people, few = counted(len(comparison.subjects), "test subject"), ""
    if fewest < _MIN_EXACT:
        few = f"; with {counted(fewest, 'pair')} it assumes normal differences (an exact test needs {_MIN_EXACT})"
    run, seeds = comparison.runs[0], {r.text("data.seed") for r in comparison.runs}
    kinds = ["random split"] * (run.text("data.split") == "random_leaky")
    kinds += ["partition"] * (run.text("data.partition", "subject") != "subject")
    which = f"on one {' and '.join(kinds)}" if len(seeds) == 1 else " ".join(f"and {kind}s" for kind in kinds)
    drawn = f" {which} of the windows," if kinds else ""
    return f"An interval covers new starts{drawn} on the same {people}, not new people{few}"


def alike_pairs(comparison: Comparison) -> str:
    """Sentence on intervals whose unit is the mean of a replicate, and on what no interval of two replicates says."""
    folds, repetitions = {r.replicate[0] for r in comparison.runs}, {r.repetition for r in comparison.runs}
    known = {row.label: gain for row in comparison.rows if (gain := row.f1) and gain.low is not None}
    if min(len(folds), len(repetitions)) < 2 or not known:
        return ""
    if len(repetitions) < MIN_REPLICATES:
        return (
            f"`{VERSUS}` takes paired runs for independent; whether those of a fold or replicate are "
            f"alike is known from {MIN_REPLICATES} replicates on"
        )
    means = [label for label, gain in known.items() if gain.on_means]
    if not means:
        return ""
    return (
        f"`{VERSUS}` is taken over paired runs; of {listed(means)} over means of replicates, as in a "
        "claim's test, since pairs of one fold or replicate are alike"
    )


def mean_cosine(runs: Sequence[Loaded], block: str, kinds: tuple[str, str]) -> float | None:
    """Mean cosine of the block's updates between two clients of these device types."""
    values = [
        value
        for loaded in runs
        for types in (loaded.types,)
        for record in loaded.rounds
        for a, b, value in record.pairwise.get(block, ())
        if tuple(sorted((types.get(a, "?"), types.get(b, "?")))) == kinds
    ]
    return mean(values) if values else None


class DeviceShare(NamedTuple):
    """Mean round of one device of a type under a method: seconds of computing, link and waiting, and joules."""

    method: str
    kind: str
    compute_s: float
    link_s: float
    wait_s: float
    energy_j: float
    num_devices: int


def device_shares(runs: Sequence[Loaded], clock: str) -> list[DeviceShare]:
    """Means over devices of a type, rounds and runs of one method."""
    rows = client_table(runs, clock)
    names = ["compute_s", "link_s", "wait_s", "energy_j"]
    # Folds and rotations give a client another type: devices are counted run by run.
    number = rows.groupby(["type", "run"])["client"].nunique().groupby("type").max()
    shares = rows.groupby("type")[names].mean().to_dict("index")
    return [
        DeviceShare(method=runs[0].label, kind=kind, num_devices=number[kind], **row) for kind, row in shares.items()
    ]


# A speedup within 5 % of FedAvg's round is none; one within a fifth of the paper's agrees with it.
SAME, NEAR = 0.05, 1.2


def directions(comparison: Comparison, paper: Paper) -> list[str]:
    """One sentence per baseline and figure whose sign differs from the paper's; none from synthetic data.

    A speedup counts where it differs from 1 by more than 5 % and from the paper's by more than a fifth, an F1 where
    the 95 % interval of the paired difference to FedAvg leaves out 0: without that, it has no direction.
    """
    if not comparison.is_real or comparison.is_own_data:
        return []
    comparison, data = comparison.shown, comparison.paper_data
    table, sentences = paper[TABLES.get(comparison.backbone, "I")], []
    for label, name in PAPER_ROWS.items():
        row = comparison.row(label)
        if row is None or label in (REFERENCE, PROPOSED):
            continue
        rare, column = row.over_reference("f1_rare_percent"), "rare-modality F1 (%)"
        found = [
            _speed(row, table.get(name, "speedup"), comparison.clock),
            _score("F1", row.f1, table.get(name, f"{data} F1 (%)"), data),
            _score("rare-modality F1", rare, table.get(name, column), "PAMAP2"),
        ]
        sentences += [f"`{label}`: {words}." for words in found if words]
    return sentences


def _speed(row: MethodResult, cell: PaperCell | None, clock: str) -> str:
    """A speedup in another direction than the paper's; empty where it is none."""
    ours, theirs = row.mean("speedup"), None if cell is None else cell.value
    if ours is None or theirs is None or _away(ours) == _away(theirs) or max(ours, theirs) <= NEAR * min(ours, theirs):
        return ""
    speed = f"{ours:.2f}x FedAvg's speed, seconds simulated {_clock_words(clock)}"
    return f"{speed}; the paper prints {theirs:.2f}x on PAMAP2"


def _away(speedup: float) -> int:
    return (speedup > 1 + SAME) - (speedup < 1 - SAME)


def _score(figure: str, ours: Paired | None, cell: PaperCell | None, data: str) -> str:
    """A difference to FedAvg in another direction than the paper's; empty where it is none."""
    if ours is None or ours.low is None or ours.high is None or cell is None or cell.delta is None:
        return ""
    here, there = (ours.low > 0) - (ours.high < 0), (cell.delta > 0) - (cell.delta < 0)
    if here in (0, there):
        return ""
    return f"{figure} is {ours} points from FedAvg's; the paper prints {cell.delta:+.1f} on {data}"


def rare_alone(comparison: Comparison) -> Iterator[str]:
    """Sentence on F1 through the rare modality alone, which may be no better than guessing."""
    fleet, number = comparison.fleet, comparison.runs[0].covered("classes")
    scores = [f1 for row in comparison.rows if (f1 := row.mean("f1_rare_percent")) is not None]
    if fleet is None or not scores or not number:
        return
    rare = fleet.rare()
    bounds = ", bounds included," if any(row.is_bound for row in comparison.rows) else ""
    has_owner = any(client.modalities == (name,) for name in rare for client in fleet.clients)
    reason = "" if has_owner else " No client owns it alone, so no training window ever looks like this evaluation."
    yield (
        f"Through the rare modality alone ({listed(rare)}) all methods{bounds} reach {span_text(scores, 1)} % "
        f"(guessing among {number} classes: {100 / number:.1f} %).{reason}"
    )


def span_text(values: Sequence[float], decimals: int = 2) -> str:
    """``1.2 to 3.4``, or one number where both ends look alike."""
    low, high = (f"{value:.{decimals}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
