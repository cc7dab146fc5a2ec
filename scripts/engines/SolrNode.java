import java.util.Properties;
import org.apache.solr.embedded.JettyConfig;
import org.apache.solr.embedded.JettySolrRunner;

/** One Solr node with the cores in a folder: FOLDER PORT. Runs until it is killed. */
public class SolrNode {
    public static void main(String[] arguments) throws Exception {
        JettyConfig config = JettyConfig.builder().setContext("/solr").setPort(Integer.parseInt(arguments[1])).build();
        new JettySolrRunner(arguments[0], new Properties(), config).start();
        Thread.currentThread().join();
    }
}
