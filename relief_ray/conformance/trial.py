"""Trials by rules, and their results: of a method, a backbone, a data set, or a method that equals another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from relief_ray.config.experiment import ExperimentConfig, override, parse
from relief_ray.conformance.backbones import BACKBONE_RULES, check_backbone
from relief_ray.conformance.datasets import DATA_RULES, check_loader
from relief_ray.conformance.equals import EQUALS_RULES, STEPS, check_equals
from relief_ray.conformance.rules import RULES, Rule, Verdict
from relief_ray.conformance.runner import PROBLEM, check
from relief_ray.data.loader import Loader
from relief_ray.data.registry import DATASETS, load_own
from relief_ray.experiment.experiment import MakeExecutor
from relief_ray.models.backbone import BackboneConfig
from relief_ray.models.registry import BACKBONES
from relief_ray.plugins.load import is_path, load, what_to_type
from relief_ray.strategies import PRESETS, about_of, facts_of
from relief_ray.strategies.common import StrategyConfig
from relief_ray.support.errors import UserError, counted
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
        return summary(self.name, self.verdicts)

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

    def __str__(self) -> str:
        """Return the text."""
        return self.text


def _unheard(verdict: Verdict) -> None:
    """Take a verdict that nobody shows yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Something before it is judged.

    Attributes:
        name: what is judged.
        heading: its name and what it is, in a line.
        rules: the rules in words.
        verdicts: the verdicts as they are reached; each takes up to minutes.
        about: what is judged, for programs.
        num_threads: threads of torch while it is judged.
    """

    name: str
    heading: str
    rules: Mapping[str, Rule]
    verdicts: Iterable[Verdict]
    about: Mapping[str, object]
    num_threads: int = 1

    def judge(self, on_verdict: Callable[[Verdict], None] = _unheard) -> Conformance:
        """Return all verdicts; ``on_verdict`` sees each one when it is reached."""
        with threads(self.num_threads):
            done = tuple(_told(self.verdicts, on_verdict))
        return Conformance(name=self.name, heading=self.heading, rules=self.rules, verdicts=done, about=self.about)


def _told(verdicts: Iterable[Verdict], on_verdict: Callable[[Verdict], None]) -> Iterator[Verdict]:
    for verdict in verdicts:
        on_verdict(verdict)
        yield verdict


def trial_of(
    target: str,
    settings: Sequence[str],
    executors: Mapping[str, MakeExecutor],
    equals: str = "",
    within: float = 0.0,
) -> Trial:
    """Return what a name or an import path stands for, ready to be judged.

    Args:
        target: a method, a backbone or a data set.
        settings: ``PATH=VALUE``; a key without a section is the method's or the backbone's own.
        executors: of a method: what has to have the bits of the plain loop, by name.
        equals: judge only whether the method's rounds are those of this one.
        within: the largest difference of a value that ``equals`` allows.

    Raises:
        UserError: there is no such target, or a setting is wrong.
    """
    if names_dataset(target):
        return _of_data(target, settings)
    if _names_backbone(target):
        return _of_backbone(target, settings)
    if equals:
        return _of_pair(target, equals, settings, within)
    _refuse_file(target)
    config = parse(override(PROBLEM, [f"strategy={target}", *_for_method(settings)]), "conformance")
    name, about = asked_for(target, config), about_of(config.strategy, config.label())
    return Trial(
        name=name,
        heading=heading(config),
        rules=RULES,
        verdicts=check(config, executors),
        about={"strategy": name, "about": about},
        num_threads=config.runtime.num_threads,
    )


def names_dataset(target: str) -> bool:
    """Whether a name or import path is a dataset's; what cannot be loaded is none."""
    if not is_path(target):
        return target in DATASETS
    try:
        return isinstance(load(target, "conformance"), Loader)
    except UserError:
        return False


def _names_backbone(target: str) -> bool:
    """Whether ``target`` is a backbone: one of ours by its name, or a class or instance; what cannot load is none."""
    if not is_path(target):
        return target in BACKBONES
    try:
        found = load(target, "conformance")
    except UserError:
        return False
    return isinstance(found, BackboneConfig) or (isinstance(found, type) and issubclass(found, BackboneConfig))


def _of_data(target: str, settings: Sequence[str]) -> Trial:
    loader = load_own(target) if is_path(target) else DATASETS[target]
    values = override({"data": {}}, settings)
    section = values["data"]
    if not isinstance(section, Mapping) or set(values) != {"data"}:
        other = ", ".join(sorted(set(values) - {"data"}))
        raise UserError(f"--set {other}: expected keys of data, e.g. --set data.window_s=2.56")
    return Trial(
        name=loader.spec.name,
        heading=f"{loader.spec.name} (dataset): {loader.spec.title}",
        rules=DATA_RULES,
        verdicts=check_loader(loader, section),
        about={"dataset": loader.spec.name, "about": loader.spec.title},
    )


def _of_backbone(target: str, settings: Sequence[str]) -> Trial:
    """``hidden=8`` sets a field of the backbone."""
    problem = {**PROBLEM, "backbone": {"name": target}}
    config = parse(override(problem, _for_method(settings, "backbone")), "conformance")
    sensors = ", ".join(m for m, _ in config.data.spec().modalities)
    return Trial(
        name=target,
        heading=f"backbone {target}, for the data of {config.data.name}: {sensors}",
        rules=BACKBONE_RULES,
        verdicts=check_backbone(config),
        about={"target": target},
        num_threads=config.runtime.num_threads,
    )


def _of_pair(target: str, other: str, settings: Sequence[str], within: float) -> Trial:
    """Settings of the strategy are the method's alone."""
    paths = _for_method(settings)
    common = [s for s in paths if not s.startswith("strategy.")]
    problem = {**PROBLEM, "training": dict(STEPS)}
    config = parse(override(problem, [f"strategy={target}", *paths]), "conformance")
    reference = parse(override(problem, [f"strategy={other}", *common]), "conformance")
    chosen = " ".join(s.removeprefix("strategy.") for s in paths if s not in common)
    return Trial(
        name=target,
        heading=f"{target}{f' with {chosen}' if chosen else ''} against {other}",
        rules=EQUALS_RULES,
        verdicts=(check_equals(each, reference, within) for each in [config]),
        about={"target": target},
        num_threads=config.runtime.num_threads,
    )


def _refuse_file(target: str) -> None:
    """Check that a target is a method's name, or an import path that leads to something.

    Raises:
        UserError: it is not; where a file here is meant, what can be judged in it is named.
    """
    kinds = (StrategyConfig, Loader, BackboneConfig)
    if is_path(target):
        load(target, "conformance", *kinds)
    elif target not in PRESETS and (hint := what_to_type(target, *kinds)):
        raise UserError(f"conformance {target}: {hint}")


def _for_method(settings: Sequence[str], section: str = "strategy") -> list[str]:
    """The settings with full paths: ``beta=0`` is the method's, ``strategy.beta=0``."""
    heads = [s.partition("=")[0].partition(".")[0] for s in settings]
    return [s if h in ExperimentConfig.model_fields else f"{section}.{s}" for s, h in zip(settings, heads, strict=True)]


def heading(config: ExperimentConfig) -> str:
    """The method as its class states it: name, kind and what it does."""
    method, about = facts_of(config.strategy, config.label()), about_of(config.strategy, config.label())
    return f"{method.name} ({method.kind})" + (f": {about}" if about else "")


def line(verdict: Verdict, rules: Mapping[str, Rule] = RULES) -> str:
    """One rule as text; for a broken one also the observation and the fix."""
    rule = rules[verdict.rule]
    if verdict.status == "kept":
        return filled(rule.says, f"  kept        {verdict.rule:<14} ")
    if verdict.status == "not judged":
        return filled(verdict.found, f"  not judged  {verdict.rule:<14} ")
    said, fix = filled(rule.says, f"  BROKEN      {verdict.rule:<14} "), filled(verdict.fix(rules), "      fix:   ")
    heads = ["      found: ", *[" " * 13] * verdict.found.count("\n")]
    found = [filled(text, head) for head, text in zip(heads, verdict.found.split("\n"), strict=True)]
    return "\n".join(filter(None, [said, *found, fix]))


def asked_for(target: str, config: ExperimentConfig) -> str:
    """Title of the strategy: the user's word, and the built-in preset that it varies where that has another name."""
    label = config.label()
    return target if label in (target, target.replace("/", ".")) else f"{target} ({label})"


def summary(name: str, verdicts: Sequence[Verdict]) -> str:
    """The last line: how many rules were kept, broken or not judged."""
    number = {status: sum(v.status == status for v in verdicts) for status in ("kept", "broken", "not judged")}
    if not number["broken"]:
        rest = f", {number['not judged']} not judged" if number["not judged"] else ""
        return f"{name}: keeps {counted(number['kept'], 'rule')}{rest}"
    names = ", ".join(v.rule for v in verdicts if v.status == "broken")
    return f"{name}: breaks {names}; {number['kept']} kept, {number['not judged']} not judged"
