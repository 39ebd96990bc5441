"""A parameter server whose work its workers do: gradients pushed, parameters pulled, at three models."""
