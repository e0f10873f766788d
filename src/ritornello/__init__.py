"""Ritornello: faithful, fast PyTorch reimplementations of ICLR 2025 papers on one shared core."""

__version__ = "0.1.0"
