import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSMainOperationsBaseTest;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileContextCreateMkdirBaseTest;
import org.apache.hadoop.fs.FileContextMainOperationsBaseTest;
import org.apache.hadoop.fs.FileContextTestHelper;
import org.apache.hadoop.fs.FileContextURIBase;
import org.apache.hadoop.fs.FileContextUtilBase;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FileSystemContractBaseTest;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.contract.AbstractContractBulkDeleteTest;
import org.apache.hadoop.fs.contract.AbstractContractContentSummaryTest;
import org.apache.hadoop.fs.contract.AbstractContractCopyFromLocalTest;
import org.apache.hadoop.fs.contract.AbstractContractCreateTest;
import org.apache.hadoop.fs.contract.AbstractContractDeleteTest;
import org.apache.hadoop.fs.contract.AbstractContractGetEnclosingRoot;
import org.apache.hadoop.fs.contract.AbstractContractGetFileStatusTest;
import org.apache.hadoop.fs.contract.AbstractContractMkdirTest;
import org.apache.hadoop.fs.contract.AbstractContractOpenTest;
import org.apache.hadoop.fs.contract.AbstractContractRenameTest;
import org.apache.hadoop.fs.contract.AbstractContractRootDirectoryTest;
import org.apache.hadoop.fs.contract.AbstractContractSeekTest;
import org.apache.hadoop.fs.contract.AbstractContractVectoredReadTest;
import org.apache.hadoop.fs.contract.AbstractFSContract;
import org.apache.hadoop.fs.contract.ContractOptions;
import org.apache.hadoop.hdfs.web.CheckpointAsRoot;
import org.junit.jupiter.api.BeforeEach;

/**
 * Hadoop's own suites about what a file system is, over the place of the checkpoint "test": webhdfs://bookkeeper-checkpoints/test.
 *
 * <p>The settings of the client come from core-site.xml, which lies first in the class path.
 */
public final class HadoopSuites {
    private static final Path PLACE = new Path("webhdfs://bookkeeper-checkpoints/test");

    /** What the gateway promises, in the words of org.apache.hadoop.fs.contract.ContractOptions. What is not named is not promised. */
    private static final String[] PROMISES = {
        ContractOptions.CREATE_VISIBILITY_DELAYED,
        ContractOptions.IS_CASE_SENSITIVE,
        ContractOptions.RENAME_RETURNS_FALSE_IF_DEST_EXISTS,
        ContractOptions.RENAME_RETURNS_FALSE_IF_SOURCE_MISSING,
        ContractOptions.SUPPORTS_ATOMIC_DIRECTORY_DELETE,
        ContractOptions.SUPPORTS_ATOMIC_RENAME,
        ContractOptions.SUPPORTS_AVAILABLE_ON_CLOSED_FILE,
        ContractOptions.SUPPORTS_CONTENT_CHECK,
        ContractOptions.SUPPORTS_GETFILESTATUS,
        ContractOptions.SUPPORTS_POSITIONED_READABLE,
        ContractOptions.SUPPORTS_SEEK,
        ContractOptions.SUPPORTS_SEEK_ON_CLOSED_FILE,
        ContractOptions.SUPPORTS_STRICT_EXCEPTIONS,
        ContractOptions.TEST_ROOT_TESTS_ENABLED,
    };

    private static class Place extends AbstractFSContract {
        private final Path root;

        Place(Configuration configuration, Path root) {
            super(configuration);
            this.root = root;
            for (String promise : PROMISES) {
                configuration.setBoolean(ContractOptions.FS_CONTRACT_KEY + promise, true);
            }
            configuration.setInt(ContractOptions.FS_CONTRACT_KEY + ContractOptions.TEST_RANDOM_SEEK_COUNT, 20);
        }

        @Override
        public FileSystem getTestFileSystem() throws IOException {
            return root.getFileSystem(getConf());
        }

        @Override
        public String getScheme() {
            return root.toUri().getScheme();
        }

        @Override
        public Path getTestPath() {
            return new Path(root, "contract");
        }
    }

    public static class BulkDelete extends AbstractContractBulkDeleteTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(configuration, PLACE);
        }
    }

    public static class ContentSummary extends AbstractContractContentSummaryTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(configuration, PLACE);
        }
    }

    public static class CopyFromLocal extends AbstractContractCopyFromLocalTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(configuration, PLACE);
        }
    }

    public static class Create extends AbstractContractCreateTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(configuration, PLACE);
        }
    }

    public static class Delete extends AbstractContractDeleteTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(configuration, PLACE);
        }
    }

    public static class GetEnclosingRoot extends AbstractContractGetEnclosingRoot {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(configuration, PLACE);
        }
    }

    public static class GetFileStatus extends AbstractContractGetFileStatusTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(configuration, PLACE);
        }
    }

    public static class Mkdir extends AbstractContractMkdirTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(configuration, PLACE);
        }
    }

    public static class Open extends AbstractContractOpenTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(configuration, PLACE);
        }
    }

    public static class Rename extends AbstractContractRenameTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(configuration, PLACE);
        }
    }

    public static class RootDirectory extends AbstractContractRootDirectoryTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(CheckpointAsRoot.in(configuration), CheckpointAsRoot.PLACE);
        }
    }

    public static class Seek extends AbstractContractSeekTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(configuration, PLACE);
        }
    }

    public static class VectoredRead extends AbstractContractVectoredReadTest {
        public VectoredRead(String bufferType) {
            super(bufferType);
        }

        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new Place(configuration, PLACE);
        }
    }

    /** The base of HDFS's TestWebHdfsFileSystemContract. */
    public static class WholeFileSystem extends FileSystemContractBaseTest {
        @BeforeEach
        public void open() throws Exception {
            fs = CheckpointAsRoot.PLACE.getFileSystem(CheckpointAsRoot.in(new Configuration()));
        }

        @Override
        protected String getDefaultWorkingDirectory() {
            return "/user/" + System.getProperty("user.name");
        }
    }

    /** The base of HDFS's TestFSMainOperationsWebHdfs. */
    public static class MainOperations extends FSMainOperationsBaseTest {
        public MainOperations() {
            super("/test/main");
        }

        @Override
        protected FileSystem createFileSystem() throws Exception {
            return FileSystem.get(PLACE.toUri(), new Configuration());
        }

        @Override
        protected Path getDefaultWorkingDirectory() {
            return new Path("webhdfs://bookkeeper-checkpoints/");
        }
    }

    private static FileContext context() throws IOException {
        return FileContext.getFileContext(PLACE.toUri(), new Configuration());
    }

    public static class ContextMainOperations extends FileContextMainOperationsBaseTest {
        @BeforeEach
        @Override
        public void setUp() throws Exception {
            fc = context();
            super.setUp();
        }

        @Override
        protected FileContextTestHelper createFileContextHelper() {
            return new FileContextTestHelper("/test/context");
        }

        @Override
        protected Path getDefaultWorkingDirectory() {
            return new Path("webhdfs://bookkeeper-checkpoints/");
        }

        @Override
        protected boolean listCorruptedBlocksSupported() {
            return false;
        }
    }

    public static class ContextCreateMkdir extends FileContextCreateMkdirBaseTest {
        @BeforeEach
        @Override
        public void setUp() throws Exception {
            fc = context();
            super.setUp();
        }

        @Override
        protected FileContextTestHelper createFileContextHelper() {
            return new FileContextTestHelper("/test/create");
        }
    }

    public static class ContextUri extends FileContextURIBase {
        @BeforeEach
        @Override
        public void setUp() throws Exception {
            fc1 = context();
            fc2 = context();
            super.setUp();
        }
    }

    public static class ContextUtil extends FileContextUtilBase {
        @BeforeEach
        @Override
        public void setUp() throws Exception {
            fc = context();
            super.setUp();
        }
    }

    private HadoopSuites() {}
}
