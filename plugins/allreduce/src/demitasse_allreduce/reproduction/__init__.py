"""S-Caffe's printed figures beside predictions from its equations and its cluster's description."""

from demitasse_allreduce.reproduction.tables import reproduce as reproduce
