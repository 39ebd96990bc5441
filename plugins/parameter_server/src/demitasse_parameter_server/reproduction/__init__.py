"""SingleCaffe's printed speedups beside predictions for a described node."""

from demitasse_parameter_server.reproduction.tables import reproduce as reproduce
