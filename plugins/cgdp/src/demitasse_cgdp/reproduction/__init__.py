"""The paper's tables, printed cells beside what the cost model and nets' counts predict."""

from demitasse_cgdp.reproduction.tables import reproduce as reproduce
