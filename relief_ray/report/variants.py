"""What a method is called where another with its name stands beside it: the bare name belongs to the preset itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import JsonValue

from relief_ray.names import shown
from relief_ray.strategies import PRESETS

Named = tuple[str, Mapping[str, JsonValue]]
_PRESETS: Mapping[str, Mapping[str, JsonValue]] = {shown(k): s.model_dump(mode="json") for k, s in PRESETS.items()}


def variant_names(methods: Sequence[Named]) -> list[str]:
    """A name for each (label, configuration): ``relief``, and ``relief (gamma=0.5)`` where 0.5 is not the preset's.

    What is given does not depend on which other cells are there. A user's own method has no preset: where its cells
    differ, every one says in what. What a search varies is no variant: a tuned method keeps its name.
    """
    sections = [(label, _section(config)) for label, config in methods]
    namesakes: dict[str, list[Mapping[str, JsonValue]]] = {}
    for label, strategy in sections:
        namesakes.setdefault(label, []).append(strategy)
    return [_variant_name(label, strategy, namesakes[label]) for label, strategy in sections]


def choice_kind(config: Mapping[str, JsonValue]) -> str:
    """``tuned`` where a search chose values, ``try`` for one of its tries, else empty."""
    choice = config.get("choice")
    return str(choice.get("kind") or "") if isinstance(choice, dict) else ""


def chosen_keys(config: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """The dotted keys of the values that the search varies."""
    choice = config.get("choice")
    keys = choice.get("parameters") if isinstance(choice, dict) else None
    return tuple(str(k) for k in keys) if isinstance(keys, list | tuple) else ()


def searched_keys(configs: Iterable[Mapping[str, JsonValue]]) -> tuple[str, ...]:
    """``chosen_keys`` of them all: methods without a number of their own get one that the others keep."""
    return tuple(dict.fromkeys(key for config in configs for key in chosen_keys(config)))


def _section(config: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    strategy, chosen = config.get("strategy"), chosen_keys(config)
    return {k: v for k, v in strategy.items() if f"strategy.{k}" not in chosen} if isinstance(strategy, dict) else {}


def _variant_name(label: str, mine: Mapping[str, JsonValue], namesakes: Sequence[Mapping[str, JsonValue]]) -> str:
    preset = _PRESETS.get(label)
    if preset is not None:
        # A field that the preset no longer has is of an older program, which tables mark as other code.
        keys = [k for k in mine if k != "name" and k in preset and mine[k] != preset[k]]
    else:
        keys = [k for k in mine if any(other.get(k) != mine[k] for other in namesakes)]
    own = ", ".join(f"{k}={mine[k]}" for k in sorted(keys))
    return f"{label} ({own})" if own else label
