import java.io.FileWriter;
import java.io.IOException;
import org.apache.beam.runners.flink.FlinkPipelineOptions;
import org.apache.beam.runners.flink.FlinkRunner;
import org.apache.beam.sdk.Pipeline;
import org.apache.beam.sdk.io.GenerateSequence;
import org.apache.beam.sdk.options.PipelineOptionsFactory;
import org.apache.beam.sdk.transforms.DoFn;
import org.apache.beam.sdk.transforms.ParDo;
import org.joda.time.Duration;

/**
 * Counts up from an unbounded source of Beam's own, and writes down every number that the source gives.
 *
 * <p>Arguments: the file; the folder with Flink's configuration, which may name a checkpoint to restore; after how many numbers
 * to stop.
 */
public final class Reinitialise {
  private static final class WriteDown extends DoFn<Long, Void> {
    private final String file;
    private final int count;
    private transient int written;

    WriteDown(String file, int count) {
      this.file = file;
      this.count = count;
    }

    @ProcessElement
    public void process(@Element Long number) throws IOException {
      try (FileWriter writer = new FileWriter(file, true)) {
        writer.write(number + "\n");
      }
      if (++written == count) {
        Runtime.getRuntime().halt(0); // as a kill would: nothing is closed
      }
    }
  }

  public static void main(String[] arguments) {
    FlinkPipelineOptions options = PipelineOptionsFactory.create().as(FlinkPipelineOptions.class);
    options.setRunner(FlinkRunner.class);
    options.setFlinkMaster("[local]");
    options.setFlinkConfDir(arguments[1]);
    options.setStreaming(true);
    options.setParallelism(1);
    options.setCheckpointingInterval(200L);
    options.setExternalizedCheckpointsEnabled(true);
    options.setRetainExternalizedCheckpointsOnCancellation(true);
    Pipeline pipeline = Pipeline.create(options);
    pipeline
        .apply(GenerateSequence.from(0).withRate(1000, Duration.standardSeconds(1)))
        .apply(ParDo.of(new WriteDown(arguments[0], Integer.parseInt(arguments[2]))));
    pipeline.run().waitUntilFinish();
  }
}
