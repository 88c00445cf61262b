"""The words of `relief-ray explain`."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from actors.commands.tables import counted, listed, table
from actors.exits import WIDTH
from relief_ray.names import shown

if TYPE_CHECKING:
    from actors.commands.explain import Explanation, Offer

VERDICTS = {"mandatory": "always", "chosen": "yes", "budget": "no: all slots are taken", "time": "no: too slow"}


def text(found: Explanation) -> str:
    """Deadline, budget, choice, result: four short sections."""
    return "\n\n".join(
        ["\n".join(part) for part in (intro(found), deadline(found), slots(found), choice(found), result(found))]
    )


def intro(found: Explanation) -> list[str]:
    """Who and where."""
    info = found.client
    lacks = [m for m in found.modalities if m not in info.modalities]
    return [
        f"Client {info.id} in round {found.round} of {found.rounds}: what it trains, and why",
        f"{found.run}, strategy {shown(found.strategy)}",
        "",
        f"The device   {found.device}.",
        f"Its sensors  {listed(info.modalities)}"
        + (f"; it lacks {listed(lacks)}." if lacks else ": all that there are."),
        f"Its data     {info.num_windows} windows, {counted(found.epochs, 'epoch')} a round.",
        f"Seconds are simulated (clock {found.clock}) and cover receiving, training and sending.",
    ]


def deadline(found: Explanation) -> list[str]:
    """T*."""
    if found.given_target:
        how = ["T* was given in the configuration (strategy.deadline_s or deadline_fraction)."]
    else:
        who = (
            "this client"
            if found.slowest.id == found.client.id
            else f"client {found.slowest.id} (Type {found.slowest.device})"
        )
        how = [
            "RELIEF lets every device train its mandatory blocks: the fusion weights that read its sensors.",
            f"T* is the least time in which every device manages that; the slowest at it is {who}.",
        ]
    saved = f"Training the whole model, as in FedAvg, would keep this client busy for {found.fedavg_s:.3f} s."
    return [f"1. The deadline of a round is T* = {found.target_s:.3f} s", *("   " + line for line in [*how, saved])]


def slots(found: Explanation) -> list[str]:
    """k_n."""
    number, total = len(found.mandatory), len(found.offers) if found.select != "none" else found.slots
    span = found.target_s - found.overhead_s
    lines = [
        f"Without training it is busy for {found.overhead_s:.3f} s (receiving, and one pass over its data).",
        f"Each further group adds {found.tau_s:.3f} s on average: ({found.target_s:.3f} - {found.overhead_s:.3f}) / "
        f"{found.tau_s:.3f} = {span / found.tau_s:.2f}, so {found.affordable} groups fit.",
    ]
    if found.affordable < number:
        lines.append(f"That is less than its {number} mandatory blocks; these count anyway.")
    elif found.affordable > total:
        lines.append(f"Its sensors reach {total} groups only, so it may train all of them.")
    return [
        f"2. This client has room for {counted(found.slots, 'group')}",
        *("   " + line for line in lines),
    ]


def choice(found: Explanation) -> list[str]:
    """The ranking with its cut-off."""
    how = {
        "divergence": [
            "First its mandatory blocks. The rest goes to the groups about which clients disagreed most",
            f"(d_bar: the smoothed divergence of their updates after {found.source}), while slots and time last.",
        ],
        "random": ["The slots are filled at random (drawn from the run's seed), while slots and time last."],
        "none": ["Only its mandatory blocks; this strategy leaves the rest of the time unused."],
    }[found.select]
    if not found.forced:
        how[0] = how[0].replace("First its mandatory blocks. The rest goes to", "Slots go to")
        how.append("This strategy does not force the mandatory blocks in: they compete like the others.")
    how.append("busy: seconds of a round with this group and those already taken; over T*: what is too much.")
    rows = [row(i, offer) for i, offer in enumerate(found.offers, start=1)]
    head = ["", "group", "trains it?", "d_bar", "busy, s", "over T*"]
    body = [f"   {line}" for line in table(head, rows, left=3, indent="").splitlines()]
    over = {
        i: f"+{o.seconds - found.target_s:.3f}"
        for i, o in enumerate(found.offers)
        if o.seconds > found.target_s * (1 + 1e-9)
    }
    body = body[:2] + [line + ("" if i not in over else f"  {over[i]:>7}") for i, line in enumerate(body[2:])]
    return ["3. Who gets the slots", *(f"   {line}" for line in how), "", *body]


def row(number: int, offer: Offer) -> list[str]:
    """One group's line, without the last column."""
    d_bar = "-" if offer.d_bar is None else f"{offer.d_bar:.3e}"
    return [f"{number:2}", offer.group, VERDICTS[offer.verdict], d_bar, f"{offer.seconds:.3f}", ""]


def paragraph(text: str) -> str:
    """Wrapped text below a section's headline."""
    return textwrap.fill(text, WIDTH, initial_indent="   ", subsequent_indent="   ", break_on_hyphens=False)


def result(found: Explanation) -> list[str]:
    """S_n, and whether the ledger agrees."""
    left = found.target_s - found.planned_s
    spare = f"{left:.3f} s before the deadline" if left > 0 else f"{-left:.3f} s after the deadline"
    spare = "just at the deadline" if abs(left) < 0.0005 else spare
    lines = [
        f"4. It trains {counted(len(found.groups), 'group')} and is done after {found.planned_s:.3f} s, {spare}",
        paragraph(", ".join(found.groups)),
    ]
    if found.trained is None:
        lines.append("   The ledger has no such round for this client: this is what it will do if it takes part.")
    elif set(found.trained) == set(found.groups):
        lines.append(f"   The record of round {found.round} says the same.")
    else:
        other = ", ".join(found.trained)
        lines.append(paragraph(f"But the record of round {found.round} says {other}: was it made by other code?"))
    return lines
