"""Caffe's nets, solvers, layer types and weights for Demitasse."""
