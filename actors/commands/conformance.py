"""`relief-ray strategies` lists methods; `relief-ray conformance my.module:Mine` checks that one keeps the rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Literal

import typer

from actors.runtime.session import SessionOptions, ray_session
from actors.terminal.wrapping import WIDTH, filled
from relief_ray.citations import cite
from relief_ray.config import ExperimentConfig, override, parse
from relief_ray.conformance.rules import RULES, Rule, Verdict
from relief_ray.conformance.runner import PROBLEM, check
from relief_ray.data.loader import Loader
from relief_ray.errors import UserError, counted
from relief_ray.experiment.experiment import MakeExecutor
from relief_ray.models.backbone import BackboneConfig
from relief_ray.plugins import is_path, load, what_to_type
from relief_ray.process import use_threads
from relief_ray.protocols import Executor
from relief_ray.strategies import DESCRIBED, PRESETS, about_of, facts_of
from relief_ray.strategies.common import StrategyConfig
from relief_ray.text import table
from relief_ray.training.job import Job

_NUM_HOSTS = 2


def strategies_command(bibtex: bool, as_json: bool) -> None:
    """Print the list, or the references."""
    if bibtex:
        print(cite(p.config.citation for p in DESCRIBED.values() if p.config.citation is not None))
    elif as_json:
        described = {
            name: {"kind": p.kind, "about": p.about, "config": p.config.model_dump(mode="json")}
            for name, p in DESCRIBED.items()
        }
        print(json.dumps(described, indent=1))
    else:
        rows = [[name, p.kind, p.about] for name, p in DESCRIBED.items()]
        print(table(["strategy", "kind", "what it does"], rows, left=3, width=WIDTH))
        print("\n" + filled("Change one value: --set strategy.gamma=0.5. Use in a run: --strategies fedavg,relief"))


def one_of(target: str | None, address: str | None) -> Literal["rules", "nodes"]:
    """Choose what is judged: a target's rules, or the nodes of a cluster.

    Raises:
        UserError: both were given, or neither.
    """
    if (target is None) == (address is None):
        raise UserError(
            f"conformance: found {'both TARGET and' if target else 'neither TARGET nor'} --address, expected one of "
            "them: `conformance relief`, or `conformance --address HOST:PORT` for the nodes of a cluster"
        )
    return "rules" if address is None else "nodes"


def conformance_command(
    target: str, settings: Sequence[str], use_ray: bool, as_json: bool, equals: str = "", within: float = 0.0
) -> None:
    """Print a line per rule; end with 1 where one is broken. ``equals``: judge only whether it is that method."""
    from actors.commands.conformance_data import conformance_of_data, names_dataset
    from actors.commands.conformance_models import conformance_of_backbone, conformance_of_pair, names_backbone

    if names_dataset(target):
        return conformance_of_data(target, settings, as_json)
    if names_backbone(target):
        return conformance_of_backbone(target, settings, as_json)
    if equals:
        return conformance_of_pair(target, equals, settings, within, as_json)
    _refuse_file(target)
    config = parse(override(PROBLEM, [f"strategy={target}", *for_method(settings)]), "conformance")
    use_threads(config.runtime.num_threads)
    if not as_json:
        print(heading(config))
    verdicts: list[Verdict] = []
    with ExitStack() as stack:
        executors = _ray_executors(stack) if use_ray else {}
        for verdict in check(config, executors):
            verdicts.append(verdict)
            if not as_json:
                print(line(verdict), flush=True)
    broken = [v.rule for v in verdicts if v.status == "broken"]
    name = asked_for(target, config)
    print(_as_text(name, config, verdicts) if as_json else summary(name, verdicts))
    if broken:
        raise typer.Exit(1)


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


def for_method(settings: Sequence[str], section: str = "strategy") -> list[str]:
    """The settings with full paths: ``beta=0`` is the method's, ``strategy.beta=0``."""
    heads = [s.partition("=")[0].partition(".")[0] for s in settings]
    return [s if h in ExperimentConfig.model_fields else f"{section}.{s}" for s, h in zip(settings, heads, strict=True)]


def _ray_executors(stack: ExitStack) -> dict[str, MakeExecutor]:
    """Packed Ray hosts, started with the first run that asks for them."""
    opened: list[bool] = []

    def packed(job: Job) -> Executor:
        if not opened:
            stack.enter_context(ray_session(SessionOptions(num_cpus=_NUM_HOSTS)))
            opened.append(True)
        from actors.runtime.executor import open_executor
        from actors.runtime.host_group import RuntimeOptions

        return open_executor(job, RuntimeOptions(num_hosts=_NUM_HOSTS))

    return {"packed on Ray": packed}


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


def _as_text(name: str, config: ExperimentConfig, verdicts: Sequence[Verdict]) -> str:
    """The method and all verdicts as JSON."""
    rows = [
        {"rule": v.rule, "status": v.status, "found": v.found, "says": RULES[v.rule].says, "fix": v.fix(RULES)}
        for v in verdicts
    ]
    about = about_of(config.strategy, config.label())
    facts = {"strategy": name, "about": about, "keeps": not any(v.status == "broken" for v in verdicts), "rules": rows}
    return json.dumps(facts, indent=1)
