"""Where batches come from: a synthetic click stream with a planted model, and files of click logs."""

from executor.data.batch import Batch, Stream, dense_width
from executor.data.criteo import CriteoTsv
from executor.data.files import DataOptions, open_data
from executor.data.rows import Passes, Rows
from executor.data.synthetic import SyntheticStream

__all__ = [
    "Batch",
    "CriteoTsv",
    "DataOptions",
    "Passes",
    "Rows",
    "Stream",
    "SyntheticStream",
    "dense_width",
    "open_data",
]
