"""The paper's tables, printed cells beside what the kernels' counts predict."""

from demitasse_sw26010.reproduction.tables import reproduce as reproduce
