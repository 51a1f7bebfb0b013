"""How long is a run, and which rates follow from that?"""

from __future__ import annotations

from covey.data.shards import Shards
from covey.names import option
from covey.run.option_parts import BudgetOptions
from covey.run.options import Options
from covey.task import Task
from covey.task.schedule import depends_on_length

EPOCHS = 10  # by default how long
PATIENCE = 100  # epochs after which a run that does not reach its target ends


def budgets(deal: Shards, given: BudgetOptions) -> tuple[int, ...]:
    """Each worker's own number of steps."""
    if given.steps is not None:
        return (given.steps,) * deal.workers
    epochs = given.epochs or (PATIENCE if given.until else EPOCHS)
    return tuple(epochs * deal.steps(rank) for rank in range(deal.workers))


def length_note(task: Task, given: Options) -> str:
    """What to say where rates follow from the length of a run, and nobody said how long it is; else nothing."""
    budget = given.budget
    if budget.epochs or budget.steps or not budget.until or given.virtual.timing_only:
        return ""
    if not depends_on_length(task.scheduler, task.rate):
        return ""
    said = f"the learning-rate schedule is spread over {PATIENCE} passes, as only {option('until', budget.until)}"
    return f"{said} ends this run: give {option('epochs')} too, and it is spread over that many"
