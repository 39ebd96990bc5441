"""The paper's tables: printed cells beside predictions from the cost model and the nets' counts."""

from demitasse_cgdp.reproduction.tables import reproduce as reproduce
