"""What is judged by rules, and the result: a method, a backbone, a data set, or a method that equals another one.

Such a limit that is known on paper (FedProx with ``mu = 0`` is FedAvg) tests the code of a method like nothing else.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, log10
from pathlib import Path

import numpy as np

from relief_ray.config.experiment import ExperimentConfig, assign, parse
from relief_ray.conformance.backbones import BACKBONE_RULES, check_backbone
from relief_ray.conformance.datasets import DATA_RULES, check_loader
from relief_ray.conformance.rules import RULES, Broken, Check, Rule, Rules, Verdict, judge
from relief_ray.conformance.runner import PROBLEM, Arrays, after_rounds, check, largest_gap, models_of
from relief_ray.data.loader import Loader
from relief_ray.data.registry import DATASETS, load_own
from relief_ray.experiment.experiment import MakeExecutor, run_cell
from relief_ray.models.backbone import BackboneConfig
from relief_ray.models.registry import BACKBONES
from relief_ray.plugins.load import digests, import_path, is_path, is_stored, load, modules_of, what_to_type
from relief_ray.records.identity import flat, verdict_note
from relief_ray.strategies import PRESETS, about_of, facts_of
from relief_ray.strategies.common import StrategyConfig
from relief_ray.support.errors import Setting, UserError, counted, value_text
from relief_ray.support.files import write_atomic
from relief_ray.support.process import threads
from relief_ray.support.text import Printed, filled


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Conformance(Printed):
    """Verdicts on a method, a backbone or a data set; printed, a line per rule. It is true where no rule is broken.

    Attributes:
        name: what was judged.
        heading: its name and what it is, in a line.
        rules: the rules in words.
        verdicts: the verdict on each rule: kept, broken or not judged.
        about: what was judged, for programs.
    """

    name: str
    heading: str
    rules: Mapping[str, Rule]
    verdicts: tuple[Verdict, ...]
    about: Mapping[str, object]

    @property
    def ok(self) -> bool:
        """Whether no rule is broken."""
        return not self.broken

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the broken rules."""
        return tuple(v.rule for v in self.verdicts if v.status == "broken")

    @property
    def summary(self) -> str:
        """The last line: how many rules were kept, broken or not judged."""
        number = Counter(v.status for v in self.verdicts)
        if self.ok:
            rest = f", {number['not judged']} not judged" if number["not judged"] else ""
            return f"{self.name}: keeps {counted(number['kept'], 'rule')}{rest}"
        return f"{self.name}: breaks {', '.join(self.broken)}; {number['kept']} kept, {number['not judged']} not judged"

    @property
    def text(self) -> str:
        """Heading, a line per rule and summary, as `relief-ray conformance` prints them."""
        return "\n".join([self.heading, *(line(v, self.rules) for v in self.verdicts), self.summary])

    @property
    def facts(self) -> dict[str, object]:
        """The same for programs."""
        rows = [
            {
                "rule": v.rule,
                "status": v.status,
                "found": v.found,
                "says": self.rules[v.rule].says,
                "fix": v.fix(self.rules),
            }
            for v in self.verdicts
        ]
        return {**self.about, "keeps": self.ok, "rules": rows}

    def __bool__(self) -> bool:
        """Return whether no rule is broken."""
        return self.ok


# What is judged, without verdicts, and the verdicts as they are reached; each takes up to minutes.
Judged = tuple[Conformance, Iterator[Verdict]]


def judged_of(
    target: str,
    settings: Sequence[Setting],
    executors: Mapping[str, MakeExecutor],
    equals: str = "",
    within: float = 0.0,
) -> Judged:
    """Return what a name or an import path stands for, and its verdicts, each judged when it is asked for.

    Args:
        target: a method, a backbone or a data set.
        settings: a key without a section is the method's or the backbone's own.
        executors: of a method: what has to have the bits of the plain loop, by name.
        equals: judge only whether the method's rounds are those of this one.
        within: the largest difference of a value that ``equals`` allows.

    Raises:
        UserError: there is no such target, or a setting is wrong.
    """
    if names_dataset(target):
        return _of_data(target, settings)
    if issubclass(_kind_of(target), BackboneConfig):
        return _of_backbone(target, settings)
    if equals:
        return _of_pair(target, equals, settings, within)
    _refuse_file(target)
    config = parse(assign(PROBLEM, [Setting("strategy", target), *_for_method(settings)]), "conformance")
    name, about = title_of(target, config), about_of(config.strategy, config.label())
    method = facts_of(config.strategy, config.label())
    heading = f"{method.name} ({method.kind})" + (f": {about}" if about else "")
    facts = {"strategy": name, "about": about}
    return Conformance(name=name, heading=heading, rules=RULES, verdicts=(), about=facts), check(config, executors)


def _kind_of(target: str) -> type:
    """The class behind a name or import path of a dataset or backbone; for an instance, its class.

    That of None where it cannot be loaded, or is neither's name.
    """
    known: Mapping[str, object] = {**DATASETS, **BACKBONES}
    try:
        if is_stored(target):
            return type(load_own(target))
        value = load(target, "conformance") if is_path(target) else known.get(target)
    except UserError:
        value = None
    return value if isinstance(value, type) else type(value)


def concluded(judged: Conformance, verdicts: Iterable[Verdict]) -> Conformance:
    """The same with all verdicts; of own code they are noted in the cache, for reports on runs of that code."""
    done, target = replace(judged, verdicts=tuple(verdicts)), import_path(judged.name.partition(" (")[0])
    if (modules := modules_of([target])) and judged.rules is not _EQUALS_RULES:
        sources = digests(modules)
        with suppress(UserError):
            write_atomic(verdict_note(target, sources), f"{json.dumps(sources)}\n{done.summary}".encode())
    return done


def names_dataset(target: str) -> bool:
    """Whether a name or import path leads to a dataset; False if it cannot be loaded."""
    return issubclass(_kind_of(target), Loader)


def _of_data(target: str, settings: Sequence[Setting]) -> Judged:
    loader = load_own(target) if is_path(target) else DATASETS[target]
    values = assign({"data": {}}, settings)
    section = values["data"]
    if not isinstance(section, Mapping) or set(values) != {"data"}:
        other = ", ".join(sorted(set(values) - {"data"}))
        raise UserError(f"{Setting(other, ...)}: expected keys of data, e.g. {Setting('data.window_s', 2.56)}")
    name, title = loader.spec.name, loader.spec.title
    facts = {"dataset": name, "about": title}
    judged = Conformance(name=name, heading=f"{name} (dataset): {title}", rules=DATA_RULES, verdicts=(), about=facts)
    return judged, check_loader(loader, section)


def _of_backbone(target: str, settings: Sequence[Setting]) -> Judged:
    """``hidden=8`` sets a field of the backbone."""
    problem = {**PROBLEM, "backbone": {"name": target}}
    config = parse(assign(problem, _for_method(settings, "backbone")), "conformance")
    sensors = ", ".join(m for m, _ in config.data.spec().modalities)
    heading, facts = f"backbone {target}, for the data of {config.data.name}: {sensors}", {"target": target}
    judged = Conformance(name=target, heading=heading, rules=BACKBONE_RULES, verdicts=(), about=facts)
    return judged, check_backbone(config)


def _of_pair(target: str, other: str, settings: Sequence[Setting], within: float) -> Judged:
    """Settings of the strategy are the method's alone."""
    paths = _for_method(settings)
    common = [s for s in paths if not s.path.startswith("strategy.")]
    problem = {**PROBLEM, "training": dict(STEPS)}
    config = parse(assign(problem, [Setting("strategy", target), *paths]), "conformance")
    reference = parse(assign(problem, [Setting("strategy", other), *common]), "conformance")
    chosen = " ".join(f"{s.path.removeprefix('strategy.')}={value_text(s.value)}" for s in paths if s not in common)
    heading, facts = f"{target}{f' with {chosen}' if chosen else ''} against {other}", {"target": target}
    judged = Conformance(name=target, heading=heading, rules=_EQUALS_RULES, verdicts=(), about=facts)
    return judged, judge(_EQUALS_CHECKS, (config, reference, within))


def _refuse_file(target: str) -> None:
    """Check that a target is a method's name, or an import path that leads to something.

    Raises:
        UserError: it is not; where a file here is meant, what can be judged in it is named.
    """
    kinds = (StrategyConfig, Loader, BackboneConfig)
    if is_stored(target):
        load_own(target)
    elif is_path(target):
        load(target, "conformance", *kinds)
    elif target not in PRESETS and (hint := what_to_type(target, *kinds)):
        raise UserError(f"conformance {target}: {hint}")


def _for_method(settings: Sequence[Setting], section: str = "strategy") -> list[Setting]:
    """The settings with full paths: ``beta=0`` is the method's, ``strategy.beta=0``."""
    known = ExperimentConfig.model_fields
    return [s if s.path.partition(".")[0] in known else Setting(f"{section}.{s.path}", s.value) for s in settings]


def line(verdict: Verdict, rules: Rules = RULES) -> str:
    """One rule as text; for a broken one also the observation and the fix."""
    rule = rules[verdict.rule]
    if verdict.status == "kept":
        return filled(rule.says, f"  kept        {verdict.rule:<14} ")
    if verdict.status == "not judged":
        return filled(verdict.found, f"  not judged  {verdict.rule:<14} ")
    words, fix = filled(rule.says, f"  BROKEN      {verdict.rule:<14} "), filled(verdict.fix(rules), "      fix:   ")
    heads = ["      found: ", *[" " * 13] * verdict.found.count("\n")]
    texts = [filled(text, head) for head, text in zip(heads, verdict.found.split("\n"), strict=True)]
    return "\n".join(filter(None, [words, *texts, fix]))


def title_of(target: str, config: ExperimentConfig) -> str:
    """Title of the strategy: the user's word, and the built-in preset that it varies where that has another name."""
    label = config.label()
    return target if label in (target, target.replace("/", ".")) else f"{target} ({label})"


# A rule for special cases: with these settings a method is another method, round by round, to the bit.

# Several optimizer steps a round: in the first one FedProx's term is zero whatever mu is.
STEPS: Mapping[str, object] = {"epochs": 2, "lr": 0.01, "batch_size": 4}
_EQUALS_RULES: Rules = {
    "equals": Rule(
        "after every round its models are those of the other method",
        "compare the first round that differs: the tasks, the client's half, then the aggregation",
    )
}


# Two methods that shall be equal, and the largest allowed difference of two values; 0 means the same bits.
_Pair = tuple[ExperimentConfig, ExperimentConfig, float]


def _equals(pair: _Pair) -> None:
    """Run both and compare their server models after every round."""
    *configs, within = pair
    with threads(configs[0].runtime.num_threads), tempfile.TemporaryDirectory(prefix="relief-ray-") as folder:
        models, expected = (_rounds(c, Path(folder) / str(i)) for i, c in enumerate(configs))
    text, hint = _difference(models, expected, configs[1].label(), within)
    if text:
        raise Broken("equals", f"{text}{hint}\n{_other_settings(*configs)}", has_remedy=bool(hint))


def _other_settings(config: ExperimentConfig, reference: ExperimentConfig) -> str:
    """Which settings of the two differ, in words: the method's fields may be what makes it another."""
    mine, theirs = (flat(each.model_dump(mode="json")) for each in (config, reference))
    off = (None, False, "off")  # a key that the other lacks, with a value that does nothing, is no difference
    other = [key for key in mine if mine[key] != theirs.get(key, ...) and (key in theirs or mine[key] not in off)]
    texts = [
        f"{key} = {value_text(mine[key])} ({value_text(theirs[key]) if key in theirs else 'no such key'} of "
        f"{reference.label()})"
        for key in other
        if key != "strategy.name"
    ]
    return f"settings that differ: {'; '.join(texts)}" if texts else "no setting differs, so the code does"


_EQUALS_CHECKS = (Check(rules=("equals",), run=_equals),)
# Share of the largest value up to which a difference is taken for rounding: some eight units in float32's last place.
_ROUNDING = 1e-6


def _rounds(config: ExperimentConfig, path: Path) -> dict[int, Arrays]:
    """The server's models after each round, by ``model/group``; the run stops after every round for it."""
    states: dict[int, Arrays] = {}
    status = ""
    while status != "done":
        status = run_cell(config, path, should_stop=after_rounds(1)).status
        round_, models = models_of(path)
        states[round_] = models
    return states


def _difference(
    models: Mapping[int, Arrays], expected: Mapping[int, Arrays], other: str, within: float
) -> tuple[str, str]:
    """Describe the first round in which the models differ by more than ``within``, and say what to do; empty: in none.

    There is something to do where the first round that differs at all does so by rounding: another order of summing
    changes the last bits of float32, and training amplifies that from round to round.
    """
    hint: str | None = None
    for round_ in sorted(models):
        mine, theirs = models[round_], expected[round_]
        if alone := sorted(mine.keys() ^ theirs.keys()):
            return f"round {round_}: models and groups {alone} are in one of them only", ""
        gaps = {name: largest_gap(x, theirs[name]) for name, x in mine.items()}
        worst = max(gaps, key=lambda name: gaps[name])
        if hint is None and gaps[worst]:
            is_rounding = gaps[worst] <= _ROUNDING * max(float(np.abs(x).max()) for x in theirs.values())
            hint = _rounding(round_, gaps[worst], within) if is_rounding else ""
        if gaps[worst] > within:
            number = f"{sum(gap > within for gap in gaps.values())} of {len(gaps)} groups differ from {other}'s"
            return f"round {round_}: {number}, {worst} most, by {gaps[worst]:.3g}", hint or ""
    return "", ""


def _rounding(round_: int, gap: float, within: float) -> str:
    least = max(within, 10.0 ** ceil(log10(gap)))
    return (
        f"; round {round_} differs first, by {gap:.2g}: that is rounding (another order of summing), which "
        f"training amplifies; judge that round alone, --set rounds={max(1, round_)} --within {least:g}"
    )
