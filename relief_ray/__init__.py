"""RELIEF-Ray's library: federated learning under coupled compute, sensor and data heterogeneity.

``import relief_ray as rr`` is all that a script, a notebook, or a method, data set or backbone of one's own needs:
``rr.run("demo")`` computes a study, ``rr.load("runs/demo")`` opens one, ``rr.methods()`` lists the methods. Names are
loaded when they are first used, so that the import itself takes no time and needs neither torch nor Ray.

The rooms follow Algorithm 1 of the paper: `server` allocates and aggregates, `training` runs on the device,
`federated.run_round` is one round from top to bottom. Nothing here imports Ray; the runtime is the package `actors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from relief_ray.support.version import __version__

if TYPE_CHECKING:
    from relief_ray.config.experiment import EvaluationConfig, ExperimentConfig, RecordConfig
    from relief_ray.config.runtime import RuntimeConfig, TrackingConfig
    from relief_ray.core.client import ClientContext, ClientProgram, LocalStep
    from relief_ray.core.extra_modules import Classifier, Connector, Experts
    from relief_ray.core.federated import ExplainRequest, PlannedRun, RoundContext, ServerTools, Strategy
    from relief_ray.core.groups import WHOLE, GroupLayout, ParamGroup
    from relief_ray.core.messages import (
        Assignment,
        ClientInfo,
        Collect,
        EvalPlan,
        EvalTarget,
        Fleet,
        Receipt,
        Reduced,
        ServerState,
        StageTimes,
        Update,
        WeightedSum,
    )
    from relief_ray.core.protocols import Explanation, ExplanationSection
    from relief_ray.core.stages import RAW, StageSpec
    from relief_ray.data.config import DataConfig
    from relief_ray.data.loader import DatasetSpec, Loader, Members, Recording, bouts_of, require_members
    from relief_ray.devices.accounting import CostConfig
    from relief_ray.devices.fleet import FleetConfig
    from relief_ray.devices.time import TimeModel, link_times
    from relief_ray.models.backbone import Backbone, BackboneConfig, GroupParameters, InputShape, Stage, seeded
    from relief_ray.models.cnn import CnnConfig
    from relief_ray.models.module import ModuleBackbone, from_module
    from relief_ray.server.aggregation import (
        apply_step,
        by_samples,
        mean_step,
        one_bucket,
        over_members,
        over_participants,
        uniform,
    )
    from relief_ray.server.optimizer import ServerConfig
    from relief_ray.strategies.common import StrategyConfig, allocate_everything, average, averaging, train_everything
    from relief_ray.studies.describe import MethodInfo, describe, describe_data, methods
    from relief_ray.studies.loop import run
    from relief_ray.studies.study import Page, Picture, Run, Study, load
    from relief_ray.support.errors import UserCodeFailed, UserError
    from relief_ray.training.config import TrainingConfig

# Module of every public name; the imports above say the same to type checkers and editors.
_PUBLIC = {
    "core.client": ("ClientContext", "ClientProgram", "LocalStep"),
    "config.experiment": ("EvaluationConfig", "ExperimentConfig", "RecordConfig"),
    "config.runtime": ("RuntimeConfig", "TrackingConfig"),
    "data.config": ("DataConfig",),
    "data.loader": ("DatasetSpec", "Loader", "Members", "Recording", "bouts_of", "require_members"),
    "devices.accounting": ("CostConfig",),
    "devices.fleet": ("FleetConfig",),
    "devices.time": ("TimeModel", "link_times"),
    "support.errors": ("UserCodeFailed", "UserError"),
    "core.extra_modules": ("Classifier", "Connector", "Experts"),
    "core.federated": ("ExplainRequest", "PlannedRun", "RoundContext", "ServerTools", "Strategy"),
    "core.groups": ("WHOLE", "GroupLayout", "ParamGroup"),
    "core.messages": (
        "Assignment", "ClientInfo", "Collect", "EvalPlan", "EvalTarget", "Fleet", "Receipt", "Reduced", "ServerState",
        "StageTimes", "Update", "WeightedSum",
    ),
    "models.backbone": ("Backbone", "BackboneConfig", "GroupParameters", "InputShape", "Stage", "seeded"),
    "models.cnn": ("CnnConfig",),
    "models.module": ("ModuleBackbone", "from_module"),
    "core.protocols": ("Explanation", "ExplanationSection"),
    "server.aggregation": (
        "apply_step", "by_samples", "mean_step", "one_bucket", "over_members", "over_participants", "uniform",
    ),
    "server.optimizer": ("ServerConfig",),
    "core.stages": ("RAW", "StageSpec"),
    "strategies.common": ("StrategyConfig", "allocate_everything", "average", "averaging", "train_everything"),
    "studies.loop": ("run",),
    "studies.describe": ("MethodInfo", "describe", "describe_data", "methods"),
    "studies.study": ("Page", "Picture", "Run", "Study", "load"),
    "training.config": ("TrainingConfig",),
}  # fmt: skip
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "RAW",
    "WHOLE",
    "Assignment",
    "Backbone",
    "BackboneConfig",
    "Classifier",
    "ClientContext",
    "ClientInfo",
    "ClientProgram",
    "CnnConfig",
    "Collect",
    "Connector",
    "CostConfig",
    "DataConfig",
    "DatasetSpec",
    "EvalPlan",
    "EvalTarget",
    "EvaluationConfig",
    "ExperimentConfig",
    "Experts",
    "ExplainRequest",
    "Explanation",
    "ExplanationSection",
    "Fleet",
    "FleetConfig",
    "GroupLayout",
    "GroupParameters",
    "InputShape",
    "Loader",
    "LocalStep",
    "Members",
    "MethodInfo",
    "ModuleBackbone",
    "Page",
    "ParamGroup",
    "Picture",
    "PlannedRun",
    "Receipt",
    "RecordConfig",
    "Recording",
    "Reduced",
    "RoundContext",
    "Run",
    "RuntimeConfig",
    "ServerConfig",
    "ServerState",
    "ServerTools",
    "Stage",
    "StageSpec",
    "StageTimes",
    "Strategy",
    "StrategyConfig",
    "Study",
    "TimeModel",
    "TrackingConfig",
    "TrainingConfig",
    "Update",
    "UserCodeFailed",
    "UserError",
    "WeightedSum",
    "__version__",
    "allocate_everything",
    "apply_step",
    "average",
    "averaging",
    "bouts_of",
    "by_samples",
    "describe",
    "describe_data",
    "from_module",
    "link_times",
    "load",
    "mean_step",
    "methods",
    "one_bucket",
    "over_members",
    "over_participants",
    "require_members",
    "run",
    "seeded",
    "train_everything",
    "uniform",
]


def __getattr__(name: str) -> object:
    """Load a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint(name)}")
    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def _hint(name: str) -> str:
    from relief_ray.support.errors import nearest

    return nearest(name, _MODULES)


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})
