import java.util.Set;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;

/** Prints the configs of groups and brokers that this release of Apache Kafka defines, a line each. */
public class ConfigNames {
    public static void main(String[] arguments) throws ReflectiveOperationException {
        var field = DynamicBrokerConfig.class.getDeclaredField("ALL_DYNAMIC_CONFIGS");
        field.setAccessible(true);
        print("group", GroupConfig.CONFIG_DEF, GroupConfig.configNames());
        print("broker", KafkaConfig.configDef(), (Set<?>) field.get(null));
    }

    private static void print(String resource, ConfigDef definitions, Set<?> dynamic) {
        for (ConfigDef.ConfigKey key : definitions.configKeys().values()) {
            boolean hasDefault = key.hasDefault() && key.defaultValue != null;
            String value = hasDefault ? ConfigDef.convertToString(key.defaultValue, key.type) : "";
            String isDynamic = String.valueOf(dynamic.contains(key.name));
            String isInternal = String.valueOf(key.internalConfig);
            System.out.println(String.join("\t", resource, key.name, key.type.name(), value, isDynamic, isInternal));
        }
    }
}
