"""How gradients and parameters travel in an iteration: at its end, in buckets, or as in S-Caffe."""
