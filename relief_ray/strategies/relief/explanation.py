"""RELIEF's allocation in words: budget ``T*``, number of groups ``k_n``, ranking, chosen groups ``S_n``.

``strategy.explain`` collects the figures (``Reasons``); this module turns them into sections and JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from relief_ray.core.groups import GroupId
from relief_ray.core.messages import ClientInfo
from relief_ray.core.protocols import Explanation, ExplanationSection
from relief_ray.strategies.common import SLACK
from relief_ray.strategies.relief import budget
from relief_ray.support.errors import counted

VERDICTS = {"mandatory": "always", "chosen": "yes", "budget": "no: all slots are taken", "time": "no: too slow"}
# A group that takes less is shown with six decimals, not three: a reader can compute the quotient beside it again.
_SHORT_S = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Budgeted:
    """A client and the budget of its round.

    Attributes:
        client: the client.
        target_s: budget ``T*``.
        set_by: the client whose groups take longest and set ``T*``; None: it was configured, or raised by ``cover``.
        fedavg_s: seconds of its round under FedAvg.
    """

    client: ClientInfo
    target_s: float
    set_by: ClientInfo | None
    fedavg_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Reasons(Budgeted):
    """Figures that decided the groups ``S_n`` of one client.

    Attributes:
        round: the round.
        select: the order in which groups are offered, as configured.
        fill: whether ``T*`` buys a number of groups (``count``) or is a limit in seconds too (``time``).
        forced: mandatory blocks are trained whatever they take.
        load: the client's budget problem, with ``T_o`` and ``tau_n``.
        chosen: ``k_n`` and ``S_n``.
        d_bar: smoothed divergences, of groups that have one yet.
    """

    round: int
    select: str
    fill: str
    forced: bool
    load: budget.Load
    chosen: budget.Allocation
    d_bar: Mapping[GroupId, float]

    @property
    def offers(self) -> tuple[budget.Offer, ...]:
        """Forced groups, then the others in the order in which slots were offered."""
        forced = self.load.mandatory if self.forced else ()
        prices = (self.load.seconds(forced[: i + 1]) for i in range(len(forced)))
        first = (budget.Offer(group=j, verdict="mandatory", seconds=s) for j, s in zip(forced, prices, strict=True))
        return (*first, *self.chosen.offers)

    @property
    def planned_s(self) -> float:
        """Seconds of the client's round with ``S_n``."""
        return self.load.seconds(self.chosen.groups)


def explanation(reasons: Reasons) -> Explanation:
    """Four sections (budget, slots, choice, result) and the same figures for JSON."""
    sections = (_target(reasons), _slots(reasons), _choice(reasons), _result(reasons))
    return Explanation(sections=sections, groups=reasons.chosen.groups, facts=_facts(reasons))


def without_choice(client: ClientInfo, num_groups: int, *, is_bootstrap: bool) -> Explanation:
    """A sentence on the bootstrap or on V1, where a client trains all that its sensors reach."""
    who = f"Client {client.id} (Type {client.device}, sensors {', '.join(client.modalities)})"
    if is_bootstrap:
        return Explanation(
            summary=f"This round is the bootstrap: {who} trains all {num_groups} groups that its sensors reach, once, "
            "so that the server can measure how much clients disagree about each group. The next one has budgets."
        )
    return Explanation(
        summary=f"There is no budget (budget=none): {who} trains all {num_groups} groups that its sensors reach, in "
        "every round."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochsBought(Budgeted):
    """Figures that decided the epochs of one client (``budget: epochs``).

    Attributes:
        seconds: of its round with 1, 2, ... epochs of everything within its reach.
        chosen: epochs that it runs.
        groups: groups that it trains.
        nbytes: bytes down and up.
        whole_nbytes: bytes down and up of the whole model, in the same formats.
    """

    seconds: tuple[float, ...]
    chosen: int
    groups: tuple[GroupId, ...]
    nbytes: tuple[int, int]
    whole_nbytes: tuple[int, int]


def epochs_explained(bought: EpochsBought) -> Explanation:
    """Three sections: the budget, the epochs that it buys, and the bytes that are not sent."""
    spent_s, target_s = bought.seconds[bought.chosen - 1], bought.target_s
    rows = [
        (str(n), f"{s:.3f}", _over(s, target_s), "yes" * (n == bought.chosen)) for n, s in enumerate(bought.seconds, 1)
    ]
    has_choice = len(bought.seconds) > 1
    epochs = f"It buys this client {counted(bought.chosen, 'epoch')}" if has_choice else "One epoch is all it may run"
    is_late = has_choice and bool(_over(spent_s, target_s))
    late = f"Not one epoch fits: it runs one, and is done {spent_s - target_s:.3f} s after T*." if is_late else ""
    down, up = (f"{1 - own / whole:.0%}" for own, whole in zip(bought.nbytes, bought.whole_nbytes, strict=True))
    sections = (
        _target(bought),
        ExplanationSection(
            heading=f"2. {epochs}, done after {spent_s:.3f} s",
            lines=(f"It trains all {len(bought.groups)} groups that its sensors reach.", *([late] if late else [])),
            head=("epochs", "busy, s", "over T*", "chosen"),
            rows=tuple(rows),
        ),
        ExplanationSection(
            heading=f"3. It receives {bought.nbytes[0]:,} and sends {bought.nbytes[1]:,} bytes",
            lines=(f"That is {down} less down and {up} less up than the whole model in the same formats.",),
        ),
    )
    facts: dict[str, object] = {
        "target_s": target_s,
        "epochs": bought.chosen,
        "seconds": list(bought.seconds),
        "planned_s": spent_s,
        "bytes_down": bought.nbytes[0],
        "bytes_up": bought.nbytes[1],
        "groups": list(bought.groups),
    }
    return Explanation(sections=sections, groups=bought.groups, facts=facts)


def _over(seconds: float, target_s: float) -> str:
    """What exceeds the budget, ``+0.241``; empty: nothing does."""
    return f"+{seconds - target_s:.3f}" if seconds > target_s * (1 + SLACK) else ""


def _target(reasons: Budgeted) -> ExplanationSection:
    """Section on the budget T* of a round."""
    setter = reasons.set_by
    if setter is None:
        lines = ["T* was set in the configuration (strategy.deadline_s, deadline_fraction or cover)."]
    else:
        who = "this client" if setter.id == reasons.client.id else f"client {setter.id} (Type {setter.device})"
        lines = [
            "RELIEF lets every device train its mandatory blocks: the fusion weights that read its sensors.",
            "T* is the least time in which every device can train as many groups as it has such blocks. The slowest of "
            f"them is {who}.",
        ]
    if isinstance(reasons, Reasons) and reasons.fill == "count":
        lines.append("T* gives a number of groups at their mean cost. Costlier groups may make a round longer than T*.")
    lines.append(f"Training the whole model, as in FedAvg, would keep this client busy for {reasons.fedavg_s:.3f} s.")
    return ExplanationSection(heading=f"1. The budget of a round is T* = {reasons.target_s:.3f} s", lines=tuple(lines))


def _slots(reasons: Reasons) -> ExplanationSection:
    """Section on the number of groups k_n that the client has time for."""
    load, slots = reasons.load, reasons.chosen.budget
    number, affordable = len(load.mandatory), budget.affordable(load, reasons.target_s)
    total = len(reasons.offers) if reasons.select != "none" else slots
    span = reasons.target_s - load.overhead_s
    overhead = {
        "count": f"The fleet's slowest link takes {load.overhead_s:.3f} s for the whole model, down and up.",
        "time": f"Without training it is busy for {load.overhead_s:.3f} s (receiving, and one pass over its data).",
    }[reasons.fill]
    digits = 3 if load.tau_s >= _SHORT_S else 6
    tau, target, fixed = (f"{x:.{digits}f}" for x in (load.tau_s, reasons.target_s, load.overhead_s))
    fit = "fits" if affordable == 1 else "fit"
    lines = [
        overhead,
        f"A group takes this client {tau} s on average: ({target} - {fixed}) / {tau} = {span / load.tau_s:.2f}, "
        f"so {counted(affordable, 'group')} {fit}.",
    ]
    if affordable < number:
        lines.append(f"That is less than its {number} mandatory blocks; these count anyway.")
    elif affordable > total:
        lines.append(f"Its sensors reach {total} groups only, so it may train all of them.")
    return ExplanationSection(heading=f"2. This client has room for {counted(slots, 'group')}", lines=tuple(lines))


def _choice(reasons: Reasons) -> ExplanationSection:
    """Section on the ranking of groups with its cut-off."""
    while_ = "while slots last" if reasons.fill == "count" else "while slots and time last"
    go = "First its mandatory blocks. The rest goes" if reasons.forced else "Slots go"
    d_bar = f"(d_bar: the smoothed divergence of their updates after round {reasons.round - 1}), {while_}."
    lines = {
        "divergence": [f"{go} to the groups about which clients disagreed most", d_bar],
        "per_element": [f"{go} to the groups with the largest d_bar per element", d_bar],
        "oldest": [
            f"{go} to the groups that this client has not trained for longest,",
            f"the one with the larger d_bar among equals, {while_}.",
        ],
        "random": [f"The slots are filled at random (drawn from the run's seed), {while_}."],
        "none": ["Only its mandatory blocks; this strategy leaves the rest of the time unused."],
    }[reasons.select]
    if not reasons.forced:
        lines.append("This strategy does not force the mandatory blocks in: they compete like the others.")
    lines.append("busy: seconds of a round with this group and those already taken; over T*: what exceeds the budget.")
    return ExplanationSection(
        heading="3. Who gets the slots",
        lines=tuple(lines),
        head=("", "group", "trains it?", "d_bar", "busy, s", "over T*"),
        rows=tuple(_row(reasons, i, offer) for i, offer in enumerate(reasons.offers, start=1)),
        left=3,
    )


def _row(reasons: Reasons, number: int, offer: budget.Offer) -> tuple[str, ...]:
    """Line of one group in the table."""
    d_bar = f"{reasons.d_bar[offer.group]:.3e}" if offer.group in reasons.d_bar else "-"
    over = _over(offer.seconds, reasons.target_s)
    return (f"{number:2}", offer.group, VERDICTS[offer.verdict], d_bar, f"{offer.seconds:.3f}", over)


def _result(reasons: Reasons) -> ExplanationSection:
    """Section on the chosen groups S_n."""
    left = reasons.target_s - reasons.planned_s
    spare = f"{left:.3f} s less than T*" if left > 0 else f"{-left:.3f} s more than T*"
    spare = "just T*" if abs(left) < 0.0005 else spare
    trains = counted(len(reasons.chosen.groups), "group")
    why = (
        "Time is left: slots were counted with the slowest link and the whole model's bytes; this client sends its "
        "groups alone."
    )
    is_spare = reasons.fill == "count" and left >= 0.0005 and len(reasons.chosen.groups) < len(reasons.offers)
    return ExplanationSection(
        heading=f"4. It trains {trains} and is done after {reasons.planned_s:.3f} s, {spare}",
        lines=(", ".join(reasons.chosen.groups), *([why] if is_spare else [])),
    )


def _facts(reasons: Reasons) -> dict[str, object]:
    """The figures by name."""
    return {
        "target_s": reasons.target_s,
        "fill": reasons.fill,
        "target_set_by": None if reasons.set_by is None else reasons.set_by.id,
        "overhead_s": reasons.load.overhead_s,
        "tau_s": reasons.load.tau_s,
        "budget": reasons.chosen.budget,
        "mandatory": list(reasons.load.mandatory),
        "offers": [asdict(offer) | {"d_bar": reasons.d_bar.get(offer.group)} for offer in reasons.offers],
        "groups": list(reasons.chosen.groups),
        "planned_s": reasons.planned_s,
    }
