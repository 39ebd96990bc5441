"""One solver in each memory domain: with local threads and memory, and gradients summed along a tree."""
