"""The trainer and the net: programs that walk a plan."""
