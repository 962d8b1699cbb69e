"""``python -m tests.checkpoints.figures.exposed``: a Spark application that says all that it can; told what to do as ``session.py`` is.

Driver and executors log at level DEBUG, there are an event log and web pages, and a stateful query has its checkpoint in ledgers, so that
the executors use the gateway too. They hold the loggers back that bk_spark/checkpoint/README.md names; the driver does so by itself.

{"do": "begin", ...}    start the query; its answer has the secrets, which are written nowhere
{"do": "show", ...}     keep pages, REST answers, plans, settings and what /proc says of these processes
{"do": "end", ...}      wait until the query fails, and keep what it says
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
import urllib.error
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bk_spark.checkpoint import checkpoint_location, hadoop_conf, location
from tests.faults.commands import arguments, serve
from tests.spark.checkpoint_driver import keep_what_is_shown

PAGE_S = 120
PAGES = (
    "executors/",
    "stages/",
    "storage/",
    "api/v1/applications",
    "api/v1/applications/{}/streaming/statistics",
    "api/v1/applications/{}/sql",
)
LOGGING = f"""\
rootLogger.level = debug
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n%ex
logger.wire.name = {hadoop_conf.WIRE_LOGGERS[0]}
logger.wire.level = info
"""
SETTINGS = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
}


def session(master: str, work: Path) -> SparkSession:
    (work / "events").mkdir()
    configuration = work / "log4j2.properties"
    configuration.write_text(LOGGING)
    own = {
        "spark.eventLog.dir": (work / "events").as_uri(),
        "spark.local.dir": str(work / "spark"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.executor.extraJavaOptions": f"-Dlog4j2.configurationFile={configuration.as_uri()}",
    }
    builder: Any = SparkSession.builder
    for key, value in {**SETTINGS, **own}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.master(master).appName("exposed").getOrCreate()
    spark.sparkContext.setLogLevel("DEBUG")
    return spark


def _read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=PAGE_S) as answer:
        text: str = answer.read().decode()
    return text


class Exposed:
    """The commands."""

    def __init__(self, spark: SparkSession, work: Path) -> None:
        self._spark, self._work = spark, work
        self._query: StreamingQuery | None = None
        self._place = ""

    def begin(self, command: dict[str, Any]) -> dict[str, Any]:
        self._place = checkpoint_location(self._spark, command["checkpoint"], uri=command["uri"])
        rows = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
        counted = rows.groupBy((rows.value % 5).alias("k")).count()
        writer = counted.writeStream.format("noop").outputMode("update").option("checkpointLocation", self._place)
        self._query = writer.trigger(processingTime="5 seconds").start()
        while len(self._query.recentProgress) < command["batches"]:
            self._query.awaitTermination(0.2)
        (application,) = location._applications.values()
        gateway = application.gateway
        context: Any = self._spark.sparkContext
        secrets = [gateway.refresh.reveal(), gateway.access.reveal()]
        return {
            "secrets": secrets,
            "host": gateway.host,
            "port": gateway.port,
            "application": context.applicationId,
            "store": command["checkpoint"],
        }

    def show(self, command: dict[str, Any]) -> dict[str, Any]:
        context: Any = self._spark.sparkContext
        context.addFile(__file__)  # has Spark write its settings to the event log once more
        keep_what_is_shown(self._spark, self._work, self._place)
        shown = []
        for page in PAGES:
            with suppress(urllib.error.HTTPError):  # not each version has each
                shown.append(_read(f"{context.uiWebUrl}/{page.format(context.applicationId)}"))
        assert self._query is not None
        shown.append(_read(f"{context.uiWebUrl}/StreamingQuery/statistics/?id={self._query.runId}"))
        shown += [json.dumps(dict(one), default=str) for one in self._query.recentProgress]
        for pid in command["pids"]:
            for part in ("cmdline", "environ", "maps", "comm"):
                with suppress(OSError):
                    shown.append(Path(f"/proc/{pid}/{part}").read_bytes().decode(errors="replace"))
        (self._work / "more").write_text("\n".join(shown))
        return {"pages": len(shown)}

    def end(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._query is not None
        try:
            self._query.awaitTermination(command["limit"])
        except StreamingQueryException as error:
            text = "\n".join([f"{error}", repr(error), repr(vars(error)), traceback.format_exc(), str(self._query.exception())])
            (self._work / "exception").write_text(text)
            return {"error": text}
        raise TimeoutError("the query goes on")


def main() -> None:
    options = arguments()
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    spark = session(options.master, options.work)
    serve(spark, partial(getattr, Exposed(spark, options.work)))


if __name__ == "__main__":
    main()
