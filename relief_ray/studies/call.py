"""``relief_ray.run``: a study from a preset, a file, a configuration or keywords, computed in this process."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from relief_ray.core.federated import RoundVoid
from relief_ray.plugins.blame import blamed
from relief_ray.plugins.load import sources
from relief_ray.studies.loop import Compute, here, run_plan
from relief_ray.studies.plan import Plan, refuse_stale
from relief_ray.studies.request import (
    Folds,
    Place,
    Request,
    Seeds,
    StrategyLike,
    Target,
    check_words,
    in_python,
    plan_of,
)
from relief_ray.studies.study import Study
from relief_ray.support.errors import UserError, listed

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from relief_ray.config.experiment import EvaluationConfig, RecordConfig
    from relief_ray.config.runtime import RuntimeConfig, TrackingConfig
    from relief_ray.data.config import DataConfig
    from relief_ray.data.loader import Loader
    from relief_ray.devices.accounting import CostConfig
    from relief_ray.devices.fleet import FleetConfig
    from relief_ray.server.optimizer import ServerConfig
    from relief_ray.studies.request import BackboneLike
    from relief_ray.training.config import TrainingConfig

    class Settings(TypedDict, total=False):
        """Sections of a configuration: a mapping changes the keys it names, an object replaces the section."""

        data: str | Loader | DataConfig | Mapping[str, object]
        backbone: BackboneLike
        fleet: FleetConfig | Mapping[str, object]
        training: TrainingConfig | Mapping[str, object]
        server: ServerConfig | Mapping[str, object]
        evaluation: EvaluationConfig | Mapping[str, object]
        costs: CostConfig | Mapping[str, object]
        record: RecordConfig | Mapping[str, object]
        runtime: RuntimeConfig | Mapping[str, object]
        tracking: TrackingConfig | Mapping[str, object]
        participation: float


# Files of users' modules as this process saw them first: the module's import (a reload makes a new one) and the hash.
_FIRST_SEEN: dict[str, tuple[object, str]] = {}


def run(
    experiment: Target = None,
    *,
    strategies: StrategyLike | Sequence[StrategyLike] | None = None,
    seeds: Seeds = None, folds: Folds = None, rounds: int | None = None,
    name: str | None = None, claims: str | Path | None = None, out: str | Path | None = None,
    set: Mapping[str, object] | None = None,
    quiet: bool = False, other_code: bool = False, rerun_stale: bool = False,
    **settings: Unpack[Settings],
) -> Study:  # fmt: skip
    """Compute a study in this process and return it: one run per method, seed and fold, one after the other.

    Args:
        experiment: a preset's name, a YAML or JSON file, an ``ExperimentConfig``, a mapping of its values, or None.
        strategies: names (also ``"fedavg,relief"``), import paths (``"my_module:MyMethod"``), classes, configurations
            or mappings.
        seeds: seeds, in place of the experiment's seeds or replicates: a list, a range, an array.
        folds: folds of the held-out subjects: a list, or one.
        rounds: rounds of every run, without the bootstrap.
        name: name of the study in reports.
        claims: YAML file with at most six claims, named before the first run.
        out: folder of the records, whose runs are reused or gone on with; None: a temporary one.
        set: settings by dotted key, as `--set` takes them: ``{"training.epochs": 2}``.
        quiet: show no progress; what is odd about the data is then a Python warning.
        other_code: take runs that other code computed, and go on with those that it began; else they are refused.
        rerun_stale: compute such runs again; the old ones are kept in the folder ``stale``.
        settings: sections of the configuration: ``data="dsa_mini"``, ``training={"epochs": 2}``.

    Raises:
        UserError: bad input; the message names the place, what was found, what was expected and the fix.
        UserCodeFailed: a file of one's own raised an error; the message names it, function and line.
    """
    request = Request(
        target=experiment, strategies=strategies, seeds=seeds, folds=folds, rounds=rounds, name=name, claims=claims,
        set=set or {}, settings=dict(settings),
    )  # fmt: skip
    return compute_study(request, out, "here", here, quiet=quiet, other_code=other_code, rerun_stale=rerun_stale)


def compute_study(
    request: Request,
    out: str | Path | None,
    place: Place,
    compute: Compute,
    *,
    quiet: bool,
    other_code: bool,
    rerun_stale: bool,
) -> Study:
    """Plan a study, compute what is missing of it, and open it.

    Raises:
        UserError: bad input.
        UserCodeFailed: a file of the user's raised an error; the message names it, function and line.
    """
    with in_python(request.settings), _naming_users_code():
        return _computed(request, out, place, compute, quiet=quiet, other_code=other_code, rerun_stale=rerun_stale)


def _computed(
    request: Request,
    out: str | Path | None,
    place: Place,
    compute: Compute,
    *,
    quiet: bool,
    other_code: bool,
    rerun_stale: bool,
) -> Study:
    check_words({"out": out}, {})
    temporary = TemporaryDirectory(prefix="relief-ray-") if out is None else None
    folder = Path(out if temporary is None else temporary.name).expanduser()  # type: ignore[arg-type]
    try:
        plan = plan_of(request, folder, place)
        _refuse_edited(plan)
        if rerun_stale:
            plan = plan.without_stale()
        elif not other_code:
            refuse_stale(plan, "rerun_stale=True", "other_code=True", "out=..")
        plan.write()
        run_plan(plan, compute, quiet=quiet, other_code=other_code)
        study = Study(folder, is_temporary=temporary is not None)
    except BaseException:
        if temporary is not None:
            temporary.cleanup()
        raise
    if temporary is not None:
        weakref.finalize(study, temporary.cleanup)
    return study


@contextmanager
def _naming_users_code() -> Iterator[None]:
    """Raise an error of a user's own file, on the server too, as ``UserCodeFailed``.

    Raises:
        UserCodeFailed: function, file and line of such an error.
    """
    try:
        yield
    except (UserError, RoundVoid, FloatingPointError):
        raise
    except Exception as error:
        theirs = blamed(error)
        if theirs is None or theirs is error:
            raise
        raise theirs from error


def _refuse_edited(plan: Plan) -> None:
    """Check that this process runs the user's files as they are now: a record names the hash of the file.

    Raises:
        UserError: a file was edited after this process had imported it, so that the old code would run.
    """
    modules = {module for cell in plan.cells for module in cell.config.modules()}
    if files := _edited_since_import(modules):
        verb = "was" if len(files) == 1 else "were"
        raise UserError(
            f"{listed(files)} {verb} edited after this process had imported it: the old code would run, and the record "
            "would name the new; start Python again (in a notebook: restart the kernel), or importlib.reload its module"
        )


def _edited_since_import(modules: Iterable[str]) -> tuple[str, ...]:
    """Return the files of imported ``modules`` that have changed since the first call that saw this import of them.

    A file that was edited before that call is not noticed: Python keeps no hash of what it has imported.
    """
    edited = []
    for source in sources(modules):
        module = sys.modules.get(source.name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        spec = getattr(module, "__spec__", None)
        seen, digest = _FIRST_SEEN.get(source.name, (None, ""))
        if spec is None or seen is not spec:
            _FIRST_SEEN[source.name] = (spec, source.sha256)
        elif digest != source.sha256:
            edited.append(source.name)
    return tuple(edited)
