"""Reports in a codec; clients keep nothing between rounds, so it must be one that drops nothing on average."""

from __future__ import annotations

from covey.exchange.codec import Codec, Coder, Seed
from covey.federated.reports.report_form import drawn
from covey.model.flat import Form
from covey.vector import Vector


class CodedReports:
    """Every report is coded alone."""

    def __init__(self, codec: Codec, form: Form, seed: int) -> None:
        self._codec, self._form, self._seed = codec, form, seed

    def encode(self, client: int, number: int, update: Vector, loss: float) -> Vector:
        coder = self._coder(client, number)
        return coder.encode(update, coder.memory)[0]

    def decode(self, client: int, number: int, wire: Vector) -> Vector:
        return self._coder(client, number).decode(wire)

    def _coder(self, client: int, number: int) -> Coder:
        return self._codec.made(self._form, Seed(drawn(self._seed, client, number, "codec"), 0, 0, 1))
