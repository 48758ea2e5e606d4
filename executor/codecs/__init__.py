"""Codecs: the arithmetic behind the bytes of ``cost_models.codecs``, on NumPy arrays.

``wire`` lays kept elements out in bytes, ``dense`` has the formats that send every element, ``selection`` decides which
elements are kept, ``dct`` is Dynamic Communication Thresholding (Gupta et al., KDD 2021), ``ablations`` what that paper
found to be worse. Knows nothing of plans, processes or messages. Every random choice comes from a generator that the
caller keys (``executor.arrays.generator`` of seed, channel and step), so that a run repeats.
"""
