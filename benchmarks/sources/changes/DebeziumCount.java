import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.util.List;
import java.util.Properties;

/** Debezium's embedded engine, as JSON, into a counter. Arguments: a file of the engine's properties, how many records, "delays" or "". */
public final class DebeziumCount {
    private static final String AT = "\"at_us\":";

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (FileReader file = new FileReader(arguments[0])) {
            properties.load(file);
        }
        Count count = new Count(Long.parseLong(arguments[1]), arguments[2].equals("delays"));
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(properties)
            .using((success, message, error) -> {
                System.err.println(message);
                if (error != null) {
                    error.printStackTrace();
                }
                Runtime.getRuntime().halt(1);
            })
            .notifying((records, committer) -> take(records, committer, count))
            .build();
        engine.run();
    }

    private static void take(
        List<ChangeEvent<String, String>> records, DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer, Count count)
        throws InterruptedException {
        for (ChangeEvent<String, String> record : records) {
            if (count.hasDelays()) {
                String value = record.value();
                int at = value.lastIndexOf(AT) + AT.length();
                int end = at;
                while (Character.isDigit(value.charAt(end))) {
                    end++;
                }
                count.delay(Long.parseLong(value, at, end, 10));
            }
            committer.markProcessed(record);
        }
        committer.markBatchFinished();
        count.add(records.size());
    }
}
