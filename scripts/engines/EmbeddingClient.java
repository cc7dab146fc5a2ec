import dev.langchain4j.model.embedding.EmbeddingModel;
import java.util.Arrays;

/**
 * Asks for the vectors of texts as Solr's module for query vectors does: it builds the client CLASS by reflection, with a setter for
 * each parameter. CLASS NAME=VALUE... -- TEXT... Prints one JSON array per text.
 */
public class EmbeddingClient {
    public static void main(String[] arguments) throws Exception {
        Object builder = Class.forName(arguments[0]).getMethod("builder").invoke(null);
        int at = 1;
        for (; !arguments[at].equals("--"); at++) {
            String[] parameter = arguments[at].split("=", 2);
            builder.getClass().getMethod(parameter[0], String.class).invoke(builder, parameter[1]);
        }
        EmbeddingModel model = (EmbeddingModel) builder.getClass().getMethod("build").invoke(builder);
        for (String text : Arrays.copyOfRange(arguments, at + 1, arguments.length)) {
            System.out.println(Arrays.toString(model.embed(text).content().vector()));
        }
    }
}
