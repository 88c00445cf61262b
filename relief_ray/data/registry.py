"""The built-in datasets by name, and users' own by import path: a built-in dataset is one file and one line here."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from relief_ray.data.arrays import stored
from relief_ray.data.checks import refuse, spec_violations, with_own_types
from relief_ray.data.formats.dsa import DSA
from relief_ray.data.formats.dsa_mini import DSA_MINI
from relief_ray.data.formats.mhealth import MHEALTH
from relief_ray.data.formats.pamap2 import PAMAP2
from relief_ray.data.loader import DatasetSpec, Loader
from relief_ray.plugins.load import ONLY_A_RECORD, closed, import_path, is_path, is_stored, load, what_to_type
from relief_ray.support.errors import UserError, nearest, shown

_BUILT_IN = (
    PAMAP2,
    MHEALTH,
    DSA,
    DSA_MINI,
)

DATASETS: Mapping[str, Loader] = {loader.spec.name: loader for loader in _BUILT_IN}


def get_loader(name: str) -> Loader:
    """The dataset of that name or import path; a user's own is named by its import path.

    Raises:
        UserError: the name is unknown, nothing usable is at the import path, or the description contradicts itself.
    """
    if is_path(name):
        loader = load_own(import_path(name))
        refuse(f"data.name = {loader.spec.name!r}, its DatasetSpec", spec_violations(loader.spec))
        return loader
    if name in DATASETS:
        return DATASETS[name]
    if hint := what_to_type(name, Loader):
        raise UserError(f"dataset {shown(name)} is unknown: {hint}")
    raise UserError(
        f"dataset {shown(name)} is unknown{nearest(name, DATASETS)}; known: {', '.join(sorted(DATASETS))}; "
        "one of your own goes by its import path, my.module:LOADER, or is made of arrays by rr.dataset(..)"
    )


def get_spec(name: str) -> DatasetSpec:
    """The facts of the dataset of that name or import path; UserError lists the known names otherwise."""
    return get_loader(name).spec


def recorded_spec(name: str) -> DatasetSpec:
    """As ``get_spec``, for a name out of a record: a user's file is read only where this process has it already."""
    with closed(ONLY_A_RECORD):
        return get_spec(name)


def load_own(path: str) -> Loader:
    """A user's loader as its file has it, named by its import path; nothing of its description is checked.

    Raises:
        UserError: there is nothing at the path, or no `Loader`.
    """
    if is_stored(path):
        return stored(path)
    loader = load(path, "data.name", Loader)
    if not isinstance(loader, Loader):
        raise UserError(
            f"data.name = {path!r}: found a {type(loader).__name__}, expected a {Loader.__module__}.Loader "
            "(spec=DatasetSpec(..), files=.., parse=..)"
        )
    if not isinstance(loader.spec, DatasetSpec):
        raise UserError(
            f"data.name = {path!r}: its `spec` is a {type(loader.spec).__name__}, expected a DatasetSpec(..)"
        )
    # Arrays that the file makes a data set of go by their content.
    spec = loader.spec if is_stored(loader.spec.name) else replace(loader.spec, name=path)
    with suppress(ValueError):  # of a wrong type, as `spec_violations` says
        spec = with_own_types(spec)
    return replace(loader, spec=spec)
