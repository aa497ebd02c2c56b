import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/** Hadoop's local files, checksums included, without the processes that Hadoop starts where its native library is missing. */
public final class LocalFiles extends LocalFileSystem {
    public LocalFiles() {
        super(new Raw());
    }

    private static final class Raw extends RawLocalFileSystem {
        /** Hadoop's own runs `chmod`, for each file and folder that it creates. */
        @Override
        public void setPermission(Path path, FsPermission permission) throws IOException {
            Files.setAttribute(pathToFile(path).toPath(), "unix:mode", (int) permission.toShort());
        }

        /** Hadoop's own runs `readlink`, several times for each file that is renamed. */
        @Override
        public FileStatus getFileLinkStatus(Path path) throws IOException {
            boolean isLink = Files.isSymbolicLink(pathToFile(path).toPath());
            return isLink ? super.getFileLinkStatus(path) : getFileStatus(path);
        }
    }

    /** The same for `FileContext`, by which Spark writes checkpoints, and Delta its log. */
    public static final class Context extends ChecksumFs {
        public Context(URI name, Configuration settings) throws IOException, URISyntaxException {
            super(new RawContext(name, settings));
        }
    }

    private static final class RawContext extends DelegateToFileSystem {
        RawContext(URI name, Configuration settings) throws IOException, URISyntaxException {
            super(name, new Raw(), settings, name.getScheme(), false);
        }

        @Override
        public int getUriDefaultPort() {
            return -1;
        }

        @Override
        public boolean isValidName(String name) {
            return true;
        }
    }
}
