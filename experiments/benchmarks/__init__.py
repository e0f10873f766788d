"""Speed against the best peer, both sides in one process, in turn."""

from ritornello.experiments.benchmarks.harness import Benchmark, Timing, time_pair

__all__ = ["Benchmark", "Timing", "time_pair"]
