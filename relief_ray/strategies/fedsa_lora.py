"""FedSA-LoRA: clients share the LoRA A factors and keep B and the classifier.

``Abar^{r+1} = Abar^r + sum_n p_n Delta A_n``; client ``n``'s model is ``W0 + s B_n Abar`` with its own ``B_n``, head_n.
A new or unsampled client starts from the initial ``B`` (zero) and head. The mean is over all participants. Under
``zero_feature`` a client without modality ``m`` returns ``A_m`` unchanged, which dilutes the mean by ``|C_m| / N``.

Guo et al., "Selective Aggregation for Low-Rank Adaptation in Federated Learning", ICLR 2025. A model without LoRA has
no A and B: there ``dense_local`` names what stays with the client (our reconstruction).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from relief_ray.core.federated import RoundContext, Strategy
from relief_ray.core.groups import WHOLE, GroupLayout, ParamGroup, Params, Part, Role, Selection
from relief_ray.core.messages import Assignment, EvalPlan, EvalTarget, Fleet, Json, ServerState
from relief_ray.core.streams import Streams
from relief_ray.strategies.common import Allocate, Preset, fact_table, own_target
from relief_ray.strategies.fedavg import FedAvg

DenseLocal = Literal["head", "head+fusion_bias", "none"]
LOCAL_ROLES: dict[DenseLocal, frozenset[Role]] = {
    "head": frozenset({"head"}),
    "head+fusion_bias": frozenset({"head", "fusion_b"}),
    "none": frozenset(),
}
A_ONLY = Part(kinds=frozenset({"lora_a"}))
ALL_BUT_A = Part(kinds=frozenset({"lora_b", "weight", "bias"}))


class FedSALoRA(FedAvg):
    """A is shared, B and head are personal; FITTED with ``dense_local="none"``, which is FedAvg on a dense model."""

    title = "FedSA-LoRA"
    kind = "baseline"
    about = "LoRA A shared and averaged; B and head stay (dense model: head and fusion bias)"
    citation = "guo2025fedsalora"
    dense_stand_in = "A is encoders and fusion blocks, B the fusion bias and the head"
    paper_accounting = "fedavg"
    name: Literal["fedsa_lora"] = "fedsa_lora"  # type: ignore[assignment]
    dense_local: DenseLocal = "head+fusion_bias"
    """Parts that stay with the client where the model has no LoRA factors."""

    def build(self) -> Strategy:
        """Build the strategy."""
        plain = super().build()
        return replace(
            plain,
            init=partial(remember_kept, self.dense_local),
            allocate=partial(allocate_shared, self.dense_local, plain.allocate),
            evaluate=personal_models,
        )


PRESETS = {
    "fedsa_lora": Preset(FedSALoRA()),
    "fedsa_lora_table": Preset(
        FedSALoRA(dense_local="none"),
        title="FedSA-LoRA, table",
        kind="baseline, FITTED",
        about="FedSA-LoRA that is FedAvg on a dense model, as the paper's bytes imply",
    ),
}


def split(layout: GroupLayout, dense_local: DenseLocal) -> tuple[Selection, Selection]:
    """Shared and kept parts; together they have every trainable value exactly once."""

    def shared(group: ParamGroup) -> Part | None:
        kinds = {t.kind for t in group.tensors}
        if not layout.lora:
            return None if group.role in LOCAL_ROLES[dense_local] else WHOLE
        return WHOLE if kinds == {"lora_a"} else A_ONLY if "lora_a" in kinds else None

    parts = {g.id: shared(g) for g in layout}
    up = {j: part for j, part in parts.items() if part is not None}
    keep = {j: WHOLE if part is None else ALL_BUT_A for j, part in parts.items() if part is None or not part.whole}
    return up, keep


def remember_kept(
    dense_local: DenseLocal, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params
) -> ServerState:
    """One global model; ``facts["kept"]`` says of each personal group whether it is kept whole."""
    kept: dict[str, Json] = {j: part.whole for j, part in split(layout, dense_local)[1].items()}
    return ServerState(models={"global": start}, facts={"kept": kept})


def allocate_shared(
    dense_local: DenseLocal,
    allocate: Allocate,
    state: ServerState,
    context: RoundContext,
) -> tuple[Assignment, ...]:
    """Every participant trains everything, sends the shared part and keeps the rest."""
    up, keep = split(context.layout, dense_local)
    return tuple(replace(task, down=up, up=up, keep=keep) for task in allocate(state, context))


def personal_models(state: ServerState, fleet: Fleet) -> EvalPlan:
    """Evaluate each client's model with its own sensors; canonical: with the mean of the parts that clients keep."""
    keep = {j: WHOLE if whole else ALL_BUT_A for j, whole in fact_table(state, "kept", bool).items()}
    clients = tuple(replace(own_target(c), keep=keep) for c in fleet.clients if keep)
    return EvalPlan(canonical=EvalTarget(label="global", keep=keep), clients=clients)
