"""Checks of a study in Python for runs of other code: files that were edited, and runs that are stale."""

from __future__ import annotations

from relief_ray.errors import UserError, counted, listed
from relief_ray.plugins import edited_since_import
from relief_ray.studies.plans import STALE_FOLDER, Plan


def refuse_edited(plan: Plan) -> None:
    """Check that this process runs the user's files as they are now: a record names the hash of the file.

    Raises:
        UserError: a file was edited after this process had imported it, so that the old code would run.
    """
    modules = {module for cell in plan.cells for module in cell.config.modules()}
    if files := edited_since_import(modules):
        verb = "was" if len(files) == 1 else "were"
        raise UserError(
            f"{listed(files)} {verb} edited after this process had imported it: the old code would run, and the record "
            "would name the new; start Python again (in a notebook: restart the kernel), or importlib.reload its module"
        )


def refuse_stale(plan: Plan) -> None:
    """Check that no run of the plan was computed or begun by other code or on other frozen weights.

    Raises:
        UserError: some were; the first is named, with what changed and the ways on.
    """
    stale = [cell for cell in plan.cell_folders() if cell.status == "stale"]
    if stale:
        first, more = stale[0], len(stale) - 1
        also = f" (and {counted(more, 'run')} more)" if more else ""
        raise UserError(
            f"{first.folder}{also}: holds a run of other code or weights: {first.why}; expected those of today "
            f"(`here`). Compute it again with rerun_stale=True (the old run is kept in {plan.out / STALE_FOLDER}), "
            "choose another folder (out=..), or take it as it is with other_code=True"
        )
