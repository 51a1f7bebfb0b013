"""All that an engine must and may do. Its fields are its settings, and it declares what it does not take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from covey.engines.entries.trouble import Trouble
from covey.engines.launch_environment import LaunchEnvironment
from covey.errors import PlanError
from covey.names import option

if TYPE_CHECKING:
    from covey.engines.cluster.places import Places
    from covey.engines.cluster.ranks import Ranks

ENDS_WITH_RUN = (  # why an engine refuses --on-failure
    "whose processes end with the run: let its scheduler start the program again, to resume from its checkpoints, "
    "or use the engine local, ray or lab"
)


class Engine(ABC):
    """An engine starts the processes of a run on the hosts of a cluster.

    A subclass is a dataclass: its fields are the settings in `--engine name(setting=value)`, and the first line of its
    docstring says where its sites run. It must have `places`. All else it may have: `needs`, a Python package, and
    `install`, the command that installs it; `refuses`, the options that it does not take, each with the end of a
    sentence that says what would work; `goes_on`, whether its places can start a lost site again; `check`, what `covey
    doctor` reports.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Batch(covey.Engine):
    ...     '''jobs of a batch system'''
    ...     queue: str = "short"
    ...     needs = "my_batch_system"
    ...     install = "pip install my_batch_system"
    ...     def places(self, workers: int, hosts: "Path | None") -> covey.Places: ...
    """

    needs: ClassVar[str] = ""
    install: ClassVar[str] = ""
    refuses: ClassVar[Mapping[str, str]] = {"hosts": "which finds its hosts itself: omit it"}
    goes_on: ClassVar[bool] = False

    @abstractmethod
    def places(self, workers: int, hosts: Path | None) -> Places:
        """The places of a run with this number of workers. It refuses what cannot work, and starts nothing yet.

        Args:
            workers: The number of workers; usually there is one site for each.
            hosts: The file of `--hosts`; None if it was not given, or is refused.
        """

    @classmethod
    def about(cls) -> str:
        """Where its sites run."""
        return (cls.__doc__ or "").strip().partition("\n")[0].rstrip(".")

    @classmethod
    def check(cls) -> str:
        """What `covey doctor` reports; a `PlanError` says what is wrong and how to fix it."""
        cls.check_installed()
        return installed_version(cls.needs) if cls.needs else "ready"

    @classmethod
    def check_installed(cls) -> None:
        """Report a package that is missing."""
        if cls.needs and find_spec(cls.needs) is None:
            raise Trouble(f"{cls.needs} is not installed", f"only for this engine: {cls.install}", "missing")

    @classmethod
    def require(cls, name: str) -> None:
        """Refuse a run that needs a missing package."""
        if cls.needs and find_spec(cls.needs) is None:
            raise PlanError(f"{option('engine', name)} needs {cls.needs}: {cls.install}")

    @classmethod
    def environment(cls) -> LaunchEnvironment | None:
        """The rank of this process, where another program starts the launcher's own command in every rank."""
        return None

    @classmethod
    def ranks(cls) -> Ranks:
        """How such ranks meet. It is asked only of an engine whose `environment` found a rank."""
        raise NotImplementedError(f"{cls.__qualname__} finds ranks in its environment, and must say how they meet")


def installed_version(package: str) -> str:
    """A package with its version, where that is known."""
    from importlib.metadata import PackageNotFoundError, version  # `covey --help` does without it

    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package
