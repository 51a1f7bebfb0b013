"""The engine spark: what it takes, and whether it works here."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from covey.engines.entries.engine import ENDS_WITH_RUN, Engine, installed_version
from covey.engines.entries.trouble import PATIENCE, Trouble

if TYPE_CHECKING:
    from covey.engines.cluster.places import Places

JAVA = 17  # what PySpark 4 runs on


@dataclass(frozen=True, kw_only=True)
class SparkEngine(Engine):
    """tasks of a barrier stage of Spark"""

    master: str = ""  # of a cluster, such as spark://HOST:7077

    needs = "pyspark"
    install = "pip install 'covey[spark]'"
    refuses: ClassVar[Mapping[str, str]] = {
        "hosts": "which knows its executors: the engine 'spark(master=\"spark://…\")'",
        "on_failure": ENDS_WITH_RUN,
    }

    def places(self, workers: int, hosts: Path | None) -> Places:
        from covey.engines.spark import places

        return places(workers, self.master)

    @classmethod
    def check(cls) -> str:
        """PySpark, and the Java that it needs."""
        cls.check_installed()
        return f"{installed_version('pyspark')}, Java {_java()}"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    fix = f"only for this engine: apt-get install openjdk-{JAVA}-jre-headless, or set JAVA_HOME"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise Trouble(f"no Java at {java}" if home else "no java command", fix, "missing") from None
    found = re.search(r'version "([0-9.]+)', done.stdout + done.stderr)
    if not found or int(found[1].split(".")[0]) < JAVA:
        raise Trouble(f"Java {found[1] if found else 'of unknown version'}; PySpark needs {JAVA} or newer", fix)
    return found[1]
