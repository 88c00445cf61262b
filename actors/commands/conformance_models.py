"""`relief-ray conformance my.module:MyBackbone`, and `relief-ray conformance my.module:MyMethod --equals fedavg`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import typer

from actors.commands.conformance import for_method, line, summary
from relief_ray.config import override, parse
from relief_ray.conformance.backbones import BACKBONE_RULES, check_backbone
from relief_ray.conformance.equals import EQUALS_RULES, STEPS, check_equals
from relief_ray.conformance.rules import Rule, Verdict
from relief_ray.conformance.runner import PROBLEM
from relief_ray.errors import UserError
from relief_ray.models.backbone import BackboneConfig
from relief_ray.models.registry import BACKBONES
from relief_ray.plugins import is_path, load
from relief_ray.process import use_threads


def names_backbone(target: str) -> bool:
    """Whether ``target`` is a backbone: one of ours by its name, or a class or instance; what cannot load is none."""
    if not is_path(target):
        return target in BACKBONES
    try:
        found = load(target, "conformance")
    except UserError:
        return False
    return isinstance(found, BackboneConfig) or (isinstance(found, type) and issubclass(found, BackboneConfig))


def conformance_of_backbone(target: str, settings: Sequence[str], as_json: bool) -> None:
    """Print a line per rule; end with 1 where one is broken. ``hidden=8`` sets a field of the backbone."""
    config = parse(override({**PROBLEM, "backbone": {"name": target}}, for_method(settings, "backbone")), "conformance")
    use_threads(config.runtime.num_threads)
    if not as_json:
        sensors = ", ".join(m for m, _ in config.data.spec().modalities)
        print(f"backbone {target}, for the data of {config.data.name}: {sensors}")
    _report(target, check_backbone(config), BACKBONE_RULES, as_json)


def conformance_of_pair(target: str, other: str, settings: Sequence[str], within: float, as_json: bool) -> None:
    """Print whether the method's rounds are those of ``other``; settings of the strategy are the method's alone."""
    paths = for_method(settings)
    common = [s for s in paths if not s.startswith("strategy.")]
    problem = {**PROBLEM, "training": dict(STEPS)}
    config = parse(override(problem, [f"strategy={target}", *paths]), "conformance")
    reference = parse(override(problem, [f"strategy={other}", *common]), "conformance")
    use_threads(config.runtime.num_threads)
    if not as_json:
        chosen = " ".join(s.removeprefix("strategy.") for s in paths if s not in common)
        print(f"{target}{f' with {chosen}' if chosen else ''} against {other}")
    _report(target, [check_equals(config, reference, within)], EQUALS_RULES, as_json)


def _report(name: str, verdicts: Iterable[Verdict], rules: Mapping[str, Rule], as_json: bool) -> None:
    done: list[Verdict] = []
    for verdict in verdicts:
        done.append(verdict)
        if not as_json:
            print(line(verdict, rules), flush=True)
    is_kept = all(v.status != "broken" for v in done)
    rows = [
        {"rule": v.rule, "status": v.status, "found": v.found, "says": rules[v.rule].says, "fix": v.fix(rules)}
        for v in done
    ]
    print(json.dumps({"target": name, "keeps": is_kept, "rules": rows}, indent=1) if as_json else summary(name, done))
    if not is_kept:
        raise typer.Exit(1)
