"""What a grid is going to do: how long its cells take, and which of them fit into a budget."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.commands.grid_text import plan_facts, plan_text, tell
from actors.exits import say
from actors.grids.book import Book, Entry
from actors.grids.estimate import estimates, fitting, head_of, probe_missing
from actors.grids.screen import duration
from actors.session import SessionOptions, num_cores, ray_session

# Ray, and the library in the first trial's process: measured 20 s from the command to a first cell's first round, on
# two cores that others used too.
START_S = 20.0
# How long a plan waits for timed rounds in all: the paper's MOMENT takes an hour for one on a CPU.
PLAN_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the user wants besides the grid itself; ``budget_s`` of wall time from ``began_s`` (monotonic) on."""

    as_json: bool = False
    dry_run: bool = False
    budget_s: float | None = None
    rerun_stale: bool = False
    skip_failed: bool = False
    skip_unknown: bool = False
    dashboard: bool = False
    began_s: float = field(default_factory=time.monotonic)

    def left_s(self) -> float:
        """Seconds of the budget that are left; infinite without one."""
        return math.inf if self.budget_s is None else self.budget_s - (time.monotonic() - self.began_s)


def show_plan(book: Book, as_json: bool) -> None:
    """`--dry-run`: one round of every workload is timed, in ``PLAN_S`` at most; nothing is written."""
    entries = book.entries()
    known = estimates(entries, probe_missing(entries, one_each=True, say=say, limit_s=PLAN_S))
    places = num_places(entries)
    tell(plan_facts(book, entries, known, places)) if as_json else print(plan_text(book, entries, known, places))


def within_budget(book: Book, entries: Sequence[Entry], todo: list[Entry], asked: Asked) -> list[Entry]:
    """The first cells that fit into what is left of the budget, after a round of every method has been timed.

    Where none fits, the first is begun: it goes on later. Says which.
    """
    if asked.budget_s is None or not todo:
        return todo
    known = estimates(entries, probe_missing(todo, one_each=False, say=say, limit_s=max(1.0, asked.left_s())))
    places = num_places(todo)
    left_s = asked.left_s() - START_S
    chosen = fitting(todo, known, left_s * places)
    begun = [] if chosen else head_of(todo, known, left_s)
    facts = {
        "event": "budget", "budget_s": asked.budget_s, "left_s": max(0.0, left_s), "start_s": START_S,
        "cells": [e.cell.name for e in chosen], "begun": begun[0].cell.name if begun else None, "to_do": len(todo),
    }  # fmt: skip
    if asked.as_json:
        tell(plan_facts(book, entries, known, places))
        tell(facts)
    else:
        print(plan_text(book, entries, known, places))
        print(_sentence(asked.budget_s, left_s, chosen, begun, len(todo)), flush=True)
    return chosen or begun


def _sentence(budget_s: float, left_s: float, chosen: Sequence[Entry], begun: Sequence[Entry], num_todo: int) -> str:
    what = (
        f", up to {chosen[-1].cell.name}"
        if chosen
        else f"; {begun[0].cell.name} is begun, a resume goes on with it"
        if begun
        else "; give it more, or fewer rounds (--set rounds=..)"
    )
    rest = f"{duration(max(0.0, left_s))} of it left after Ray's start"
    return f"budget {duration(budget_s)}, {rest}: {len(chosen)} of {num_todo} cells to do fit{what}"


def num_places(entries: Sequence[Entry]) -> int:
    """Cores that trials will share: of the cluster that is joined, else of this process.

    Raises:
        UserError: the cluster cannot be joined.
    """
    address = address_of(entries)
    if address is None:
        return num_cores()
    with ray_session(SessionOptions(address=address)):
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 1.0)))


def address_of(entries: Sequence[Entry]) -> str | None:
    """The cluster of the configuration or of ``RAY_ADDRESS`` (as in a Ray job); None: one of our own."""
    chosen = entries[0].cell.config.runtime.address if entries else None
    return chosen or os.environ.get("RAY_ADDRESS")
