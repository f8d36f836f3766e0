"""Names, types and labels of the scheduler's and the gateway's metrics: dashboards hang on them."""

from pathlib import Path

from gateway.metrics import Metrics
from scheduler_svc.core.stats import Counters, PoolStats
from scheduler_svc.families import families
from scheduler_svc.metrics import ShellMetrics

GOLDEN = Path(__file__).with_name("metric_names.txt")


def exported() -> list[str]:
    """One line a metric: name, type, label names and the values of the labels other than `le`."""
    lines = []
    scheduler = families(PoolStats(counters=Counters()), None, False, ShellMetrics())
    for metric in (*scheduler, *Metrics().registry.collect()):
        label_sets = {
            ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()) if key != "le")
            for sample in metric.samples
            if not sample.name.endswith("_created")
        }
        lines.append(" ".join([metric.name, metric.type, *sorted(filter(None, label_sets))]))
    return sorted(lines)


def test_the_metrics_are_those_that_are_written_down() -> None:
    assert exported() == GOLDEN.read_text().splitlines()
