"""The frozen choices of a search, as `relief-ray grid freeze` writes them and ``--set tuned=FILE`` takes them.

A choice belongs to a dataset, a fold, a backbone and a method. The fold counts: the validation windows of one fold come
from subjects that the other folds test on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue, ValidationError

from relief_ray.config.experiment import Choice, ExperimentConfig
from relief_ray.models.registry import backbone_name
from relief_ray.plugins.load import is_path
from relief_ray.support.errors import UserError
from relief_ray.support.files import PAGE, Unsealed, unsealed
from relief_ray.support.frozen import FrozenConfig

TUNED = "tuned="
Place = tuple[str, int | None, str, str]


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
        return (self.dataset, self.fold, self.backbone, self.method)


class Tuned(FrozenConfig):
    """All choices of one search; ``score`` names the criterion."""

    grid: str
    score: str
    choices: tuple[Frozen, ...]

    def choice(self, dataset: str, method: str, config: ExperimentConfig) -> Frozen:
        """The choice for a cell.

        Raises:
            UserError: the search has none there.
        """
        place = place_of(dataset, method, config)
        for frozen in self.choices:
            if frozen.place == place:
                return frozen
        raise UserError(f"--set tuned=..: has no choice for {words(place)}; search it first, or leave it out")


def place_of(dataset: str, method: str, config: ExperimentConfig) -> Place:
    """Place of a configuration's choice; ``dataset`` is the level of the grids' axis, a user's own its import path."""
    dataset = config.data.name if is_path(config.data.name) else dataset
    fold = config.data.fold if config.data.split == "held_out_subject" else None
    return (dataset, fold, backbone_name(config.backbone), method)


def words(place: Place) -> str:
    """``relief on dsa, fold 2, cnn``."""
    dataset, fold, backbone, method = place
    return f"{method} on {dataset}, {'' if fold is None else f'fold {fold}, '}{backbone}"


def read_tuned(path: Path) -> Tuned:
    """The frozen choices of a search.

    Raises:
        UserError: the file cannot be read as such.
    """
    try:
        return Tuned.model_validate_json(unsealed(path.read_bytes(), PAGE))
    except (OSError, Unsealed, ValidationError) as error:
        shown = str(error).splitlines()[0]
        raise UserError(
            f"--set tuned={path}: cannot be read ({shown}); expected what `relief-ray grid freeze` wrote"
        ) from error


def refuse_overruled(choice: Choice, settings: Sequence[str]) -> None:
    """Check that a cell that is called tuned keeps its search's values.

    Raises:
        UserError: a setting of the user would replace one.
    """
    for setting in settings:
        key = setting.partition("=")[0]
        if key in choice.parameters:
            raise UserError(f"--set {key}: is chosen by --set tuned=..; leave one of the two out")
