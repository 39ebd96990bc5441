"""Benchmark of delivering samples: striped sets compared with other readers and loaders."""
