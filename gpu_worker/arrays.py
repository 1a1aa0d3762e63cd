"""Types of arrays of the host."""

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
