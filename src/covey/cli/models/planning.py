"""covey serve --plan: which machines would keep the objective, and for how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from covey.cli import json_file, options
from covey.cli.options import teller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from covey.cli.models.serving_flags import PlanFlags
    from covey.inference.served_model import ModelPlace
    from covey.inference.serving import ServeWishes


def show_plan(
    place: ModelPlace, wishes: ServeWishes, planned: PlanFlags, manner: options.Voice
) -> None:
    """Try set-ups in virtual time, and print them, the cheapest that keeps the objective first."""
    import msgspec
    import torch

    from covey.cli.tables.models import print_forecasts
    from covey.inference.cut_model import best_places, cut_at
    from covey.inference.path.measured_endpoint import MeasuredWishes
    from covey.inference.path.measuring import measured_costs
    from covey.inference.planning import Times, forecasts, measure, measure_stages, read_prices, read_trace
    from covey.inference.served_model import load

    assert planned.plan and planned.prices
    arrivals, prices = read_trace(planned.plan), read_prices(planned.prices)
    threads = wishes.threads or 1
    torch.set_num_threads(threads)
    model = load(place, teller(manner))
    times: Sequence[Times]
    if wishes.stages > 1:
        cut = cut_at(model, best_places(model, wishes.stages))
        times = measure_stages(cut, model.example(), wishes.front.largest)
    else:
        times = [measure(model, model.example(), wishes.front.largest)]
    measured = MeasuredWishes(
        place=place, front=wishes.front, threads=threads, stages=wishes.stages, body=wishes.body
    )
    path = measured_costs(measured, model.example()[0], times)
    found = forecasts(arrivals, times, prices, wishes.front, wishes.share, scaled=wishes.scaled, path=path)
    if planned.json is not None:
        json_file.write(planned.json, msgspec.json.encode(found).decode() + "\n")
    if manner != "quiet" and planned.json != json_file.OUTPUT:
        print_forecasts(json_file.console(planned.json), found, len(arrivals), wishes.share)
