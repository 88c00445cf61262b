"""Plans of `relief-ray run`: from a preset or a file to checked cells, and back from `plan.json` for a resume.

Also opens presets, files and run folders for commands that train nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from relief_ray.config.experiment import ExperimentConfig, override, parse, preset
from relief_ray.experiment.lifecycle import stored_engine
from relief_ray.experiment.recording import now
from relief_ray.experiment.setup import Setup, prepare
from relief_ray.plugins.load import is_path, load_kind
from relief_ray.records.cells import PLAN_FILE, PlanFile, count_begun, read_plan_file, register_claims, write_plan_file
from relief_ray.records.lock import FileLock, lock_folder
from relief_ray.records.run_folder import RUN_FILE, read_rounds, read_run
from relief_ray.strategies import REFERENCE
from relief_ray.strategies.common import StrategyConfig
from relief_ray.studies.axes import Axes, with_axes
from relief_ray.studies.cells import Cell, Draw, draw_of, numbers
from relief_ray.studies.plans import (
    CellFolder,
    Plan,
    cells_in,
    difference,
    make_cell,
    refuse_masked,
    refuse_other_than,
    row_of,
    set_stale_aside,
)
from relief_ray.studies.presets import PRESETS, Preset, make_preset
from relief_ray.support.errors import UserError, clipped, listed, nearest, shown
from relief_ray.support.files import disk_errors
from relief_ray.support.text import typed
from relief_ray.support.user_yaml import read_mapping

_SUFFIXES = (".yaml", ".yml", ".json")


def load_preset(target: str) -> Preset:
    """A preset by name, or a configuration file as a preset of one run.

    Raises:
        UserError: neither; the nearest preset is named.
    """
    if target in PRESETS:
        return make_preset(target)
    path = Path(target)
    if path.suffix in _SUFFIXES or path.is_file():
        return _from_file(path)
    if path.is_dir():
        raise UserError(
            f"{target}: is a folder, expected a preset or a file; go on with its runs: relief-ray resume "
            f"{typed(target)}"
        )
    raise UserError(
        f"preset {target!r}: unknown{nearest(target, PRESETS)}; expected {', '.join(PRESETS)}, or a file (FILE.yaml)"
    )


def _from_file(path: Path) -> Preset:
    """A configuration file as a preset of one run, with the file's strategy, seed and fold.

    Raises:
        UserError: there is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise UserError(
            f"{path}: no such file in {Path.cwd()}; expected a configuration file (YAML or JSON), or a preset: "
            f"{', '.join(PRESETS)}"
        )
    values = read_mapping(path)
    try:
        chosen = replace(preset_of(values, path.stem), title=str(path))
        _check_strategy(chosen.strategies[0])
        return chosen
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def preset_of(values: dict[str, object], name: str) -> Preset:
    """Values of a configuration as a preset of one run, ``name``: where they name none."""
    values = dict(values)
    strategy = values.pop("strategy", REFERENCE)
    label = _strategy_of({"strategy": strategy})
    if isinstance(strategy, dict):
        values["strategy"] = strategy
    return Preset(name=str(values.get("name", name)), title="", strategies=(label,), values=values)


def make_plan(target: str, settings: Sequence[str], axes: Axes, out: Path | None) -> Plan:
    """Check every configuration and every folder before the first run starts.

    Raises:
        UserError: any of them is wrong.
    """
    chosen, settings = with_axes(load_preset(target), axes, settings)
    folder = out or Path("runs") / chosen.name
    source = Path(chosen.claims) if chosen.claims else None
    plan = Plan(name=chosen.name, out=folder, cells=tuple(cells_of(chosen, settings)), claims_file=source)
    for cell in plan.cell_folders():
        check_folder(cell)
        _refuse_begun(cell)
    return plan


def cells_of(chosen: Preset, settings: Sequence[str]) -> Iterator[Cell]:
    """One run per replicate or seed, fold and strategy.

    An axis that ``settings`` fix, or that the split lacks, has no effect. ``replicates=2`` or
    ``replicates=[0, 4]`` chooses those.
    """
    chosen, settings = _with_replicates(chosen, settings)
    fixed = {setting.partition("=")[0] for setting in settings}
    values = override(chosen.values, settings)
    folds: Sequence[int | None] = chosen.folds if _split_of(values) == "held_out_subject" else ()
    labels = chosen.strategies if not {"strategy", "strategy.name"} & fixed else (_strategy_of(values),)
    for draw in _draws(chosen, fixed):
        for fold in (_fold_of(values),) if "data.fold" in fixed else folds or (None,):
            place = [] if fold is None or "data.fold" in fixed else [f"data.fold={fold}"]
            place += [f"{key}={value}" for key, value in (draw(fold).settings if draw else {}).items()]
            for label in dict.fromkeys(labels):
                refuse_others(settings, label, labels)
                yield _cell_of(chosen, settings, label, place)


def _with_replicates(chosen: Preset, settings: Sequence[str]) -> tuple[Preset, list[str]]:
    """The preset with the replicates that a setting chooses, and the other settings.

    Raises:
        UserError: no numbers, or ``replicate``, which is derived.
    """
    rest = []
    for setting in settings:
        (key, value), *_ = override({}, [setting]).items()
        if key == "replicate":
            raise UserError(f"--set {setting}: names a run's replicate; expected --set 'replicates=[{value}]'")
        if key == "replicates":
            chosen = replace(chosen, replicates=numbers(key, value))
        else:
            rest.append(setting)
    return chosen, rest


def _draws(chosen: Preset, fixed: Collection[str]) -> Sequence[Callable[[int | None], Draw] | None]:
    """Seeds of the runs by fold; None: as the settings or the preset's values have it."""
    if "seed" in fixed or (not chosen.replicates and "seed" in chosen.values):
        return [None]
    if chosen.replicates and "fleet.rotation" not in fixed:
        return [partial(draw_of, number) for number in chosen.replicates]
    return [partial(_same_seed, seed) for seed in chosen.seeds]


def _same_seed(seed: int, fold: int | None) -> Draw:
    """The seed, whatever the fold."""
    return Draw(seed=seed)


def _fold_of(values: Mapping[str, object]) -> int | None:
    """The fold that unchecked values ask for."""
    data = values.get("data")
    fold = data.get("fold") if isinstance(data, dict) else None
    return fold if isinstance(fold, int) else None


def _strategy_of(values: Mapping[str, object]) -> str:
    """The strategy's name in unchecked values.

    Raises:
        UserError: there is none.
    """
    strategy = values.get("strategy")
    name = strategy.get("name") if isinstance(strategy, dict) else strategy
    if not isinstance(name, str):
        raise UserError(
            f"strategy = {shown(strategy)}: expected the name of a method, or a section with one; write strategy=relief"
            " or strategy.name=relief"
        )
    return name


def _split_of(values: Mapping[str, object]) -> object:
    """The split that unchecked values ask for."""
    data = values.get("data")
    return data.get("split") if isinstance(data, dict) else None


def _cell_of(chosen: Preset, settings: Sequence[str], label: str, axes: Sequence[str]) -> Cell:
    """One cell; its configuration is the preset, then the axes, then the user's settings."""
    _check_strategy(label)
    values = {"strategy": {"name": label}, **chosen.values}
    source = chosen.title if Path(chosen.title).suffix in (".yaml", ".yml", ".json") else chosen.name
    config = parse(override(values, [*axes, *settings]), f"{clipped(source)} ({clipped(label)})")
    held_out = [f"f{config.data.fold}"] if config.data.split == "held_out_subject" else []
    parts = [label.replace(":", "."), *held_out, config.draw_name]
    title = "-".join([chosen.name, label, *parts[1:]])
    named = config if "name" in config.model_fields_set else config.model_copy(update={"name": title})
    return make_cell("-".join(parts), label, named)


def refuse_others(settings: Sequence[str], label: str, labels: Sequence[str]) -> None:
    """Check that a setting of the strategy that some method of the run has is one of this method's too.

    Raises:
        UserError: it is not; the methods that have it are named, and how to set it for them alone.
    """
    for setting in settings:
        path, _, value = setting.partition("=")
        section, _, rest = path.partition(".")
        key = rest.partition(".")[0]
        if section != "strategy" or key in ("", "name"):
            continue
        _check_strategy(label)
        havers = [name for name in dict.fromkeys(labels) if key in _kind_of(name).model_fields]
        if havers and label not in havers:
            kind, others = _kind_of(havers[0]), ",".join(name for name in dict.fromkeys(labels) if name != havers[0])
            raise UserError(
                f"--set {setting}: {label} has no {key!r}, only {listed(havers)}; --set strategy.* goes to every "
                f"method of the run. Give the one method alone another value: write CHANGED = {kind.__name__}({rest}="
                f"{value}) in a file of yours, and name it: --strategies {others},my_file:CHANGED; in Python "
                f"strategies=[.., {kind.__name__}({rest}={value})]"
            )


def _kind_of(label: str) -> type[StrategyConfig]:
    """Class of a preset, or of what a user's import path names."""
    config = load_kind(label, "strategies", StrategyConfig) if is_path(label) else preset(label)
    return config if isinstance(config, type) else type(config)


def _check_strategy(name: str) -> None:
    """Turn an unknown strategy into an error for users."""
    try:
        if not is_path(name):
            preset(name)
    except ValueError as error:
        raise UserError(f"strategy: {error}") from error


def check_folder(cell: CellFolder) -> None:
    """Check that a folder is free, or holds this very run and can be read.

    Raises:
        UserError: it holds another run or a damaged one, or another driver is at work there.
    """
    run = cell.state.run
    if run is None:
        if (cell.folder / RUN_FILE).exists():
            raise UserError(cell.why)
        return
    if run.config_hash != cell.cell.hash:
        if differs := difference(run.config, cell.cell.config):
            raise UserError(f"{cell.folder}: holds another run ({differs}); choose a folder with --out DIR")
        raise UserError(
            f"{cell.folder}: holds a run of the same settings under another hash ({run.config_hash[:8]} there, "
            f"{cell.cell.hash[:8]} here): the program's schema or defaults, or a device profile, changed since; choose "
            f"a folder with --out DIR, or go on with that run: relief-ray resume {typed(cell.folder)} --other-code"
        )
    if not cell.is_finished:
        lock_folder(cell.folder, "the run folder").release()
    elif cell.status == "failed":
        raise UserError(cell.why)


def _refuse_begun(cell: CellFolder) -> None:
    """Check that `relief-ray run` would not go on with a run that was begun.

    Raises:
        UserError: it would; `relief-ray resume` does that.
    """
    if cell.status == "stale":
        return  # refused with other ways on (`running.refuse_stale`)
    if cell.state.run is not None and not cell.is_finished and read_rounds(cell.folder):
        raise UserError(
            f"{cell.folder}: this run was begun and is not finished; go on with: relief-ray resume {typed(cell.folder)}"
        )


def write_plan(plan: Plan) -> None:
    """Add the runs to ``plan.json`` in the output folder, so that `relief-ray resume` can complete all of it.

    Raises:
        UserError: the folder cannot be written, or holds runs that were begun without these claims.
    """
    path = plan.out / PLAN_FILE
    with disk_errors(plan.out, "write the plan"):
        plan.out.mkdir(parents=True, exist_ok=True)
    with FileLock(plan.out / "plan.lock", "the plan"):
        planned = {cell.name for cell in plan.cells}
        earlier = read_plan_file(path) if path.exists() else PlanFile(name=plan.name, cells=())
        rows = [*(row for row in earlier.cells if row.folder not in planned), *map(row_of, plan.cells)]
        begun = count_begun(plan.out, [row.folder for row in rows])
        claims = register_claims(plan.out, plan.claims_file, earlier.claims, begun=begun, now=now())
        write_plan_file(path, PlanFile(name=plan.name, cells=tuple(rows), claims=claims))


def read_plan(folder: Path, settings: Sequence[str] = ()) -> Plan:
    """The plan of a folder, or of a single run's folder; ``settings`` may change how, not what is computed.

    Raises:
        UserError: neither a plan nor a run is there, it cannot be read, or its folders cannot be used.
    """
    refuse_other_than(("runtime.", "tracking."), settings)
    path = folder / PLAN_FILE
    if path.exists():
        content = read_plan_file(path)
        cells = cells_in(content, path, settings)
        plan = Plan(name=content.name, out=folder, cells=cells, claims=content.claims)
    else:
        run = read_run(folder)
        config = parse(override(run.config, settings), str(folder / RUN_FILE))
        # The only cell lies in the folder itself.
        cell = make_cell(".", run.strategy, config, stored_hash=run.config_hash)
        plan = Plan(name=run.name, out=folder, cells=(cell,))
    for cell in plan.cells:
        refuse_masked(cell.config, folder)
    for placed in plan.cell_folders():
        check_folder(placed)
    return plan


def without_stale(plan: Plan, settings: Sequence[str] = ()) -> Plan:
    """Set the stale runs of a plan aside in ``stale/``, and return the plan that computes them again.

    ``plan`` and ``settings``: of ``read_plan``. The folder of a single run is set aside beside itself.

    Raises:
        UserError: a process is at work in one of them, or it cannot be moved.
    """
    single = plan.cells[0].name == "."
    set_stale_aside(plan.cell_folders(), plan.out.absolute().parent if single else plan.out)
    if not single:
        return read_plan(plan.out, settings)
    # Nothing is left in its folder to read; what is computed there next is this program's.
    cell = plan.cells[0]
    return replace(plan, cells=(make_cell(cell.name, cell.label, cell.config),))


def open_target(target: str, settings: Sequence[str], strategy: str | None = None) -> Setup:
    """The first run that `relief-ray run TARGET` would make, or the run in a folder, with ``settings`` applied.

    Raises:
        UserError: the target is neither, or its data are not there.
    """
    return prepare(target_config(target, [*settings, *([f"strategy={strategy}"] if strategy else [])]))


def target_config(target: str, settings: Sequence[str]) -> ExperimentConfig:
    """Configuration of ``open_target``."""
    folder = Path(target)
    if (folder / RUN_FILE).exists():
        return parse(override(read_run(folder).config, settings), str(folder / RUN_FILE))
    return next(cells_of(load_preset(target), settings)).config


def open_run(folder: Path) -> Setup:
    """Setup of a run as it was started; only reads, so the run may be under way.

    Raises:
        UserError: no run is there, or its data are gone.
    """
    run = read_run(folder)
    return prepare(parse(run.config, str(folder / RUN_FILE)), engine=stored_engine(run))
