import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/** Names and principals of certificates, as Apache Kafka has them: one line `DER of the subject in base64 TAB rules` each. */
public class PrincipalNames {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        java.io.PrintStream out = new java.io.PrintStream(System.out, true, "UTF-8");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", 2);
            String name = new X500Principal(Base64.getDecoder().decode(parts[0])).getName();
            String mapped;
            try {
                mapped = "User:" + SslPrincipalMapper.fromRules(parts[1]).getName(name);
            } catch (Exception error) {
                mapped = error.getClass().getSimpleName();
            }
            out.println(name + "\t" + mapped);
        }
    }
}
