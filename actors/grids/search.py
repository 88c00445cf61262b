"""Optuna as the sampler of a search: it is asked for tries in small batches and told their validation F1.

Suggestions depend on the seed and on the scores of earlier batches alone, not on the order in which cells end. Asked
again with the same scores it suggests the same tries: a search that was stopped goes on from its folders.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from relief_ray.studies.spec import Level
from relief_ray.support.errors import UserError
from relief_ray.support.text import install
from tune_configs.space import Dimension, SearchPlace

if TYPE_CHECKING:
    import optuna

_NOTHING: Mapping[str, Mapping[int, float]] = MappingProxyType({})
_RANDOM_FIRST = 5
# How often it is asked for a try before one that it suggests again is taken for all there is.
_MOST_ASKS = 20


def require_optuna() -> None:
    """Check that Optuna is installed.

    Raises:
        UserError: it is not.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UserError(f"--search optuna: Optuna is not installed; {install('search')}")


@dataclass(kw_only=True, slots=True)
class Sampler:
    """Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011) at one place.

    Attributes:
        place: method, dataset, fold and axes.
        seed: of the search; each place has a stream of its own.
        tries: tries that were suggested, in order.
    """

    place: SearchPlace
    seed: int
    tries: list[Level] = field(default_factory=list)
    _study: optuna.Study = field(init=False)
    _trials: dict[str, list[optuna.Trial]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Open a study in memory."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = zlib.crc32(f"{self.seed} {self.place.name}".encode())
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_RANDOM_FIRST)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)

    def ask(self, number: int) -> None:
        """Suggest so many more tries."""
        wanted = len(self.tries) + number
        for _ in range(_MOST_ASKS * number):
            if len(self.tries) == wanted:
                return
            trial = self._study.ask()
            settings: dict[str, object] = {}
            parts = []
            for dimension in self.place.space:
                name, chosen = _suggested(trial, dimension)
                settings |= chosen
                parts.append(name)
            level = Level(name="-".join(parts), settings=settings)
            self._trials.setdefault(level.name, []).append(trial)
            if level.name not in {known.name for known in self.tries}:
                self.tries.append(level)

    def tell(self, scores: Mapping[str, float], pruned: Mapping[str, Mapping[int, float]] = _NOTHING) -> None:
        """Give Optuna the scores of open tries, by name; a try without one counts as failed.

        ``pruned``: of tries that were stopped early, their scores by round; Optuna ranks them by the last.
        """
        from optuna.trial import TrialState

        for name, trials in self._trials.items():
            for trial in trials:
                for round_, f1 in pruned.get(name, {}).items():
                    trial.report(f1, round_)
                if name in scores:
                    self._study.tell(trial, scores[name])
                elif name in pruned:
                    self._study.tell(trial, state=TrialState.PRUNED)
                else:
                    self._study.tell(trial, state=TrialState.FAIL)
        self._trials = {}


def _suggested(trial: optuna.Trial, dimension: Dimension) -> tuple[str, Mapping[str, object]]:
    """Name and settings of a suggestion; numbers have four digits, so that a name says all of them."""
    if dimension.choices:
        number = trial.suggest_categorical(dimension.name, list(range(len(dimension.choices))))
        chosen = dimension.choices[number]
        single = next(iter(chosen.values())) if len(chosen) == 1 else None
        return f"{dimension.name}{single if isinstance(single, int | float) else number}", chosen
    if dimension.is_int:
        whole = trial.suggest_int(dimension.name, int(dimension.low), int(dimension.high), log=dimension.log)
        return f"{dimension.name}{whole}", {dimension.key: whole}
    value = trial.suggest_float(dimension.name, dimension.low, dimension.high, log=dimension.log)
    rounded = float(f"{value:.4g}")
    return f"{dimension.name}{rounded:g}", {dimension.key: rounded}
