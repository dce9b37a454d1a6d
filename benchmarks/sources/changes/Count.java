import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Locale;

/** Counts what a source gives, and ends the process with a line of JSON once that is all. Of one thread. */
final class Count {
    private static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final double US_OF_MS = 1e3;
    private final long expected;
    private final long[] delaysUs;
    private long records;
    private long delayed;
    private long firstRecords;
    private double firstAt;
    private double firstCpu;

    /** @param withDelays whether `delay` is called for each record. */
    Count(long expected, boolean withDelays) {
        this.expected = expected;
        this.delaysUs = new long[withDelays ? (int) expected : 0];
    }

    boolean hasDelays() {
        return delaysUs.length > 0;
    }

    /** A record that was written at this time. */
    void delay(long atUs) {
        if (delayed < delaysUs.length) {
            delaysUs[(int) delayed++] = (long) (now() * 1e6) - atUs;
        }
    }

    /** That many records have come. */
    void add(long count) {
        if (records == 0) {
            firstAt = now();
            firstCpu = cpu();
            firstRecords = count;
        }
        records += count;
        if (records >= expected) {
            end();
        }
    }

    private void end() {
        double last = now();
        double cpu = cpu() - firstCpu;
        // The first fifth is a warm-up.
        long[] counted = Arrays.copyOfRange(delaysUs, (int) (delayed / 5), (int) delayed);
        Arrays.sort(counted);
        String line = String.format(Locale.ROOT,
            "{\"first\": %.6f, \"last\": %.6f, \"first_records\": %d, \"records\": %d, \"cpu_s\": %.3f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}",
            firstAt, last, firstRecords, records, cpu, quantile(counted, 0.5), quantile(counted, 0.99));
        System.out.println(line);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static double quantile(long[] sorted, double part) {
        return sorted.length == 0 ? 0.0 : sorted[(int) (part * (sorted.length - 1))] / US_OF_MS;
    }

    private static double now() {
        java.time.Instant now = java.time.Instant.now();
        return now.getEpochSecond() + now.getNano() / 1e9;
    }

    private static double cpu() {
        return SYSTEM.getProcessCpuTime() / 1e9;
    }
}
