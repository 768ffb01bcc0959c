"""Values that people and scripts pass by mistake, for every setting of every method and metric."""

import numpy as np
import torch

ODD_SETTINGS = {
    "None": None,
    "a word": "no such thing",
    "a digit": "3",
    "bytes": b"3",
    "True": True,
    "0": 0,
    "-1": -1,
    "2**63": 2**63,
    "10**9": 10**9,
    "10**400": 10**400,
    "0.5": 0.5,
    "1e300": 1e300,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "a list": [0.5, 0.1],
    "an empty tuple": (),
    "a dict": {"a": 1},
    "a tensor": torch.ones(3),
    "a scalar tensor": torch.tensor(0.5),
    "a tensor without data": torch.ones((), device="meta"),
    "several numbers without data": torch.ones(2, device="meta"),
    "an array": np.ones(2),
    "an object": object(),
    "a complex number": 1 + 2j,
}
# Scalars of numpy are numbers.
NUMPY_NUMBERS = {"int64": np.int64(2), "float64": np.float64(0.5), "float32": np.float32(0.5)}
