"""A parameter server whose work is done by its workers: they push gradients and pull parameters, under
one of three consistency models."""
