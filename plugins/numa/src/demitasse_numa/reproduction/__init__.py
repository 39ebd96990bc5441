"""NUMA-Caffe's printed speedups beside predictions from the descriptions of four servers."""

from demitasse_numa.reproduction.tables import reproduce as reproduce
