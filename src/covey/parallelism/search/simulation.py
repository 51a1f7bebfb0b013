"""How long a step takes: a list scheduler, which does only the changed part again when a choice changes.

Each device and each link does one task at a time, in the order in which tasks become ready (FlexFlow, Jia et al. 2018).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from covey.parallelism.search.costs import OperatorCosts
from covey.parallelism.search.operators import OperatorConfig
from covey.parallelism.search.task_graph import Key, Resource, StepTask, TaskGraph

TOO_LARGE = 1e6
"""Seconds that a plan costs which does not fit, and more the less it fits."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What a change has replaced."""

    choice: list[OperatorConfig]
    tasks: Mapping[Key, StepTask | None]
    at: int
    order: list[Key]
    ready: list[float]
    ends: Mapping[Key, float]


class Simulation:
    """A step under a choice of configurations. `change` and `undo` cost as much as what comes after the change."""

    def __init__(self, costs: OperatorCosts, choice: Sequence[OperatorConfig]) -> None:
        self.costs, self.graph, self.build = costs, costs.graph, TaskGraph(costs)
        self.choice = list(choice)
        self.tasks = self.build.whole(self.choice)
        self.users: dict[Key, set[Key]] = {}
        for key, task in self.tasks.items():
            self._use(key, task)
        self.order: list[Key] = []  # as they became ready
        self.ready: list[float] = []
        self.ends: dict[Key, float] = {}
        self._before: _Before | None = None
        self._run(0, self.tasks)

    @property
    def step(self) -> float:
        """Seconds until the last task ends, and the latency of the sum of all gradients."""
        return max(self.ends.values(), default=0.0) + self.costs.latency(self.choice)

    @property
    def excess(self) -> float:
        """By which factor the fullest device needs more than it has; 0 where all fits."""
        limit = self.costs.devices.memory
        return max(0.0, max(self.costs.memory(self.choice)) / limit - 1) if limit < float("inf") else 0.0

    @property
    def cost(self) -> float:
        """Seconds of a step; of what does not fit, more than any step takes."""
        return self.step if not self.excess else TOO_LARGE * (1 + self.excess)

    def change(self, operators: Iterable[int], config: OperatorConfig) -> float:
        """Give these operators another configuration; the new cost."""
        changed = dict.fromkeys(operators, config)
        old_choice = list(self.choice)
        for number in changed:
            self.choice[number] = config
        before: dict[Key, StepTask | None] = {}
        after: dict[Key, StepTask] = {}
        beside = {other for number in changed for other in (*self.graph.before[number], *self.graph.after[number])}
        edges = [edge for edge in self.graph.edges if edge[0] in changed or edge[1] in changed]
        for number in {*changed, *beside}:
            before.update(self.build.operator(number, old_choice))
            after.update(self.build.operator(number, self.choice))
        for edge in edges:
            before.update(self.build.edge(*edge, old_choice))
            after.update(self.build.edge(*edge, self.choice))
        before = {key: task for key, task in before.items() if after.get(key) != task}
        after = {key: task for key, task in after.items() if self.tasks.get(key) != task}
        before.update({key: None for key in after if key not in before})
        at = bisect_left(self.ready, self._first(before, after))
        self._before = _Before(
            old_choice, before, at, self.order[at:], self.ready[at:], {key: self.ends[key] for key in self.order[at:]}
        )
        self._replace(before, after)
        self._again(at)
        return self.cost

    def undo(self) -> None:
        """Take the last change back."""
        was = self._before
        assert was is not None, "nothing was changed"
        self._before, self.choice = None, was.choice
        old = {key: task for key, task in was.tasks.items() if task is not None}
        self._replace(was.tasks, old)
        for key in self.order[was.at :]:
            self.ends.pop(key, None)
        self.order[was.at :], self.ready[was.at :] = was.order, was.ready
        self.ends.update(was.ends)

    def _first(self, before: Mapping[Key, StepTask | None], after: Mapping[Key, StepTask]) -> float:
        """Until when nothing changes: before that no task becomes ready that is not the same in both."""
        times = dict(zip(self.order, self.ready, strict=True))
        found = [times[key] for key, task in before.items() if task is not None]
        for task in after.values():
            known = [self.ends[key] for key in task.needs if key not in before]
            if known or not task.needs:
                found.append(max(known, default=0.0))
        return min(found, default=float("inf"))

    def _replace(self, before: Mapping[Key, StepTask | None], after: Mapping[Key, StepTask]) -> None:
        for key in before:
            if (gone := self.tasks.pop(key, None)) is not None:
                for need in gone.needs:
                    self.users[need].discard(key)
        for key, task in after.items():
            self.tasks[key] = task
            self._use(key, task)

    def _use(self, key: Key, task: StepTask) -> None:
        for need in task.needs:
            self.users.setdefault(need, set()).add(key)

    def _again(self, at: int) -> None:
        for key in self.order[at:]:
            del self.ends[key]
        del self.order[at:], self.ready[at:]
        self._run(at, [key for key in self.tasks if key not in self.ends])

    def _run(self, at: int, left: Iterable[Key]) -> None:
        """Do the tasks that are left, in the order in which they become ready."""
        free: dict[Resource, float] = {}
        for key in self.order[:at]:
            free[self.tasks[key].resource] = self.ends[key]
        missing, due = dict[Key, int](), list[tuple[float, Key]]()
        for key in left:
            needs = self.tasks[key].needs
            missing[key] = sum(need not in self.ends for need in needs)
            if not missing[key]:
                due.append((max((self.ends[need] for need in needs), default=0.0), key))
        heapify(due)
        while due:
            ready, key = heappop(due)
            task = self.tasks[key]
            end = max(ready, free.get(task.resource, 0.0)) + task.seconds
            self.ends[key] = free[task.resource] = end
            self.order.append(key)
            self.ready.append(ready)
            for user in self.users.get(key, ()):
                missing[user] -= 1
                if not missing[user]:
                    heappush(due, (max(self.ends[need] for need in self.tasks[user].needs), user))
