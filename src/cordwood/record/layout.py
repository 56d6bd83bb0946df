"""The layout of batches, which is below the kernels: see `cordwood.kernels.layout`."""

from cordwood.kernels.layout import *  # noqa: F403
