import java.nio.file.Path;
import java.util.Map;
import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;

/** One OpenSearch node on 127.0.0.1, without security manager: HOME DATA HTTP_PORT TRANSPORT_PORT. Runs until it is killed. */
public class OpenSearchNode {
    public static void main(String[] arguments) throws Exception {
        Path home = Path.of(arguments[0]);
        Path data = Path.of(arguments[1]);
        Settings settings = Settings.builder()
            .put("path.home", home)
            .put("path.data", data.resolve("data"))
            .put("path.logs", data.resolve("logs"))
            .put("node.name", "souk")
            .put("cluster.name", "souk")
            .put("discovery.type", "single-node")
            .put("network.host", "127.0.0.1")
            .put("http.port", arguments[2])
            .put("transport.port", arguments[3])
            // otherwise a nearly full disk blocks new indices
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build();
        new Node(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), home.resolve("config"), () -> "souk")).start();
        Thread.currentThread().join();
    }
}
