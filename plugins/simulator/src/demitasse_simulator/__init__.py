"""The time and memory of a training step on any described machine, from the plan that would run."""
