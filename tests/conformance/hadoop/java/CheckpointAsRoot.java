package org.apache.hadoop.hdfs.web;

import java.io.IOException;
import java.net.URL;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.web.resources.DestinationParam;
import org.apache.hadoop.hdfs.web.resources.HttpOpParam;
import org.apache.hadoop.hdfs.web.resources.Param;

/**
 * The client of WebHDFS with a checkpoint as its root, for suites that work in the root of a file system: /x is /test/x for the gateway.
 *
 * <p>It lies in the client's package because {@code toUrl}, through which every request goes, is visible only there.
 */
public final class CheckpointAsRoot extends WebHdfsFileSystem {
    public static final Path PLACE = new Path("webhdfs://bookkeeper-checkpoints/");
    private static final String CHECKPOINT = "/test";

    /** The same settings, but webhdfs: is this class. */
    public static Configuration in(Configuration configuration) {
        configuration.setClass("fs.webhdfs.impl", CheckpointAsRoot.class, WebHdfsFileSystem.class);
        configuration.setBoolean("fs.webhdfs.impl.disable.cache", true);
        return configuration;
    }

    @Override
    URL toUrl(HttpOpParam.Op op, Path path, Param<?, ?>... parameters) throws IOException {
        for (int i = 0; i < parameters.length; i++) {
            if (parameters[i] instanceof DestinationParam) {
                parameters[i] = new DestinationParam(below(((DestinationParam) parameters[i]).getValue()));
            }
        }
        return super.toUrl(op, path == null ? null : new Path(below(makeQualified(path).toUri().getPath())), parameters);
    }

    private static String below(String path) {
        return path.equals("/") ? CHECKPOINT : CHECKPOINT + path;
    }
}
