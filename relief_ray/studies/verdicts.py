"""Verdicts of a study: what its runs decide about the claims that were named before the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relief_ray.report.claims import JudgedClaim, Registry, judge, last_line, verdict_table
from relief_ray.report.comparison import Experiment


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Verdicts:
    """Verdicts on claims; printed, they are one sentence per setting, in a notebook also the table of claims.

    Attributes:
        sentences: one per setting with two methods or more, as `relief-ray compare` ends with.
        claims: every judged claim with its verdict, evidence and adjusted p.
        markdown: sentences and tables.
    """

    sentences: tuple[str, ...]
    claims: tuple[JudgedClaim, ...]
    markdown: str

    def __str__(self) -> str:
        """Return the sentences."""
        return "\n".join(self.sentences) or "One method alone: there is nothing to compare."

    def __repr__(self) -> str:
        """Return the sentences: what a Python prompt shows."""
        return str(self)

    def _repr_markdown_(self) -> str:
        return self.markdown or str(self)


def judged(settings: Sequence[Experiment], registry: Registry) -> Verdicts:
    """Judge the claims of a registry over the runs of these settings."""
    judgements, problems = judge([experiment.main for experiment in settings], registry)
    sentences, parts = [], []
    for experiment, judgement in zip(settings, judgements, strict=True):
        if experiment.main is None or len(experiment.main.rows) < 2:
            continue
        sentence = last_line(experiment.main, judgement, problems)
        title = f"**{experiment.title}.** " if len(settings) > 1 else ""
        sentences.append(f"{experiment.title}: {sentence}" if len(settings) > 1 else sentence)
        parts.append(title + sentence)
        parts += [] if judgement is None else [verdict_table(judgement, "verdicts").markdown()]
    claims = tuple(claim for judgement in judgements if judgement is not None for claim in judgement.claims)
    return Verdicts(sentences=tuple(sentences), claims=claims, markdown="\n\n".join(parts))
