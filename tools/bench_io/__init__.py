"""Delivering samples: striped sets beside other readers and loaders."""
