"""Which three strategies should somebody try first? Five questions, and what experience says of the answers.

A guide knows nothing of the model and nothing of the machines: `covey compare` and `covey advise` measure.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from covey.errors import PlanError
from covey.names import meant
from covey.simulate.units import parse_rate

MACHINE = "machine"  # all workers are on one
FAST, SLOW = parse_rate("1gbit"), parse_rate("50mbit")
YES_OR_NO = ("yes", "no")
QUESTIONS = {
    "fits": "Does the model, with its optimizer's state, fit into one worker's memory?",
    "link": "How fast is the slowest link between workers? `machine` if they share one, or a rate such as 100mbit",
    "equal": "Are the machines equally fast?",
    "vanish": "May machines vanish during the run (spot, shared, on wireless)?",
    "stay": "Must the data stay where they are?",
}


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What somebody answered, `yes` and `no` but for the link."""

    fits: str = "yes"
    link: str = MACHINE
    equal: str = "yes"
    vanish: str = "no"
    stay: str = "no"

    @property
    def speed(self) -> str:
        """The link as the guide tells them apart: fast, medium, slow."""
        rate = FAST if self.link == MACHINE else parse_rate(self.link)
        return "fast" if rate >= FAST else "medium" if rate >= SLOW else "slow"


@dataclass(frozen=True)
class Suggestion:
    """A SPEC to try, why, and the command that does it."""

    spec: str
    why: str
    command: str


Choice = tuple[str, str]  # a SPEC, and why

WHOLE: dict[tuple[str, str], tuple[Choice, Choice, Choice]] = {
    ("fast", "yes"): (
        ("allreduce", "the plain sum of all gradients: exact, and the link can carry it every step"),
        ("local_sgd(period=8)", "an eighth of the exchanges; often as good per sample, and less waiting"),
        ("bsp", "the same mathematics as allreduce through servers, which may have machines of their own"),
    ),
    ("fast", "no"): (
        ("easgd(period=4)", "nobody waits: each worker is drawn to a common centre at its own pace"),
        ("adpsgd", "nobody waits for more than one neighbour, and there is no server"),
        ("ssp(bound=3)", "gradients count as they come; the fastest waits once it is 3 steps ahead"),
    ),
    ("medium", "yes"): (
        ("local_sgd(period=8) + fp16", "an eighth of the exchanges, in half of the bytes"),
        ("bmuf(period=8)", "like local_sgd, with a momentum over the means"),
        ("allreduce + powersgd(rank=4)", "a sum in every step, of factors that are small"),
    ),
    ("medium", "no"): (
        ("easgd(period=16)", "a sixteenth of the exchanges, and nobody waits"),
        ("gosgd(probability=0.1)", "a model to one random peer in every tenth step, and nobody waits"),
        ("ssp(bound=3) + int8", "gradients in a quarter of the bytes, with a bound on how old they are"),
    ),
    ("slow", "yes"): (
        ("local_sgd(period=8) + powersgd(rank=16)", "few exchanges, of small factors"),
        ("diloco(period=50)", "an exchange every 50 steps, with an outer optimizer"),
        ("allreduce + topk(density=0.01)", "a hundredth of each gradient; the rest is added to the next one"),
    ),
    ("slow", "no"): (
        ("easgd(period=32) + int8", "few exchanges in a quarter of the bytes, and nobody waits"),
        ("gosgd(probability=0.02)", "a model to one random peer in every fiftieth step"),
        ("diloco(period=100)", "an exchange every 100 steps: the fast ones wait, but seldom"),
    ),
}  # fmt: skip
# Where workers come and go, only what servers add up may be compressed.
COME_AND_GO: dict[tuple[str, str], tuple[Choice, Choice, Choice]] = {
    ("medium", "yes"): (
        ("local_sgd(period=16)", "a sixteenth of the exchanges; a lost round is repeated by those who are there"),
        ("bmuf(period=16)", "like local_sgd, with a momentum over the means"),
        ("bsp + int8", "gradients in a quarter of the bytes, through servers that stay"),
    ),
    ("slow", "yes"): (
        ("diloco(period=50)", "an exchange every 50 steps, with an outer optimizer"),
        ("local_sgd(period=64)", "the same without the outer optimizer"),
        ("bsp + topk(density=0.01)", "a hundredth of each gradient, through servers that stay"),
    ),
    ("slow", "no"): (
        ("easgd(period=64)", "few exchanges, and nobody waits"),
        ("gosgd(probability=0.02)", "a model to one random peer in every fiftieth step"),
        ("diloco(period=100)", "an exchange every 100 steps: the fast ones wait, but seldom"),
    ),
}  # fmt: skip
DIVIDED: dict[bool, tuple[Choice, Choice, Choice]] = {
    True: (
        ("allreduce with mesh(shard={n})", "each worker keeps a part of every layer, and fetches the rest when due"),
        ("allreduce with mesh(tensor={n})", "each worker computes a part of every layer"),
        ("allreduce with mesh(stage={n})", "each worker has some of the layers: the fewest bytes"),
    ),
    False: (
        ("allreduce with mesh(stage={n})", "each worker has some of the layers: only activations travel"),
        ("allreduce with mesh(replica=2, stage={half})", "two such pipelines, with a sum between them"),
        ("allreduce with mesh(shard={n})", "simpler, but all weights travel in every step"),
    ),
}  # fmt: skip
FEDERATED: dict[str, tuple[Choice, Choice, Choice]] = {
    "yes": (
        ("fedavg(epochs=2)", "clients train on their own data, and the mean of their models counts"),
        ("fedopt(server=adam)", "the same, with Adam over the means: fewer rounds where data differ"),
        ("fedprox(mu=0.01)", "the same, with a pull that keeps clients together"),
    ),
    "no": (
        ("fedbuff", "no rounds: every few reports make an update, so slow clients hold up nobody"),
        ("fedavg(epochs=2)", "rounds that begin with more clients than they need"),
        ("fedprox(mu=0.01)", "the same, with a pull that keeps clients together"),
    ),
}  # fmt: skip


def answered(text: str) -> Answers:
    """From `link=100mbit, equal=no`; what is not said is as usual: one machine that holds the model."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in QUESTIONS:
            raise PlanError(f"--answers: `{part}` answers no question{meant(name, QUESTIONS)}")
        if name in found:
            raise PlanError(f"--answers: {name} is answered twice, as {found[name]} and as {value}")
        found[name] = checked(name, value)
    return Answers(**found)


def checked(name: str, value: str) -> str:
    """An answer as it is kept, or why it is none."""
    if name == "link":
        if value != MACHINE:
            parse_rate(value)
        return value
    whole = {"y": "yes", "n": "no"}.get(value, value)
    if whole not in YES_OR_NO:
        raise PlanError(f"{name}={value} should be yes or no: {QUESTIONS[name]}")
    return whole


def suggestions(answers: Answers, task: str = "train.py", workers: int = 4) -> list[Suggestion]:
    """Three strategies to try, the likeliest first."""
    if answers.stay == "yes":
        steady = "no" if answers.equal == "no" or answers.vanish == "yes" else "yes"
        lossy = " + sketch(bits=4)" if answers.speed == "slow" else ""
        choices = [(f"{spec}{lossy}", why) for spec, why in FEDERATED[steady]]
        return [_suggested(choice, f"covey federate simulate {task}") for choice in choices]
    if answers.fits == "no":
        near = answers.link == MACHINE or parse_rate(answers.link) >= 10 * FAST
        choices = [(spec.format(n=workers, half=workers // 2), why) for spec, why in DIVIDED[near]]
        flags = f"--workers {workers}" + (" --on-failure restart --checkpoint kept" if answers.vanish == "yes" else "")
    elif answers.vanish == "yes":
        key = answers.speed, answers.equal
        choices = [*COME_AND_GO.get(key, WHOLE[key])]
        flags = f"--workers {max(workers // 2, 1)}:{workers} --on-failure continue"
    else:
        choices = [*WHOLE[answers.speed, answers.equal]]
        flags = f"--workers {workers}"
    return [_suggested(choice, f"covey run {task} {flags}") for choice in choices]


def _suggested(choice: Choice, command: str) -> Suggestion:
    spec, why = choice
    return Suggestion(spec, why, f"{command} --strategy {shlex.quote(spec)}")


def on_several_machines(answers: Answers, task: str = "train.py", workers: int = 4) -> str:
    """The first of the suggested commands for several machines, where machines vanish; empty elsewhere."""
    if answers.vanish == "no" or answers.stay == "yes" or answers.fits == "no":
        return ""
    spec = suggestions(answers, task, workers)[0].spec
    flags = f"--engine ray --workers {max(workers // 2, 1)}:{workers} --on-failure continue"
    return f"covey run {task} {flags} --strategy {shlex.quote(spec)}"


def then(answers: Answers, task: str = "train.py", workers: int = 4) -> str:
    """The command that measures instead of guessing."""
    if answers.stay == "yes":
        return f"covey federate simulate {task} --help"
    if answers.fits == "no":
        return f"covey search {task} --machines {workers}"
    link = "" if answers.link == MACHINE else f" --bandwidth {answers.link}"
    slow = f" --slow {workers - 1}:2x" if answers.equal == "no" else ""
    return f"covey advise {task} --workers {workers}{link}{slow}{' --spot' if answers.vanish == 'yes' else ''}"
