"""FedAvg: every client trains the whole model, the server takes the weighted mean.

``Theta^{r+1} = Theta^r + sum_n p_n Delta_n``, ``p_n = 1/N`` (``weighting="samples"``: ``n_n / sum n``).

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

from typing import Literal

from relief_ray.core.federated import Strategy
from relief_ray.strategies.common import Preset, StrategyConfig, allocate_everything, averaging


class FedAvg(StrategyConfig):
    """Configuration of FedAvg, the reference of every table: 1.00x time, bytes and energy."""

    title = "FedAvg"
    kind = "baseline"
    about = "everyone trains and sends the whole model; plain mean"
    citation = "mcmahan2017fedavg"
    name: Literal["fedavg"] = "fedavg"

    def build(self) -> Strategy:
        """Build the strategy."""
        reduction = self.reduction()
        return Strategy(
            name=self.name, allocate=allocate_everything, reduction=reduction, aggregate=averaging(reduction)
        )


PRESETS = {"fedavg": Preset(FedAvg())}
