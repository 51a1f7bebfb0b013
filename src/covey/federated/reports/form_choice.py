"""Which form of reports a strategy has asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from covey.errors import PlanError
from covey.exchange.codec import Codec
from covey.federated.reports.coded_reports import CodedReports
from covey.federated.reports.esgd import ESgd, ESgdReports
from covey.federated.reports.report_form import ReportForm
from covey.federated.reports.structured_updates import LowRankUpdate, MaskedUpdate
from covey.model.flat import Flat

Structure = Literal["whole", "low_rank", "mask"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FormChoice:
    """What of an update travels; `whole` with neither eSGD nor a codec is all of it.

    Args:
        structure: What clients may change of the weights.
        rank: Of `low_rank`: the rows of the matrices that travel.
        keep: Of `mask`: the share of the weights that a client may change.
        esgd: The settings of eSGD.
        codec: In which updates travel.
    """

    structure: Structure = "whole"
    rank: int = 4
    keep: float = 0.1
    esgd: ESgd | None = None
    codec: Codec | None = None

    def check(self) -> None:
        if self.structure == "low_rank" and self.rank < 1:
            raise PlanError(f"update=low_rank, rank={self.rank}: at least 1")
        if self.structure == "mask" and not 0 < self.keep <= 1:
            raise PlanError(f"update=mask, keep={self.keep:g}: above 0 and at most 1")
        if self.esgd:
            self.esgd.check()
        if len(self.words) > 1:
            raise PlanError(f"{' and '.join(self.words)}: reports have one form; keep one of them")

    @property
    def words(self) -> list[str]:
        """What was asked for, as it is written."""
        found = [f"update={self.structure}"] if self.structure != "whole" else []
        return found + (["esgd"] if self.esgd else []) + ([self.codec.name] if self.codec else [])

    def make(self, layout: Flat, seed: int) -> ReportForm | None:
        """For reports of this model; None: they are sent as they are."""
        if self.esgd:
            return ESgdReports(layout.params, seed, self.esgd)
        if self.codec:
            whole = tuple((0, part.numel()) for part in layout.params.parts)
            return CodedReports(self.codec, layout.form(whole), seed)
        if self.structure == "mask":
            return MaskedUpdate(layout.params, seed, self.keep)
        if self.structure == "low_rank":
            return LowRankUpdate(layout.slots, layout.params, seed, self.rank)
        return None
