"""NUMA-Caffe's printed speedups beside what four described servers predict."""

from demitasse_numa.reproduction.tables import reproduce as reproduce
