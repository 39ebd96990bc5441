"""The paper's tables: printed cells next to what the kernels' counts predict."""

from demitasse_sw26010.reproduction.tables import reproduce as reproduce
