"""Reasons for what a client trains, for a reader who has not seen the method's paper.

The method gives the reasons (``Insight.explain``); this module adds the client's data and the ledger, and words them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relief_ray.core.federated import ExplainRequest
from relief_ray.core.groups import GroupId
from relief_ray.core.protocols import Explanation, ExplanationSection
from relief_ray.experiment.setup import Planned
from relief_ray.plugins.load import is_own
from relief_ray.records.facts import data_facts
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import RoundRecord, RunRecord
from relief_ray.report.runs import Loaded
from relief_ray.strategies import PRESETS, method_name
from relief_ray.studies.what_if import recorded_model
from relief_ray.support.errors import UserError, counted, listed
from relief_ray.support.text import Printed, table

_INDENT = "   "
_WIDTH = 100


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Reasons(Printed):
    """Reasons for what a client trained in one round; prints as the whole answer.

    Attributes:
        text: sentences and tables for people.
        facts: the same for programs; their keys are the method's own, beside ``run``, ``round``, ``client``.
        groups: the groups that the method gives the client; empty for a method that chooses nothing.
    """

    text: str
    facts: Mapping[str, object]
    groups: tuple[GroupId, ...]


def reasons_for(folder: Path, round_: int, client: int, *, width: int = _WIDTH, shown: str = "") -> Reasons:
    """Return the reasons for one client's task in one round of the run in ``folder``.

    Args:
        folder: the run's folder; nothing there is changed.
        round_: number of the round; the next one, not yet computed, may be asked for too.
        client: number of the client, from 0.
        width: letters in a line.
        shown: what the answer calls the run; empty: its folder.

    Raises:
        UserError: no such round or client, or the user's own modules are not there.
    """
    run, setup = recorded_model(folder)
    ledger = read_rounds(folder, run)
    _check(setup, ledger.numbers, folder, round_, client)
    rounds = {record.round: record for record in ledger.where(lambda number: number in (round_ - 1, round_))}
    return _reasons(folder, run, setup, rounds, round_, client, width, shown)


def reasons_of(loaded: Loaded, round_: int, clients: Sequence[int]) -> Mapping[int, str]:
    """The reasons of some clients of a run that was loaded, in words, for a report; none where it has none to give.

    That is so of a method that leaves nothing to explain, of a committed cell, and of a run whose folder or code is
    not here any more.
    """
    if loaded.committed is not None or loaded.label not in PRESETS or not PRESETS[loaded.label].explains:
        return {}
    folder, rounds = Path(loaded.where), {record.round: record for record in loaded.rounds[-2:]}
    try:
        run, setup = recorded_model(folder)
        return {
            client: _reasons(folder, run, setup, rounds, round_, client, _WIDTH, folder.name).text for client in clients
        }
    except UserError:
        return {}


def _reasons(
    folder: Path,
    run: RunRecord,
    setup: Planned,
    rounds: dict[int, RoundRecord],
    round_: int,
    client: int,
    width: int,
    shown: str,
) -> Reasons:
    reasons = _explain(setup, rounds, round_, client)
    facts: dict[str, object] = {"run": str(folder), "round": round_}
    if reasons.summary:
        text = textwrap.fill(reasons.summary, width)
        return Reasons(text=text, facts=facts | {"client": client, "text": reasons.summary}, groups=())
    recorded = _trained_by_ledger(rounds.get(round_), client)
    info = setup.fleet[client]
    facts |= {
        "strategy": setup.config.label(),
        "clock": setup.config.costs.planning_time,
        "client": client,
        "subject": _subject(run, client),
        "device": info.device,
        "modalities": list(info.modalities),
        **reasons.facts,
        "groups": list(reasons.groups),
        "fedavg_s": _fedavg_s(setup, client),
        "recorded": None if recorded is None else list(recorded),
    }
    parts = [
        _intro(run, setup, shown or str(folder), round_, client),
        *(_section(section, width) for section in reasons.sections),
    ]
    text = "\n\n".join(parts) + "\n" + _comparison(reasons.groups, recorded, round_, width)
    return Reasons(text=text, facts=facts, groups=reasons.groups)


def _explain(setup: Planned, rounds: dict[int, RoundRecord], round_: int, client: int) -> Explanation:
    """The method's reasons; of a method that gives none, a sentence that says so.

    Raises:
        UserError: the ledger lacks the round before.
    """
    explain, record, before = setup.strategy.insight.explain, rounds.get(round_), rounds.get(round_ - 1)
    if record is not None and client not in record.participants:
        return Explanation(summary=_absent(setup, round_, client))
    if explain is None:
        is_users = is_own(type(setup.config.strategy))
        return Explanation(summary=_by_record(setup, record, round_, client) if is_users else _without_reasons(setup))
    if before is None and round_ > 1:
        raise UserError(f"round {round_}: round {round_ - 1}, whose state decided it, is not in the ledger")
    participants = tuple(setup.fleet[n] for n in record.participants) if record else None
    request = ExplainRequest(
        context=setup.context(round_, participants),
        client=setup.fleet[client],
        before=None if before is None else before.diagnosed,
        fedavg_s=_fedavg_s(setup, client),
    )
    return explain(request)


def _absent(setup: Planned, round_: int, client: int) -> str:
    """Sentence on a client that took no part in a recorded round."""
    info = setup.fleet[client]
    chance = setup.types[info.device].available
    why = (
        f"a device of its type is there with chance {chance:g} (`available`)"
        if chance < 1.0
        else f"others were drawn (participation = {setup.config.participation:g})"
    )
    return f"Client {client} (Type {info.device}; {listed(info.modalities)}) took no part in round {round_}: {why}."


def _without_reasons(setup: Planned) -> str:
    """Sentence on a method without ``explain``."""
    name, number = method_name(setup.config.strategy, setup.config.label()), len(setup.layout)
    others = [preset for preset, config in PRESETS.items() if config.explains]
    reason = (
        "it has no deadline under which a client would have to choose among the"
        if setup.strategy.insight.deadline_s is None
        else "it does not say how a client chooses among the"
    )
    known = f"Runs of {', '.join(others)} are explained."
    return f"{name} leaves nothing to explain: {reason} {number} groups of the model. {known}"


def _by_record(setup: Planned, record: RoundRecord | None, round_: int, client: int) -> str:
    """Sentences on a user's own method without ``explain``: what the record says that the client did."""
    name, info = method_name(setup.config.strategy, setup.config.label()), setup.fleet[client]
    trained, number = _trained_by_ledger(record, client), len(setup.layout)
    groups = f"all {number} groups of the model" if trained is not None and len(trained) == number else ""
    did = (
        f"is not in the record of round {round_}"
        if trained is None
        else f"trained {groups or f'{len(trained)} of the {number} groups of the model: ' + ', '.join(trained)}"
    )
    return (
        f"Client {client} (Type {info.device}; {listed(info.modalities)}) {did}. {name} gives no reasons: its Strategy "
        "has no `explain`. Such a function gets the round and the client, and returns a relief_ray.Explanation."
    )


def _check(setup: Planned, rounds: Collection[int], folder: Path, round_: int, client: int) -> None:
    """Check that the run has this round and this client.

    Raises:
        UserError: with the range that it has.
    """
    limit = min(max(rounds, default=0) + 1, setup.config.rounds)
    if not 1 <= round_ <= limit:
        raise UserError(f"round {round_}: no such round in {folder}; expected 1 to {limit}")
    if not 0 <= client < len(setup.fleet):
        raise UserError(f"client {client}: the fleet has the clients 0 to {len(setup.fleet) - 1}")


def _trained_by_ledger(record: RoundRecord | None, client: int) -> tuple[str, ...] | None:
    """Groups that the client trained by the ledger; None where the round or the client is not in it."""
    return next((c.trained for c in record.clients if c.client == client), None) if record is not None else None


def _fedavg_s(setup: Planned, client: int) -> float:
    """Seconds of the client's round under FedAvg, by the planning clock."""
    return setup.fedavg_reference()[setup.config.costs.planning_time].clients[client].times.busy_s


def _intro(run: RunRecord, setup: Planned, shown: str, round_: int, client: int) -> str:
    """Heading: client, round, run, device and data."""
    info, config, subject = setup.fleet[client], setup.config, _subject(run, client)
    kind = setup.types[info.device]
    tops = "a speed that its profile has" if kind.tops is None else f"{kind.tops:g} TOPS"
    lacks = [m for m in setup.fleet.modalities if m not in info.modalities]
    lines = [
        f"Client {client} in round {round_} of {config.rounds}: what it trains, and why",
        f"{shown}, strategy {method_name(config.strategy, config.label())}",
        "",
        f"The device   Type {info.device}, {tops}, {kind.active_power_w:g} W.",
        f"Its sensors  {listed(info.modalities)}"
        + (f"; it lacks {listed(lacks)}." if lacks else ": all that there are."),
        f"Its data     {info.num_windows} windows of "
        f"{'several subjects' if subject == 'mixed' else f'subject {subject}'}, "
        f"{counted(config.training.epochs, 'epoch')} a round.",
        f"Seconds are simulated (clock {config.costs.planning_time}) and cover receiving, training and sending.",
    ]
    return "\n".join(lines)


def _subject(run: RunRecord, client: int) -> str:
    """Name of the subject whose windows the client has; ``mixed`` where they are of several."""
    return next((row.subject for row in data_facts(run).clients if row.client == client), "?")


def _section(section: ExplanationSection, width: int) -> str:
    """Heading, wrapped lines and table of a section."""
    lines = [section.heading, *(_paragraph(line, width) for line in section.lines)]
    if section.head:
        lines += ["", table(section.head, section.rows, left=section.left, indent=_INDENT)]
    return "\n".join(lines)


def _paragraph(text: str, width: int) -> str:
    """Wrapped text below a section's heading."""
    return textwrap.fill(text, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)


def _comparison(groups: tuple[GroupId, ...], recorded: tuple[str, ...] | None, round_: int, width: int) -> str:
    """Sentence on whether the ledger has the same groups as the method's answer."""
    if recorded is None:
        return f"{_INDENT}The ledger has no such round for this client: this is what it will do if it takes part."
    if set(recorded) == set(groups):
        return f"{_INDENT}The record of round {round_} says the same."
    other = ", ".join(recorded)
    return _paragraph(f"But the record of round {round_} says {other}: was it made by other code?", width)
