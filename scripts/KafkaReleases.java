import java.io.File;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Prints what brokers of releases of Apache Kafka answer to ApiVersions; scripts/kafka_releases.py asks for it.
 *
 * An argument is a release with the jars of its clients and, from 3.3 on, of its server-common: 3.6=JAR:JAR. A line of
 * the output is RELEASE KEY NAME FIRST-LAST for an API, or RELEASE feature NAME LEVEL with a level of a new cluster. The
 * classes have changed over the releases, so they are asked by reflection for what they have.
 */
public class KafkaReleases {
    private static final String SERVER = "org.apache.kafka.server.common.";

    public static void main(String[] arguments) throws Exception {
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            List<URL> jars = new ArrayList<>();
            for (String jar : parts[1].split(":")) {
                jars.add(new File(jar).toURI().toURL());
            }
            ClassLoader parent = ClassLoader.getPlatformClassLoader();
            try (URLClassLoader loader = new URLClassLoader(jars.toArray(URL[]::new), parent)) {
                printApis(loader, parts[0]);
                printFeatures(loader, parts[0]);
            }
        }
    }

    private static void printApis(ClassLoader loader, String release) throws Exception {
        Class<?> apis = loader.loadClass("org.apache.kafka.common.protocol.ApiKeys");
        Object listener = listener(loader, hasFeatures(loader) ? "BROKER" : "ZK_BROKER");
        for (Object api : apis.getEnumConstants()) {
            short[] versions = isServed(api, listener) ? versions(api, listener) : null;
            if (versions != null) {
                short key = (short) apis.getField("id").get(api);
                System.out.printf("%s %d %s %d-%d%n", release, key, apis.getField("name").get(api), versions[0], versions[1]);
            }
        }
    }

    /** Returns the type of the listeners that clients connect to; null before 2.8, when there was one type. */
    private static Object listener(ClassLoader loader, String name) throws Exception {
        Class<?> types = find(loader, "org.apache.kafka.common.message.ApiMessageType$ListenerType");
        return types == null ? null : types.getField(name).get(null);
    }

    private static boolean isServed(Object api, Object listener) throws Exception {
        if (listener != null) {
            return (boolean) api.getClass().getMethod("inScope", listener.getClass()).invoke(api, listener);
        }
        try {
            return (boolean) api.getClass().getField("isEnabled").get(api);
        } catch (NoSuchFieldException older) { // than 2.7
            return true;
        }
    }

    /** Returns the first and the last version; null if there is none but an unstable one. */
    private static short[] versions(Object api, Object listener) throws Exception {
        Method answered = null;
        if (listener != null) {
            answered = find(api.getClass(), "toApiVersionForApiResponse", boolean.class, listener.getClass());
        }
        Method stable = find(api.getClass(), "toApiVersion", boolean.class);
        if (answered == null && stable == null) {
            return new short[] {number(api, "oldestVersion"), number(api, "latestVersion")};
        }
        Object found = answered == null ? stable.invoke(api, false) : answered.invoke(api, false, listener);
        Object range = ((Optional<?>) found).orElse(null);
        return range == null ? null : new short[] {number(range, "minVersion"), number(range, "maxVersion")};
    }

    private static boolean hasFeatures(ClassLoader loader) {
        return find(loader, SERVER + "MetadataVersion") != null;
    }

    private static void printFeatures(ClassLoader loader, String release) throws Exception {
        if (!hasFeatures(loader)) {
            return;
        }
        Class<?> versions = loader.loadClass(SERVER + "MetadataVersion");
        Object newest = newest(versions);
        System.out.printf("%s feature metadata.version %d%n", release, number(newest, "featureLevel"));
        Class<?> current = find(loader, SERVER + "Feature");
        Class<?> features = current == null ? find(loader, SERVER + "Features") : current;
        if (features == null || !features.isEnum()) { // before 3.8, others had no levels
            return;
        }
        for (Object feature : (List<?>) features.getField("PRODUCTION_FEATURES").get(null)) {
            Method renamed = find(features, "defaultLevel", versions);
            Method level = renamed == null ? features.getMethod("defaultValue", versions) : renamed;
            short found = (short) level.invoke(feature, newest);
            if (found > 0) {
                String name = (String) features.getMethod("featureName").invoke(feature);
                System.out.printf("%s feature %s %d%n", release, name, found);
            }
        }
    }

    /** Returns the version of the metadata in a new cluster. */
    private static Object newest(Class<?> versions) throws Exception {
        Method production = find(versions, "latestProduction");
        if (production != null) {
            return production.invoke(null);
        }
        try {
            return versions.getField("LATEST_PRODUCTION").get(null);
        } catch (NoSuchFieldException older) { // when all versions were for production
            return versions.getMethod("latest").invoke(null);
        }
    }

    private static short number(Object object, String method) throws Exception {
        return (short) object.getClass().getMethod(method).invoke(object);
    }

    /** Returns a method; null if there is none. */
    private static Method find(Class<?> type, String name, Class<?>... parameters) {
        try {
            return type.getMethod(name, parameters);
        } catch (NoSuchMethodException missing) {
            return null;
        }
    }

    /** Returns a class; null if there is none. */
    private static Class<?> find(ClassLoader loader, String name) {
        try {
            return loader.loadClass(name);
        } catch (ClassNotFoundException missing) {
            return null;
        }
    }
}
