"""The paper's printed speedups beside what a described node gives."""

from demitasse_parameter_server.reproduction.tables import reproduce as reproduce
