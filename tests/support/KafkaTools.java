import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs tools of Apache Kafka one after the other in this JVM; tests/support/kafka_tools.py asks for them.
 *
 * A request on standard input is the tool's standard input, the number of its words and the words as of a command line:
 * -Dname=value of system properties, the class, the arguments. The answer on standard output is the exit code, standard
 * output and standard error. Numbers are of 4 bytes, texts are in UTF-8 behind their number of bytes.
 */
public class KafkaTools {
    /** A tool that runs. What its threads write goes to it, also after it has ended, when nobody reads it. */
    private static class Run {
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        final ByteArrayOutputStream err = new ByteArrayOutputStream();
        final List<Runnable> shutdownHooks = new ArrayList<>();
        volatile int code;
        volatile boolean exited;

        void exit(int code) {
            if (!exited) {
                this.code = code;
                exited = true;
            }
            throw new Exited();
        }
    }

    /** Ends the thread that has called for the exit. */
    private static class Exited extends Error {}

    private static final InheritableThreadLocal<Run> CURRENT = new InheritableThreadLocal<>();

    /** Standard output or error of all tools. Code that catches {@link Exited} would go on to write, which no exit lets. */
    private static class Routed extends OutputStream {
        private final boolean isError;

        Routed(boolean isError) {
            this.isError = isError;
        }

        @Override
        public void write(int octet) {
            write(new byte[] {(byte) octet}, 0, 1);
        }

        @Override
        public void write(byte[] octets, int offset, int count) {
            Run run = CURRENT.get();
            if (run != null && !run.exited) {
                (isError ? run.err : run.out).write(octets, offset, count);
            }
        }
    }

    private static void runTool(Run run, String[] words) {
        CURRENT.set(run);
        int next = 0;
        List<String> properties = new ArrayList<>();
        for (; words[next].startsWith("-D"); next++) {
            String[] property = words[next].substring(2).split("=", 2);
            System.setProperty(property[0], property[1]);
            properties.add(property[0]);
        }
        String[] arguments = List.of(words).subList(next + 1, words.length).toArray(String[]::new);
        try {
            Class.forName(words[next]).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Exited)) {
                error.getCause().printStackTrace();
                run.code = run.exited ? run.code : 1;
            }
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            run.code = 1;
        }
        run.exited = false;
        run.shutdownHooks.forEach(Runnable::run);
        properties.forEach(System::clearProperty);
    }

    private static byte[] read(DataInputStream from) throws IOException {
        byte[] octets = new byte[from.readInt()];
        from.readFully(octets);
        return octets;
    }

    private static void write(DataOutputStream to, ByteArrayOutputStream octets) throws IOException {
        byte[] copied = octets.toByteArray();
        to.writeInt(copied.length);
        to.write(copied);
    }

    public static void main(String[] none) throws Exception {
        DataInputStream requests = new DataInputStream(System.in);
        DataOutputStream answers = new DataOutputStream(System.out);
        System.setOut(new PrintStream(new Routed(false), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new Routed(true), true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> CURRENT.get().exit(code));
        Exit.setHaltProcedure((code, message) -> CURRENT.get().exit(code));
        Exit.setShutdownHookAdder((name, hook) -> CURRENT.get().shutdownHooks.add(hook));
        while (true) {
            byte[] input;
            try {
                input = read(requests);
            } catch (EOFException end) {
                Runtime.getRuntime().halt(0);  // threads that tools have left do not matter
                return;
            }
            String[] words = new String[requests.readInt()];
            for (int index = 0; index < words.length; index++) {
                words[index] = new String(read(requests), StandardCharsets.UTF_8);
            }
            System.setIn(new ByteArrayInputStream(input));
            Run run = new Run();
            Thread thread = new Thread(() -> runTool(run, words), "main");
            thread.start();
            thread.join();
            answers.writeInt(run.code);
            write(answers, run.out);
            write(answers, run.err);
            answers.flush();
        }
    }
}
