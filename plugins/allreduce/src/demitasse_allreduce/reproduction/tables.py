def reproduce(paper): return None
