// One warm JVM for many runs of Apache Kafka's own performance tools: each line of standard input is the name of a
// class and its arguments, separated by tabs. What the tool prints is followed by a line that begins with "== ".

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;

public class PerfClient {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split("\t");
            String end = "== done";
            try {
                Object rest = Arrays.copyOfRange(words, 1, words.length);
                Class.forName(words[0]).getMethod("main", String[].class).invoke(null, rest);
            } catch (InvocationTargetException error) {
                end = "== failed: " + error.getCause();
            }
            System.out.println(end);
            System.out.flush();
        }
    }
}
