import java.io.FileReader;
import java.time.ZoneId;
import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.cdc.connectors.base.options.StartupOptions;
import org.apache.flink.cdc.connectors.postgres.source.PostgresSourceBuilder;
import org.apache.flink.cdc.connectors.postgres.table.PostgreSQLDeserializationConverterFactory;
import org.apache.flink.cdc.debezium.table.DebeziumChangelogMode;
import org.apache.flink.cdc.debezium.table.RowDataDebeziumDeserializeSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.BooleanType;
import org.apache.flink.table.types.logical.DecimalType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.LocalZonedTimestampType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.VarCharType;

/**
 * Flink CDC's source for PostgreSQL, with the rows that its SQL connector makes, into a counter; in one process. Arguments: a file of
 * properties, how many records, "delays" or "".
 */
public final class FlinkCount {
    private static final LogicalType[] TYPES = {
        new BigIntType(false), new BigIntType(false), new IntType(), new DecimalType(12, 2), new BooleanType(),
        new LocalZonedTimestampType(6), new VarCharType(VarCharType.MAX_LENGTH), new VarCharType(VarCharType.MAX_LENGTH)};
    private static final String[] NAMES = {"id", "at_us", "customer", "amount", "is_paid", "created", "name", "note"};
    private static final int AT = 1;
    private static Count count;

    public static void main(String[] arguments) throws Exception {
        Properties given = new Properties();
        try (FileReader file = new FileReader(arguments[0])) {
            given.load(file);
        }
        count = new Count(Long.parseLong(arguments[1]), arguments[2].equals("delays"));
        RowType rows = RowType.of(TYPES, NAMES);
        Properties debezium = new Properties();
        debezium.setProperty("publication.name", given.getProperty("publication"));
        debezium.setProperty("publication.autocreate.mode", "disabled");
        PostgresSourceBuilder.PostgresIncrementalSource<RowData> source = PostgresSourceBuilder.PostgresIncrementalSource.<RowData>builder()
            .hostname(given.getProperty("host"))
            .port(Integer.parseInt(given.getProperty("port")))
            .database(given.getProperty("database"))
            .schemaList("public")
            .tableList("public." + given.getProperty("table"))
            .username(given.getProperty("user"))
            .password(given.getProperty("password"))
            .slotName(given.getProperty("slot"))
            .decodingPluginName("pgoutput")
            .debeziumProperties(debezium)
            .startupOptions(given.getProperty("start").equals("snapshot") ? StartupOptions.snapshot() : StartupOptions.committed())
            .deserializer(RowDataDebeziumDeserializeSchema.newBuilder()
                .setPhysicalRowType(rows)
                .setResultTypeInfo(InternalTypeInfo.of(rows))
                .setServerTimeZone(ZoneId.of("UTC"))
                .setUserDefinedConverterFactory(PostgreSQLDeserializationConverterFactory.instance())
                .setChangelogMode(DebeziumChangelogMode.UPSERT)
                .build())
            .build();
        Configuration settings = new Configuration();
        settings.setString("pipeline.object-reuse", "true");
        settings.setString("restart-strategy.type", "none");
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1, settings);
        environment.enableCheckpointing(1000);
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "source").map(FlinkCount::counted).returns(Boolean.class).sinkTo(new DiscardingSink<>());
        environment.execute();
    }

    /** Of one task. */
    private static boolean counted(RowData row) {
        if (count.hasDelays()) {
            count.delay(row.getLong(AT));
        }
        count.add(1);
        return true;
    }
}
