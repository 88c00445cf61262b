"""Searches, and the choices that are frozen of them.

Equal budgets for every method: five learning rates x three values of one parameter, on validation data alone.
``search_lr`` has the paper's Adam, ``search_sgd`` SGD with momentum. ``search_optimizer`` is the small one: three rates
of each, every method's own numbers as they are. `relief-ray grid freeze` writes the choices of a search and
``--set tuned=FILE`` takes them: a choice belongs to a dataset, a fold, a backbone and a method. The fold counts: the
validation windows of one fold come from subjects that the other folds test on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from relief_ray.config.experiment import Choice, ExperimentConfig
from relief_ray.models.registry import backbone_name
from relief_ray.plugins.load import is_path
from relief_ray.report.paper import PAPER_METHODS
from relief_ray.strategies import VARIANTS, search_of
from relief_ray.studies.spec import CNN, PAPER, SGD, SGD_RATES, Level, Point, Spec, Values, backbones
from relief_ray.support.errors import Setting, UserError
from relief_ray.support.files import values_in
from relief_ray.support.frozen import FrozenConfig

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
METHODS = (*PAPER_METHODS, *VARIANTS)
# Of the small search: around the paper's rate for Adam, the best three of `frontier_rates` for SGD.
_FEW_RATES, _FEW_SGD_RATES = (3e-4, 1e-3, 3e-3), (0.03, 0.1, 0.3)


# For methods without a number of their own, so that every method has fifteen tries.
BATCH = tuple(Level(name=f"b{size}", settings={"training.batch_size": size}) for size in (16, 32, 64))


def own_levels(method: str) -> tuple[Level, ...]:
    """The three values of the one parameter that is searched beside the learning rate; ``method``: as in ``Spec``."""
    search = search_of(method).items()
    levels = (Level(name=n, settings={f"strategy.{k}": v for k, v in tried.items()}) for n, tried in search)
    return tuple(levels) or BATCH


def tries(method: str) -> tuple[Level, ...]:
    """The fifteen settings of one method with Adam."""
    return _crossed("lr", RATES, {}, own_levels(method))


def _sgd_tries(method: str) -> tuple[Level, ...]:
    """The fifteen settings of one method with SGD, which are frozen with its momentum and clipping."""
    return _crossed("sgd", SGD_RATES, SGD, own_levels(method))


def _crossed(
    name: str, rates: tuple[float, ...], optimizer: Values, own: Sequence[Level] = (Level(name=""),)
) -> tuple[Level, ...]:
    """Every rate of an optimizer with every value of the method's own parameter."""
    return tuple(
        Level(
            name="-".join(filter(None, (f"{name}{rate:g}", level.name))),
            settings={"training.lr": rate, **optimizer, **level.settings},
        )
        for rate in rates
        for level in own
    )


def _search(name: str, title: str, tries: Callable[[str], tuple[Level, ...]], *seeds: int) -> Spec:
    """A search with these tries, also of a method that a user adds."""
    return Spec(
        name=name,
        title=title,
        methods=METHODS,
        axes=(backbones(CNN),),
        own={method: tries(method) for method in METHODS},
        tries=tries,
        seeds=seeds,
        settings={**PAPER, "evaluation.parts": ["validation"]},
        is_search=True,
    )


SEARCH_LR = _search(
    "search_lr",
    "five learning rates x three values of one parameter for every method, validation data only",
    tries,
    1000,
)
"""11 methods and V1 to V3, 15 tries each, one seed that no table uses; the test part stays closed."""


SEARCH_SGD = _search(
    "search_sgd",
    "five learning rates of SGD x three values of one parameter for every method, validation data only",
    _sgd_tries,
    1000,
)
"""``search_lr`` with SGD (momentum 0.9, gradients clipped to norm 1) and its own five rates; same seeds."""


def _optimizer_tries(method: str) -> tuple[Level, ...]:
    """Three rates of Adam and three of SGD; the same for every method, whose own numbers stay as they are."""
    return (*_crossed("lr", _FEW_RATES, {"training.optimizer": "adam"}), *_crossed("sgd", _FEW_SGD_RATES, SGD))


SEARCH_OPTIMIZER = _search(
    "search_optimizer",
    "Adam or SGD at three rates each for every method, validation data only",
    _optimizer_tries,
    1000,
    1001,
)
"""Adam or SGD, three rates of each, for 11 methods and V1 to V3; two seeds that no table uses, validation data."""


# Key of the setting that names a file of choices.
TUNED = "tuned"


class Place(NamedTuple):
    """What tries compete for: the best values of a method on a dataset, fold (None: there is none) and backbone."""

    dataset: str
    fold: int | None
    backbone: str
    method: str

    def __str__(self) -> str:
        """Return ``relief on dsa, fold 2, cnn``."""
        fold = "" if self.fold is None else f"fold {self.fold}, "
        return f"{self.method} on {self.dataset}, {fold}{self.backbone}"


class Frozen(FrozenConfig):
    """A method's best try on one dataset, fold (None: the split has none) and backbone; ``num_cells`` were averaged."""

    dataset: str
    fold: int | None
    backbone: str
    method: str
    settings: dict[str, JsonValue]
    num_cells: int
    choice: Choice

    @property
    def place(self) -> Place:
        """Place of the choice: dataset, fold, backbone, method."""
        return Place(self.dataset, self.fold, self.backbone, self.method)


class Tuned(FrozenConfig):
    """All choices of one search; ``score`` names the criterion."""

    grid: str
    score: str
    choices: tuple[Frozen, ...]

    def tune(self, point: Point, config: ExperimentConfig, settings: Sequence[Setting]) -> tuple[Values, Choice]:
        """Settings and provenance of the choice for a cell, which keeps its search's values.

        Raises:
            UserError: there is none, or one of the user's settings would replace a value.
        """
        place = place_of(point.dataset, point.method, config)
        frozen = next((choice for choice in self.choices if choice.place == place), None)
        if frozen is None:
            raise UserError(f"{Setting(TUNED, ...)}: has no choice for {place}; search it first, or leave it out")
        for setting in settings:
            if setting.path in frozen.choice.parameters:
                raise UserError(f"{setting}: is chosen by {Setting(TUNED, ...)}; leave one of the two out")
        return frozen.settings, frozen.choice


def place_of(dataset: str, method: str, config: ExperimentConfig) -> Place:
    """Place of a configuration's choice; ``dataset`` is the level of the grids' axis, a user's own its import path."""
    dataset = config.data.name if is_path(config.data.name) else dataset
    fold = config.data.fold if config.data.split == "held_out_subject" else None
    return Place(dataset, fold, backbone_name(config.backbone), method)


def read_tuned(path: Path) -> Tuned:
    """The frozen choices of a search.

    Raises:
        UserError: the file cannot be read as such.
    """
    try:
        return Tuned.model_validate(values_in(path.read_bytes()))
    except (OSError, ValueError) as error:
        shown = str(error).splitlines()[0]
        raise UserError(
            f"{Setting(TUNED, path)}: cannot be read ({shown}); expected what `relief-ray grid freeze` wrote"
        ) from error
