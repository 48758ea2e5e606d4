"""Where batches come from: a synthetic click stream with a planted model, and files in Criteo's layouts."""

from executor.data.batch import Batch, Stream, dense_width
from executor.data.criteo import CriteoTsv
from executor.data.synthetic import SyntheticStream

__all__ = ["Batch", "CriteoTsv", "Stream", "SyntheticStream", "dense_width"]
