"""A Spark session that covey starts: its Java process and its files are removed after the run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

from covey.engines.cluster.daemon_directory import DaemonDirectory
from covey.errors import PlanError

JAVA = 17  # the oldest that Spark 4 runs on
FIX = "apt-get install openjdk-17-jre-headless, or set JAVA_HOME to one"
PATIENCE = 10.0  # seconds that Java has to end
# It schedules one job and computes nothing: a small and quick start is all that is asked of it.
FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
QUIET = """
appender.console.type = Console
appender.console.name = console
rootLogger.level = off
rootLogger.appenderRef.console.ref = console
"""  # Spark takes its own settings where there is no appender


def running() -> SparkContext | None:
    """The Spark of this program, if it has one."""
    context: SparkContext | None = SparkContext._active_spark_context
    return context


def is_here(context: SparkContext) -> bool:
    """Whether its tasks run on this machine, in the process that schedules them."""
    return re.fullmatch(r"local(\[.*\])?", str(context.master)) is not None


@contextmanager
def this_python(context: SparkContext) -> Iterator[None]:
    """Run tasks of this machine on this very Python, unless one is configured: Spark would take any python3."""
    usual = context.pythonExec
    if is_here(context) and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    try:
        yield
    finally:
        context.pythonExec = usual


def check_java() -> None:
    """Spark needs Java; without it, what to do."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None or not Path(program).is_file():
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        raise PlanError(f"--engine spark needs Java {JAVA} or newer, and {where}: {FIX}")
    told = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    if found and int(found[1]) < JAVA:
        raise PlanError(f"--engine spark needs Java {JAVA} or newer, and {program} is Java {found[1]}: {FIX}")


class OwnSpark:
    """A context that covey has started."""

    def __init__(self, master: str, sites: int) -> None:
        self.daemons = DaemonDirectory("spark")
        self.mine = SparkContext._gateway is None  # else Java was there before, with nothing running in it
        try:
            with self.daemons.starting(**self._environment(master)):
                self.context = SparkContext(conf=self._conf(master or f"local[{sites}]"))
        except (PySparkException, OSError) as error:
            self.stop()
            raise PlanError(f"Spark did not start: {str(error).strip().partition(chr(10))[0]}") from error
        except BaseException:
            self.stop()
            raise

    def _environment(self, master: str) -> dict[str, str]:
        given = {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "SPARK_LOCAL_DIRS": str(self.daemons.path),
        }
        return given if master else {**given, "SPARK_LOCAL_IP": "127.0.0.1"}

    def _conf(self, master: str) -> SparkConf:
        logging = self.daemons.path / "log4j2.properties"
        logging.write_text(QUIET)
        flags = f"{FLAGS} -Djava.io.tmpdir={self.daemons.path} -Dlog4j2.configurationFile=file:{logging}"
        conf = SparkConf().setMaster(master).setAppName("covey")
        conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
        return conf.set("spark.driver.extraJavaOptions", flags)

    def pids(self) -> list[int]:
        """Java, and with it the tasks."""
        gateway = SparkContext._gateway
        return [gateway.proc.pid] if self.mine and gateway is not None else []

    def stop(self) -> None:
        """Stop Spark, and end Java unless it was there before."""
        context = running()
        with suppress(Exception):  # Java may be dead already
            if context is not None:
                context.stop()
        gateway = SparkContext._gateway
        if self.mine and gateway is not None:
            SparkContext._gateway = SparkContext._jvm = None
            with suppress(Exception):
                gateway.shutdown()
            _end(gateway.proc)
        self.daemons.close()


def _end(java: subprocess.Popen[bytes]) -> None:
    """Java ends when its input does."""
    with suppress(OSError):
        if java.stdin:
            java.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        java.wait(PATIENCE)
    java.kill()
    java.wait()
