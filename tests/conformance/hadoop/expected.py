"""The number of passing tests of each suite, and each test that does not hold with its reason. Any other outcome fails the test of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Expected:
    """``failing`` and ``skipped``: names of tests with the reason."""

    passing: int
    failing: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


NO_APPEND = "a file of a checkpoint is written once; Spark never appends"
NO_STATUS = "the space that is left in a cluster (GETSTATUS) is nobody's question here"
NO_PERMISSIONS = "permissions are not kept: who has the secret may do all, others nothing"
AT_CLOSE = "a file is there when it is closed, whole, and not before"
CLIENT = "Hadoop's client decides this by itself, before or without asking us: "
LOCAL = "the test looks for its files on the local disk, where they are not"
IN_JAR = "the test reads files that lie in the jar of the tests, or in Spark's source tree, as if they were in the default file system"
OTHER_RELEASE = "the test, of Spark 4.2.0, is about what Spark 4.3 has no more, or does otherwise"
OLD_RENAME = (
    "it replaces a file by FileSystem.rename without options, which HDFS refuses too; Spark does this only where there is no FileContext"
)

HADOOP = {
    "BulkDelete": Expected(
        16,
        skipped={
            name: "the client deletes one path a call, so the suite's calls with several do not apply"
            for name in ("testChildPaths", "testDeletePathsDirectory", "testDeleteSamePathsMoreThanOnce")
        },
    ),
    "ContentSummary": Expected(2),
    "CopyFromLocal": Expected(15),
    "Create": Expected(14, skipped=dict.fromkeys(("testCreatedFileIsVisibleOnFlush", "testCreatedFileIsImmediatelyVisible"), AT_CLOSE)),
    "Delete": Expected(8),
    "GetEnclosingRoot": Expected(4),
    "GetFileStatus": Expected(20),
    "Mkdir": Expected(8),
    "Open": Expected(27),
    "Rename": Expected(10),
    "RootDirectory": Expected(9),
    "Seek": Expected(
        16,
        failing={
            "testNegativeSeek": CLIENT + "it throws IllegalArgumentException for a negative offset",
            "testSeekPastEndOfFileThenReseekAndRead": CLIENT
            + "it takes the length of a file for 0 after a first read behind the end was refused, and then reads nothing anywhere",
        },
    ),
    "VectoredRead": Expected(46),
    "WholeFileSystem": Expected(41, failing={"testFsStatus": NO_STATUS, "testMkdirsWithUmask": NO_PERMISSIONS}),
    "MainOperations": Expected(
        47,
        failing={
            "testFsStatus": NO_STATUS,
            "testGlobStatusThrowsExceptionForUnreadableDir": NO_PERMISSIONS,
            "testListStatusThrowsExceptionForUnreadableDir": NO_PERMISSIONS,
        },
    ),
    "ContextMainOperations": Expected(
        68,
        failing={
            "testFsStatus": NO_STATUS,
            "testSetVerifyChecksum": AT_CLOSE,
            "testCreateFlagAppendExistingFile": NO_APPEND,
            "testCreateFlagCreateAppendExistingFile": NO_APPEND,
            "testBuilderCreateAppendExistingFile": NO_APPEND,
        },
    ),
    "ContextCreateMkdir": Expected(11),
    "ContextUri": Expected(16, failing={"testFileStatus": NO_STATUS}),
    "ContextUtil": Expected(2),
}

QUICK = ("Create", "Delete", "GetFileStatus", "Mkdir", "Open", "Rename", "RootDirectory", "WholeFileSystem")
"""Those of Hadoop's suites that are a part of ``make test``."""

_MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing."

SPARK = {
    "OverFileContext": Expected(1),
    "OverFileSystem": Expected(0, failing={"mkdirs, list, createAtomic, open, delete, exists": OLD_RENAME}),
    "WithChecksums": Expected(8),
    "MetadataLog": Expected(
        7,
        failing={
            "HDFSMetadataLog: purge": LOCAL,
            f"HDFSMetadataLog: purge - explicit file manager - {_MANAGERS}FileSystemBasedCheckpointFileManager": LOCAL,
            f"HDFSMetadataLog: purge - explicit file manager - {_MANAGERS}FileContextBasedCheckpointFileManager": LOCAL,
            "HDFSMetadataLog: readOnly=false always creates directory": LOCAL,
        },
    ),
    "execution.streaming.OffsetSeqLogSuite": Expected(
        11,
        failing={
            "deserialization log written by future version": LOCAL,
            "read Spark 2.1.0 log format": IN_JAR,
            "verify format values from checkpoint loc - unsaferow": IN_JAR,
            "verify format values from checkpoint loc - avro": IN_JAR,
            "verify format values from old checkpoint with Spark version 3.5.1": IN_JAR,
            "Row checksum disabled for existing checkpoint even if conf is enabled": IN_JAR,
            "OffsetMap golden file compatibility test - VERSION_2 format": IN_JAR,
            "SPARK-55131: Backward compatibility test with merge operator version": IN_JAR,
        },
    ),
    "streaming.CommitLogSuite": Expected(
        5,
        failing={
            "Basic Commit Log V1 SerDe": IN_JAR,
            "Basic Commit Log V2 SerDe - nonempty stateUniqueIds": IN_JAR,
            "Basic Commit Log V2 SerDe - empty stateUniqueIds": IN_JAR,
            "Cross-version V1 SerDe": IN_JAR,
        },
    ),
    "execution.streaming.CompactibleFileStreamLogSuite": Expected(14),
    "execution.streaming.FileStreamSinkLogSuite": Expected(7, failing={"read Spark 2.1.0 log format": IN_JAR}),
}

LONG_SPARK = {
    "execution.streaming.state.OperatorStateMetadataSuite": Expected(14),
    "StateStore": Expected(
        169,
        failing={
            "StateStore.get": OTHER_RELEASE,
            "SPARK-34270: StateStoreMetrics.combine should not override individual metrics": OTHER_RELEASE,
            "SPARK-35763: StateStoreCustomMetric withNewDesc and createSQLMetric": OTHER_RELEASE,
            "SPARK-48997: maintenance threads with exceptions unload only themselves": OTHER_RELEASE,
            "SPARK-51596: submitMaintenanceWorkForProvider from task thread adds to queue when timeout occurs": OTHER_RELEASE,
            "SPARK-51596: queued maintenance tasks get processed when lock is available": OTHER_RELEASE,
            "SPARK-51596: unloading only occurs on maintenance thread but occurs promptly": OTHER_RELEASE,
            "SPARK-40492: maintenance before unload": LOCAL,
            "SPARK-18416: do not create temp delta file until the store is updated": LOCAL,
            "SPARK-51291: corrupted file handling": LOCAL,
            "empty or missing file handling": LOCAL,
            "snapshotting": LOCAL,
            "Auto snapshot repair": LOCAL,
        },
        skipped={"maintenance": LOCAL + ", for two minutes"},
    ),
}
