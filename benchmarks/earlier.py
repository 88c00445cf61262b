"""A profile that was made before: `relief-ray device profile` wrote it, the rounds it predicts are measured now."""

from __future__ import annotations

from pathlib import Path

from relief_ray.devices.time import Measured, Profile
from relief_ray.errors import UserError
from relief_ray.experiment.clocks import foreign_profile, run_clocks
from relief_ray.experiment.setup import Setup
from relief_ray.records.identity import machine_facts


def earlier(path: Path, setup: Setup) -> Profile:
    """The profile in a file, if it was measured here, with what is about to be measured.

    Raises:
        UserError: no such file; not of this machine, thread count, backbone or shape; a device type is missing.
    """
    config = setup.config.model_copy(update={"costs": setup.config.costs.model_copy(update={"profile": str(path)})})
    clocks = run_clocks(config, setup.engine)
    model = clocks["measured"]
    assert isinstance(model, Measured)
    profile, here = model.profile, machine_facts()
    if profile.measured is None:
        raise UserError(f"{path}: does not say how it was measured; take what `relief-ray device profile` wrote")
    if foreign := foreign_profile(config, setup.job.build().shape, clocks):
        raise UserError(foreign[0])
    there = profile.measured
    if (there.cpu, there.num_threads) != (here.cpu, here.num_threads):
        raise UserError(
            f"{path}: measured on {there.cpu}, threads: {there.num_threads}; this is {here.cpu}, threads: "
            f"{here.num_threads}; profile this machine"
        )
    if missing := sorted({c.device for c in setup.fleet.clients} - profile.devices.keys()):
        raise UserError(f"{path}: has no row for device types {', '.join(missing)}; profile with --types A,B,C")
    return profile
