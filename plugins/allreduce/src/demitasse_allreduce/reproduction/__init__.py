"""S-Caffe's printed figures beside what its equations and its cluster's description predict."""

from demitasse_allreduce.reproduction.tables import reproduce as reproduce
