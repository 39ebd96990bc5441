"""One solver in each memory domain: its threads and memory near, gradients summed along a tree."""
